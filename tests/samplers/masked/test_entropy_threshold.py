"""`entropy_threshold`: every position of lower entropy, and at least a number that grows with the steps."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_masked, naive_selects
from tests.samplers import loop_parity
from tests.samplers.parity import FAMILIES, agree, agree_recorded
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

STEPS = {
    # Entropies: .99 0.067, .95 0.254, .91 0.401, .901 0.432, .85 0.588, .60 1.113, .45 1.292, .30 1.380 nats.
    "entropy_threshold": [0, 2, 0, 4, 0, 1, 0, 3],
    "entropy_threshold:tau=0.42": [0, 3, 0, 5, 0, 2, 1, 4],
    "entropy_threshold:tau=0": [1, 5, 2, 7, 0, 4, 3, 6],
    "entropy_threshold:floor=linear,steps=2": [0, 1, 0, 1, 0, 1, 0, 1],
    "entropy_threshold:floor=linear,steps=4": [0, 2, 0, 3, 0, 1, 0, 2],  # four are low | 4/3 | 3/2 | the last one
    "entropy_threshold:tau=0.3,floor=linear,steps=3": [0, 1, 0, 2, 0, 1, 1, 2],  # 8/3, 5/2, 2: 3, 3, 2
    "entropy_threshold:tau=0,floor=cosine,steps=2": [0, 1, 1, 1, 0, 1, 1, 1],  # 8 (1 - cos 45°) = 2.3
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_an_entropy_of_just_tau_is_low() -> None:
    sure = table(torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0]).expand(3, 5))
    assert run(sure, "entropy_threshold:tau=0", request([[4] * 3], [0], block_length=3)).nfe == (1,)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_naive_rule(family: str) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts(loop_parity.LENGTHS, seed=1)
    rule = naive_masked.entropy_threshold(1.5)
    loop_parity.compare(model, "entropy_threshold:tau=1.5", rule, given, loop_parity.NEW)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("floor", ["linear", "cosine"])
def test_a_floor_is_the_naive_rule(family: str, floor: str) -> None:
    """One block, which has all the steps."""
    spec = f"entropy_threshold:tau=1.5,floor={floor},steps=5"
    agree(spec, lambda: naive_selects.EntropyFloor(1.5, 5, cosine=floor == "cosine"), family=family, block_length=14)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_a_floor_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    spec = "entropy_threshold:tau=1.5,floor=cosine,steps=6"
    agree_recorded(name, spec, lambda: naive_selects.EntropyFloor(1.5, 6, cosine=True), block_length=20)


def test_a_floor_of_many_steps_changes_nothing() -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    specs = ("entropy_threshold:tau=1", "entropy_threshold:tau=1,floor=linear,steps=9999")
    one, other = (fill(model, spec, given, new) for spec in specs)
    assert all(same(one, row, other, row) for row in range(3))


test_bad_parameters = refused_specs(
    [
        ("tau=-0.1", "tau must be an entropy of at least 0 nats, got -0.1"),
        ("floor=steep", "floor must be one of linear, cosine, none, got 'steep'|floor"),
        ("steps=0", "steps must be at least 1, got 0"),
    ],
    before="entropy_threshold:",
)
