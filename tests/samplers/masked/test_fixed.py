"""`fixed`: an even share of each block's open positions per step, by score or in random order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.rng import Keyed
from tests.reference import naive_masked as naive
from tests.samplers.eight_tokens import LAWS, MASK, steps_of
from tests.samplers.loop_parity import LENGTHS, NEW, compare
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import FAMILIES, prompts, request, run, table, toy

STEPS = {
    "fixed": [1, 5, 2, 7, 0, 4, 3, 6],
    "fixed:steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 3, 3, 2 tokens
    "fixed:steps=5": [0, 2, 1, 4, 0, 2, 1, 3],  # 2, 2, 2, 1, 1 tokens
    "fixed:steps=1": [0] * 8,
    "fixed:steps=20": [1, 5, 2, 7, 0, 4, 3, 6],  # the twelve idle steps are not made
}


test_eight_tokens_by_hand = commits_at(STEPS)


@pytest.mark.parametrize(
    ("count", "steps"),
    [
        (3, [0, 1, 0, 1, 2, 2, 2, 2]),  # two steps for the first block, one for the second
        (8, [0, 2, 1, 3, 4, 6, 5, 7]),
        (1, [0, 0, 0, 0, 1, 1, 1, 1]),  # a block takes one forward at least
    ],
)
def test_two_blocks_by_hand(count: int, steps: list[int]) -> None:
    assert steps_of(f"fixed:steps={count}", block_length=4) == steps


def test_a_share_is_of_the_open_positions() -> None:
    """Two given tokens leave six positions for three steps: 2, 2, 2."""
    row = [MASK, MASK, MASK, 0, 0, MASK, MASK, MASK]
    assert steps_of("fixed:steps=3", row=row) == [0, 2, 0, -1, -1, 1, 1, 2]


@pytest.mark.parametrize("spec", ["fixed:steps=4,order=random", "random+fixed:steps=4"])
def test_a_random_order_is_drawn_once(spec: str) -> None:
    drawn = Keyed((100,)).uniform(np.array([0]), np.array([0]), torch.arange(8)[None], "order")[0]
    rank = drawn.argsort(descending=True).argsort()
    assert steps_of(spec) == (rank // 2).tolist()


def test_every_random_order_comes_up() -> None:
    rows = [[MASK] * 3] * 600
    got = run(table(LAWS[:3]), "fixed:order=random", request(rows, [0] * 600, block_length=3))
    found, counts = np.unique(got.trace.commit_step, axis=0, return_counts=True)
    assert len(found) == 6
    assert (abs(counts - 100) < 5 * 100**0.5).all()


RULES: dict[str, Any] = {
    "fixed": naive.fixed(),
    "fixed:steps=4": naive.fixed(4),
    "fixed:steps=7": naive.fixed(7),
    "fixed:steps=40": naive.fixed(40),
    "fixed:order=random": naive.fixed(order="random"),
    "fixed:steps=5,order=random": naive.fixed(5, "random"),
}


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("spec", RULES)
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(spec: str, family: str) -> None:
    compare(toy(family, seed=1, sharp=1.2), spec, RULES[spec], prompts(LENGTHS, seed=1), NEW)


test_bad_parameters = refused_specs(
    [
        ("steps=0", "steps must be at least 1, got 0"),
        ("steps=2.5", "fixed:steps must be a whole number, got '2.5'"),
        ("order=confidense", "order must be one of confidence, random, got 'confidense'"),
    ],
    before="fixed:",
)
