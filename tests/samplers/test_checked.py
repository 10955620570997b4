"""The statements of cards on how methods were checked are true."""

from __future__ import annotations

import json
from dataclasses import make_dataclass
from functools import cache

import pytest

from pardec.cli import run
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.cards import CHECKS, register
from tests.samplers.recorded_methods import replayed
from tests.samplers.reference_checks import Page, fault, pages
from tests.samplers.speculative import test_exact_joint

CARDS = {(card.name, card.family): card for card in registry.cards() if card.make.__module__.startswith("pardec.")}


@cache
def known() -> dict[str, Page]:
    return pages()


def claimed(kind: str) -> dict[tuple[str, str], set[str]]:
    """The recorded sets of each method that claims checks of this `kind`."""
    words = {name: [word.partition("/") for word in card.checked] for name, card in CARDS.items()}
    made = {name: {of for first, _, of in found if first == kind} for name, found in words.items()}
    return {name: sets for name, sets in made.items() if sets}


def test_a_method_claims_the_recorded_sets_in_which_it_occurs_and_no_others() -> None:
    assert claimed("golden") == replayed()


@cache
def counted() -> set[str]:
    """The methods whose samples test_exact_joint.py compares with the joint distribution."""
    specs = [registry.resolve(spec, "ar", sampling=True).spec for spec in test_exact_joint.SPECS]
    return {part.name for spec in specs for part in spec.parts} - {"sequential"}


@pytest.mark.parametrize("name", [name for name, family in CARDS if family == "ar"])
def test_the_joint_distribution_is_claimed_by_those_that_are_drawn_and_counted(name: str) -> None:
    claims = (name, "ar") in claimed("joint")
    assert claims == (name in counted()), (
        f"the card of {name} {'has' if claims else 'lacks'} the word joint in `checked`, and test_exact_joint.py "
        f"{'draws with it' if name in counted() else 'does not draw with it'}"
    )


@pytest.mark.parametrize("name", claimed("reference"), ids="-".join)
def test_the_plain_version_that_a_card_names_is_called_by_a_test_of_the_method(name: tuple[str, str]) -> None:
    card = CARDS[name]
    assert card.references, 'checked="reference:module.function" names the plain version, of tests/module.py'
    for reference in card.references:
        assert fault(reference, card.name, card.make.__module__, known()) is None


PLAIN = "def double(x):\n    return x + x\n"
TEST = """
from pardec.samplers.registry import resolve
from tests.reference import plain
CASES = [plain.double]
def compare(spec, rule):
    assert resolve(spec).step(3) == rule(3)
def test_it_is_the_plain_rule():
    for rule in CASES:
        compare("twice:k=2@none", rule)
"""

TOYS = "from pardec.samplers.loop import decode\ndef run(spec, x):\n    return decode(spec, x)\n"
APART = "reference.plain.double is not apart from the package: it uses "


@pytest.mark.parametrize(
    ("plain", "test", "said"),
    [
        (PLAIN, TEST, None),
        (PLAIN, TEST.replace("from tests.reference import plain", "from tests.reference.plain import double as plain")
        .replace("plain.double", "plain"), None),
        (PLAIN.replace("double", "twofold"), TEST, "tests/reference/plain.py defines no double"),
        ("from pardec.samplers.ops import double\n", TEST, "tests/reference/plain.py defines no double"),
        (PLAIN, TEST.replace("[plain.double]", "[abs]"), "no test calls reference.plain.double"),
        (PLAIN, TEST.replace("in CASES", "in [abs]"), "no test calls reference.plain.double"),
        (PLAIN, TEST.replace("twice", "thrice"), "no test that calls reference.plain.double is of twice"),
        (PLAIN, TEST.replace("twice", "thrice") + 'def test_it_runs():\n    resolve("twice")\n',
         "no test that calls reference.plain.double is of twice"),
        ('def double(x):\n    return model.generate(x, sampler="twice")\n', TEST, APART + "sampler="),
        ("from pardec.samplers.twice import Two\ndef double(x):\n    return it(x)\ndef it(x):\n    return Two()(x)\n",
         TEST, APART + "pardec.samplers.twice.Two"),
        ('from tests.toys import run\ndef double(x):\n    return run("twice", x)\n', TEST,
         APART + "pardec.samplers.loop.decode"),
    ],
)  # fmt: skip
def test_a_plain_version_that_is_wrong_in_one_way_is_found(plain: str, test: str, said: str | None) -> None:
    sources = {"reference.plain": plain, "test_twice": test, "toys": TOYS}
    made = {module: Page(module, text) for module, text in sources.items()}
    assert fault("reference.plain.double", "twice", "pardec.samplers.twice", made) == said


@pytest.mark.parametrize("name", CARDS, ids="-".join)
def test_every_method_says_how_it_was_checked(name: tuple[str, str]) -> None:
    card = CARDS[name]
    assert card.checked, f'{card.name}: @register(..., checked="hand"), or another of {", ".join(CHECKS)}'
    assert "hand" not in card.checked or card.checked == ("hand",), (
        f'{card.name}: "hand" stands alone, where there is no other check, got checked="{" ".join(card.checked)}"'
    )
    for word in card.checked:
        assert word.partition("/")[0] in CHECKS


def test_recorded_outputs_cover_many_methods() -> None:
    assert len(claimed("golden")) >= 34


def test_show_and_list_tell_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["show", "prophet"]) == 0
    assert "checked: golden (reproduces outputs recorded from the authors' own code (tests/golden): llada); ref" in (
        capsys.readouterr().out
    )
    assert run(["list", "samplers", "--json"]) == 0
    listed = {entry["name"]: entry["checked"] for entry in json.loads(capsys.readouterr().out)}
    assert listed["localleap"] == ["reference"]
    assert listed["dkv"] == ["golden/dream", "golden/llada", "reference"]


def test_a_kind_of_check_that_is_none_is_refused() -> None:
    with pytest.raises(SpecError, match="checked='vibes' is an unknown kind of check"):
        register("mine", stage="select", checked="vibes")(make_dataclass("Mine", []))
