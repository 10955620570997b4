"""`factor`: as many of the most confident positions as the lowest score among them allows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pardec.samplers.masked.select.factor import Factor
from tests.reference import naive_masked as naive
from tests.samplers.eight_tokens import steps_of
from tests.samplers.loop_parity import LENGTHS, NEW, compare
from tests.samplers.spec_checks import commits_at
from tests.samplers.toys import FAMILIES, prompts, toy

STEPS = {
    # Ranked .99 .95 .91 .901 .85 | .60 against 1 - 1/(r+1) = .5 .667 .75 .8 .833 | .857; then .60 | .45 against .667.
    "factor": [0, 1, 0, 3, 0, 0, 0, 2],
    "factor:reference=true": [0, 1, 0, 2, 0, 0, 0, 2],  # .45 and then exactly the last candidate, .30, fails: both go
    "factor:f=0.25": [0, 4, 1, 6, 0, 3, 2, 5],  # .99 .95 | .91 against .917 | .9375; then always one
    "factor:f=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "factor:f=1000": [0] * 8,
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_two_blocks_by_hand() -> None:
    assert steps_of("factor", block_length=4) == [0, 1, 0, 2, 3, 3, 3, 4]


def test_a_score_that_is_just_what_its_rank_needs_is_committed() -> None:
    """1 - f / (r + 1) is 0.5 at rank 2 and 0.625 at rank 3."""
    scores: Any = SimpleNamespace(score=torch.tensor([[0.5, 0.5, 0.75]]), eligible=torch.ones(1, 3, dtype=torch.bool))
    canvas: Any = None
    assert Factor(f=1.5).select(scores, canvas, None).tolist() == [[True, False, True]]


RULES: dict[str, Any] = {
    "factor:f=0.7": naive.factor(0.7),
    "factor": naive.factor(1.0),
    "factor:f=0.7,reference=true": naive.factor(0.7, reference=True),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", RULES)
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(spec: str, family: str) -> None:
    compare(toy(family, seed=1, sharp=1.2), spec, RULES[spec], prompts(LENGTHS, seed=1), NEW)
