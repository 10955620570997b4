"""What the cards say of how each method was checked is so."""

from __future__ import annotations

import json
import re
from dataclasses import make_dataclass
from functools import cache
from pathlib import Path

import pytest

from pardec.cli import run
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.cards import CHECKS, register
from tests.samplers.replayed import replayed
from tests.samplers.speculative import test_exact_joint

TESTS = Path(__file__).resolve().parents[1]
CARDS = {(card.name, card.family): card for card in registry.cards() if card.make.__module__.startswith("pardec.")}


@cache
def texts() -> list[str]:
    return [file.read_text() for file in TESTS.rglob("test_*.py")]


def claimed(kind: str) -> dict[tuple[str, str], set[str]]:
    """Of each method that claims `kind`, the sets that it names."""
    words = {name: [word.partition("/") for word in card.checked] for name, card in CARDS.items()}
    made = {name: {of for first, _, of in found if first == kind} for name, found in words.items()}
    return {name: sets for name, sets in made.items() if sets}


def test_a_method_claims_the_recorded_sets_in_which_it_occurs_and_no_others() -> None:
    assert claimed("golden") == replayed()


def test_the_joint_law_is_claimed_by_those_that_are_drawn_and_counted() -> None:
    specs = [registry.resolve(spec, "ar", sampling=True).spec for spec in test_exact_joint.SPECS]
    drawn = {part.name for spec in specs for part in spec.parts} - {"sequential"}
    assert {name for name, family in claimed("joint") if family == "ar"} == drawn


@pytest.mark.parametrize("name", claimed("reference"))
def test_a_plain_version_is_named_beside_the_method(name: tuple[str, str]) -> None:
    """In one test module at least, which is not to say that the module compares the two."""
    plain = re.compile(r"from tests\.reference|\bdef naive\b|plain_greedy|plain version")
    assert any(name[0] in text and re.search(rf"\b{name[0]}\b", text) and plain.search(text) for text in texts())


def test_every_method_says_how_it_was_checked() -> None:
    for card in CARDS.values():
        assert card.checked, f'{card.name}: @register(..., checked="reference"), or what is true of it'
        assert "hand" not in card.checked or card.checked == ("hand",), "what is worked out by hand is so everywhere"
        for word in card.checked:
            assert word.partition("/")[0] in CHECKS
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
    with pytest.raises(SpecError, match="checked='vibes' is no kind of check"):
        register("mine", stage="select", checked="vibes")(make_dataclass("Mine", []))
