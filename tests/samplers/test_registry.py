"""The registry: cards, resolution, presets, and the error for every wrong spec."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from pardec.models.errors import SpecError, UnknownNameError
from pardec.samplers import registry
from pardec.samplers.cards import order
from pardec.samplers.registry import resolve
from tests.samplers import published_defaults
from tests.samplers.reference_checks import Page

ROOT = Path(__file__).resolve().parents[2]
FILES = {file.name for folder in ("pardec", "samplers", "models", "scripts") for file in (ROOT / folder).rglob("*.py")}
CARDS = {f"{card.family}/{card.name}": card for card in registry.cards()}
TESTS = Path(__file__).parent


# A model whose report has no number is its card, and a paper that is not on arXiv its page at the conference.
PAPER = r"arXiv:\d{4}\.\d{5}|https://huggingface\.co/[\w./-]+|https://cvpr\.thecvf\.com/virtual/\d+/poster/\d+"


@pytest.mark.parametrize("name", CARDS)
def test_a_method_has_a_test_file_of_its_name(name: str) -> None:
    """Next to the tests of its loop, with tests that use it: a spec, or a name of its module."""
    card = CARDS[name]
    file = TESTS / card.make.__module__.split(".")[2] / f"test_{card.name}.py"
    assert file.exists(), f"{name}: {file.relative_to(TESTS.parents[1])} is missing"
    tests = Page(file.stem, file.read_text()).tests
    assert any(test.is_of(card.name, card.make.__module__) for test in tests), f"no test of {file.name} is of {name}"


def check_docstring(doc: str, *, paper: str, exact: str) -> None:
    """Asserts that the docstring of a method's file has the paper's address and a true line on exactness."""
    assert re.fullmatch(PAPER, paper), f'paper="arXiv:<id>", or the address of the model\'s card; got {paper!r}'
    address = paper.replace("arXiv:", "https://arxiv.org/abs/")
    assert address in doc, f"the docstring has to give {address}"
    found = re.search(r"Exact: (no|yes|greedy|distribution)", doc)
    assert found, 'the docstring needs a line that begins with "Exact: no", "yes", "greedy" or "distribution"'
    assert (exact == "relaxed") != (found[1] in ("greedy", "distribution")), (
        f'"{found[0]}" in the docstring and exact="{exact}" in the card, where the default is "relaxed": '
        '"no" and "yes" go with "relaxed", "greedy" and "distribution" with the others'
    )


@pytest.mark.parametrize("name", CARDS)
def test_a_card_says_what_its_file_says(name: str) -> None:
    card = CARDS[name]
    module = inspect.getmodule(card.make)
    doc = inspect.getdoc(module) or ""
    assert Path(card.file).stem == card.name, f"the file of {card.name} has to be {card.name}.py"
    assert Path(card.file).read_text().splitlines()[card.line - 1].startswith("@register")
    assert card.summary == doc.split("\n")[0]
    assert card.summary.endswith("."), "the docstring begins with one line, a sentence with a full stop"
    assert card.stage in registry.STAGES
    assert card.exact in ("greedy", "distribution", "relaxed")
    check_docstring(doc, paper=card.paper, exact=card.exact)
    assert set(re.findall(r"`(?:[\w/]*/)?(\w+\.py)`", doc)) <= FILES, "the docstring names a file that is not there"


@pytest.mark.parametrize("name", CARDS)
def test_every_parameter_is_documented_and_has_a_default(name: str) -> None:
    card = CARDS[name]
    assert [p["name"] for p in card.parameters] == [f.name for f in dataclasses.fields(card.make)]
    for parameter in card.parameters:
        assert parameter["doc"], f'{name}: {parameter["name"]} has no description: Annotated[type, "description"]'
        assert parameter["type"]
        assert parameter["default"] != ""
    defaults = ",".join(f"{p['name']}={p['default']}" for p in card.parameters)
    part = registry.parse(f"{card.name}:{defaults}" if defaults else card.name).parts[0]
    assert card.make() == registry.build_method(part, card.family)


def test_the_defaults_of_every_method_are_in_the_table() -> None:
    cards = {(card.family, card.name) for card in CARDS.values() if card.parameters}
    assert {(family, full.partition(":")[0]) for family, _, full in published_defaults.ROWS} == cards
    for _, paper, full in published_defaults.ROWS:
        for each in paper.split() or [""]:
            published_defaults.check(each, full.partition(":")[0])
    for _, module, _ in published_defaults.CONSTANTS:
        published_defaults.check("", module.rpartition(".")[2])


@pytest.mark.parametrize("name", CARDS)
def test_grids_name_parameters_of_the_method_and_have_enough_values(name: str) -> None:
    make, own = CARDS[name].make, {parameter["name"] for parameter in CARDS[name].parameters}
    assert set(make.quality_grid) <= own, "quality_grid names a parameter that the method does not have"
    assert set(make.tuning_grid) <= own, "tuning_grid names a parameter that the method does not have"
    assert all(len(values) >= 4 for values in make.quality_grid.values()), "a curve needs at least four values"


@pytest.mark.parametrize("name", CARDS)
def test_a_method_is_immutable(name: str) -> None:
    assert CARDS[name].make.__dataclass_params__.frozen, "a method is a @dataclass(frozen=True)"


def test_cards_stand_by_stage_and_name() -> None:
    keys = [order(card) for card in registry.cards()]
    assert keys == sorted(keys)


@pytest.mark.parametrize(
    ("spec", "full"),
    [
        (None, "confidence:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0+eos:reference=false@none"),
        ("sequential", "confidence:of=raw+sequential@none"),
        ("eos", "confidence:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0+eos:reference=false@none"),
        ("margin", "margin:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0@none"),
        ("entropy_threshold", "entropy:of=raw+entropy_threshold:tau=0.45,floor=none,steps=16@none"),
        ("confidence+entropy_threshold", "confidence:of=raw+entropy_threshold:tau=0.45,floor=none,steps=16@none"),
        (
            "fixed:steps=none@dual:refresh=8",
            "confidence:of=raw+fixed:steps=none,order=confidence,reference=false@dual:refresh=8,reference=false",
        ),
        ("eos+threshold+margin", "margin:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0+eos:reference=false@none"),
        ("factor:f=1e20,reference=TRUE", 'confidence:of=raw+factor:f="1e+20",reference=true@none'),
        ("preset:fast-dllm", "confidence:of=raw+threshold:tau=0.9,fall=0.0,relax=0.0@dual:refresh=0,reference=false"),
    ],
)
def test_what_a_spec_leaves_open_takes_the_defaults(spec: str | None, full: str) -> None:
    assert str(resolve(spec).spec) == full
    assert str(resolve(full).spec) == full


def test_exact_holds_only_where_every_part_is() -> None:
    assert resolve("sequential").exact == "greedy"
    assert resolve("sequential+eos").exact == "greedy"
    assert {resolve(s).exact for s in ("threshold", "sequential@dual", "margin+sequential", "fixed")} == {"relaxed"}


BAD = [
    ("localeap", "unknown sampler 'localeap'", 'run "pardec list samplers"'),
    ("treshold", "unknown sampler 'treshold' (did you mean 'threshold'", 'run "pardec list samplers"'),
    ("a" * 300, "unknown sampler 'aaa", 'run "pardec list samplers"'),  # longer than the name of a file can be
    ("Threshold", "unknown sampler 'Threshold' (did you mean 'threshold'", "list samplers"),
    ("threshold:tua=0.9", "threshold: unknown parameter 'tua' (did you mean 'tau'?)", "it takes tau"),
    ("sequential:tau=1", "sequential: unknown parameter 'tau'", "it takes no parameters"),
    ("threshold:tau=high", "threshold:tau must be a number, got 'high'", None),
    ("fixed:steps=2.5", "fixed:steps must be a whole number, got '2.5'", None),
    ("fixed:steps=0", "fixed: steps must be at least 1, got 0", None),
    (
        "fixed:order=confidense",
        "fixed:order must be one of confidence, random, got 'confidense' (did you mean 'confidence'?)",
        None,
    ),
    ("fixed:reference=yes", "fixed:reference must be true or false, got 'yes'", None),
    ("threshold:tau=1.5", "threshold: tau must be at most 1, got 1.5", None),
    ("threshold:tau=-0.5", "threshold: tau must lie in [0, 1], got -0.5", "entropy+threshold"),
    ("threshold@dual:refresh=-1", "dual: refresh must be at least 0, got -1", None),
    ("threshold+factor", "'threshold+factor' names 2 select methods (threshold, factor), one is allowed", "keep one"),
    ("margin+entropy", "'margin+entropy' names 2 propose methods (margin, entropy), one is allowed", "keep one"),
    ("threshold+threshold", "names 2 select methods (threshold, threshold)", "keep one"),
    ("eos+eos", "'eos+eos' names 'eos' twice", "keep one of them"),
    ("threshold+dual", "'dual' is a cache and must follow '@'", "write ...@dual"),
    ("dual", "'dual' is a cache and must follow '@'", "write ...@dual"),
    ("threshold@margin", "'margin' after '@' is no cache but a propose stage", "join it with '+' instead"),
    ("threshold@duall", "unknown sampler 'duall' (did you mean 'dual'", "list samplers"),
    ("preset:fastdllm", "unknown preset 'fastdllm' (did you mean 'fast-dllm'", "list presets"),
    ("preset:", "unknown preset ''", "list presets"),
]


@pytest.mark.parametrize(("spec", "said", "hint"), BAD, ids=[spec for spec, _, _ in BAD])
def test_a_bad_spec_is_answered_with_what_would_work(spec: str, said: str, hint: str | None) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(spec)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert hint is None or hint in (caught.value.hint or "")
    if "unknown sampler" in said or "unknown preset" in said:
        assert isinstance(caught.value, UnknownNameError)
        assert isinstance(caught.value, LookupError)


def test_presets_resolve_and_name_their_papers() -> None:
    names = [preset.name for preset in registry.presets()]
    assert len(set(names)) == len(names)
    for preset in registry.presets():
        assert str(resolve(f"preset:{preset.name}").spec) == str(resolve(preset.spec).spec)
        assert registry.preset(preset.name) is preset
        assert registry.preset(f"preset:{preset.name}") is preset
        assert re.fullmatch(PAPER, preset.paper)
        assert preset.summary
        assert set(preset.arguments) <= {"max_new_tokens", "block_length", "temperature", "top_p", "top_k", "cfg"}


@pytest.mark.parametrize("spec", ["threshold:tau=1.5", "threshold:tau=high", "fixed:steps=0", "eos:reference=yes"])
def test_a_bad_value_always_comes_with_a_hint(spec: str) -> None:
    with pytest.raises(SpecError) as error:
        resolve(spec)
    assert error.value.hint
