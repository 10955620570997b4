"""`random`: a random score per position, independent of the model."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_masked as naive
from tests.samplers.eight_tokens import proposal
from tests.samplers.loop_parity import LENGTHS, NEW, compare
from tests.samplers.toys import prompts, toy


def test_scores_are_keyed_by_seed_and_position_alone() -> None:
    first, hot = proposal("random"), proposal("random", temperature=1.0)
    assert torch.equal(first.score, hot.score)
    assert len(set(first.score[0].tolist())) == 8
    other = proposal("random", seeds=[3])
    assert not torch.equal(first.score, other.score)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_the_order_is_that_of_the_naive_decoder(family: str) -> None:
    model, given = toy(family, seed=3, sharp=1.2), prompts(LENGTHS)
    for select, rule in {"sequential": naive.sequential, "fixed:steps=5": naive.fixed(5)}.items():
        compare(model, f"random+{select}", rule, given, NEW)
