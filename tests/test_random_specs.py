"""Random specs, arguments and constraints, each decoded alone, in a ragged batch, served and streamed.

No case crashes, breaks a constraint or depends on other rows. PARDEC_SPEC_SEED chooses the run, PARDEC_SPEC_COUNT how
many cases it has:

    PARDEC_SPEC_SEED=7 PARDEC_SPEC_COUNT=300 pytest -m slow tests/test_random_specs.py
"""

from __future__ import annotations

import os

import pytest

from pardec.samplers.cards import cards
from tests.fuzz.random_specs import NEEDS, Case, case, check
from tests.test_fuzz import within

SEED = int(os.environ.get("PARDEC_SPEC_SEED", "0"))
COUNT = int(os.environ.get("PARDEC_SPEC_COUNT", "1500"))
CHUNK = 25
SECONDS = 300  # that a case may take at most: a hang takes longer


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, COUNT, CHUNK))
def test_random_specs_keep_constraints_and_rows_apart(start: int) -> None:
    failed: list[str] = []
    for number in range(start, min(start + CHUNK, COUNT)):
        with within(SECONDS):
            one = case(SEED, number)
            failed += [f"case({SEED}, {number}), {one}: {fault}" for fault in check(one).faults]
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize(
    "one",
    [
        Case(
            "toy sdar", "confidence+confident:tau=0.0,reference=true", [[1, 2], [3]], {"seed": 1, "max_new_tokens": 6}
        ),
        Case("toy llada", "dsb+spacing+threshold", [[1, 2, 3], [4]], {"seed": 2, "max_new_tokens": 9, "stop_ids": []}),
        Case("toy nemotron", "smoothing", [[1], [2, 3, 4]], {"seed": 3, "max_new_tokens": 9, "stop_ids": []}, [4, 9]),
        Case(
            "tiny-nemotron",
            "edit+prophet:length=3+smoothing:most=0.5",
            ["Tom", "Reverse the list: 4 7 2 9 1.", "Tom"],
            {"seed": 820, "max_new_tokens": 10, "block_length": 2, "block_align": "absolute", "stop_ids": []},
        ),
        Case("toy dream", "dus", [[1], [2, 3]], {"seed": 3, "max_new_tokens": 9, "stop_ids": []}, [5, 9]),
    ],
    ids=str,
)
def test_specs_that_once_failed(one: Case) -> None:
    report = check(one)
    assert (report.refused, report.faults) == (None, [])


def test_methods_are_drawn_with_parameters_that_they_have() -> None:
    for card in cards():
        assert set(NEEDS.get(card.name, ())) <= {each["name"] for each in card.parameters}, card.name
