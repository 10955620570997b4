"""A quota that carries unconfident candidates over: by hand, against the naive decoder, and special cases."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence
from pardec.samplers.masked.ops.schedule import BlockClock
from pardec.samplers.masked.select.carry import Carry, State
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.registry import build_method
from pardec.samplers.spec import parse
from tests.grids import chequered
from tests.reference import naive_schedules as naive
from tests.samplers.eight_tokens import LAWS, steps_of
from tests.samplers.schedule_checks import agree
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import FAMILIES, request, run, table, toy

test_eight_tokens_by_hand = commits_at(
    [
        # Two a step: .99 .95 | .91 .901 | .85, .60 carried | of three .60 | of two .45 | .30
        ("carry:tau=0.9,steps=4", [0, 3, 1, 5, 0, 2, 1, 4]),
        # 3, 3, 2: .99 .95 .91 | .901, two carried | of four .85 | .60 | .45 | .30
        ("carry:tau=0.9,steps=3", [0, 3, 0, 5, 0, 2, 1, 4]),
        ("carry:tau=0.5,steps=4", [0, 2, 1, 4, 0, 2, 1, 3]),  # .45 and .30 do not reach a half
        ("carry:tau=0.9,steps=1", [0, 2, 0, 4, 0, 1, 0, 3]),  # a quota of everything is the plain threshold
        ("carry:tau=0.9", [1, 5, 2, 7, 0, 4, 3, 6]),
        ("carry:tau=1,steps=4", [1, 5, 2, 7, 0, 4, 3, 6]),
        ("carry:tau=0.9,steps=20", [1, 5, 2, 7, 0, 4, 3, 6]),
    ]
)


def test_nothing_is_carried_into_the_next_block() -> None:
    """Two per step in each block: .95 .91 | .60, .30 carried | .30, then .99 .901 | .85, .45 carried | .45."""
    assert steps_of("carry:tau=0.6,steps=4", block_length=4) == [0, 1, 0, 2, 3, 4, 3, 5]


def test_a_row_that_begins_a_block_leaves_what_others_carry() -> None:
    canvas: Any = SimpleNamespace(
        block_started=np.array([True, False]), block_remaining=np.array([4, 2]), step=np.array([3, 3])
    )
    none = np.zeros(2, dtype=np.int64)
    state = State(BlockClock(none, none, none + 1), none, torch.tensor([[2], [1]]))
    Carry().skipped_steps(canvas, state)
    assert state.carried.tolist() == [[0], [1]]


def test_a_score_of_exactly_tau_passes() -> None:
    distributions = torch.zeros(3, 7)
    distributions[:, :4] = 0.25
    query = request([[6] * 3], [0], block_length=3)
    assert run(table(distributions), "carry:tau=0.25,steps=1", query).nfe == (1,)
    assert run(table(distributions), "carry:tau=0.2501,steps=1", query).nfe == (3,)


def test_the_best_is_taken_however_unsure_and_is_not_carried() -> None:
    rows = (torch.full((8,), 6),)
    canvas = Canvas(rows, (0,), mask_id=6, pad_id=4, block_length=8)
    evidence = Evidence(
        DenseDistribution(LAWS.log()[None]), canvas.window, canvas.eligible, request([[6] * 8], [0], block_length=8)
    )
    carry = build_method(parse("carry:tau=1,steps=4").parts[0])
    state = carry.start(canvas)
    carry.skipped_steps(canvas, state)
    taken = carry.select(evidence.propose(*evidence.distribution.greedy), canvas, state)
    assert taken.nonzero().tolist() == [[0, 4]]
    assert state.carried.tolist() == [[1]]


def test_a_new_block_begins_with_nothing_carried() -> None:
    canvas = Canvas((torch.full((8,), 6),), (0,), mask_id=6, pad_id=4, block_length=4)
    carry = build_method(parse("carry:steps=4").parts[0])
    state = carry.start(canvas)
    state.carried += 3
    carry.skipped_steps(canvas, state)
    assert state.carried.tolist() == [[0]]
    state.carried += 3
    canvas.block_started = np.zeros(1, dtype=bool)
    carry.skipped_steps(canvas, state)
    assert state.carried.tolist() == [[3]]


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 30])
def test_a_threshold_of_nothing_is_the_fixed_schedule(steps: int) -> None:
    for block_length in (4, 8):
        taken = steps_of(f"carry:tau=0,steps={steps}", block_length=block_length)
        assert taken == steps_of(f"fixed:steps={steps}", block_length=block_length)


@pytest.mark.parametrize(("family", "steps"), chequered(FAMILIES, [None, 1, 3, 5, 40]))
@pytest.mark.covers(1)
def test_as_the_naive_decoder(family: str, steps: int | None) -> None:
    text = "none" if steps is None else steps
    model = toy(family, seed=3, sharp=1.2)
    agree(model, f"carry:tau=0.5,steps={text}", naive.carry(0.5), steps)
    for seed in range(3):
        agree(toy(family, seed=seed, sharp=1.5), f"carry:tau=0.3,steps={text}", naive.carry(0.3), steps)
    agree(model, f"margin+carry:tau=0.2,steps={text}", naive.carry(0.2), steps, propose="margin")


test_bad_parameters_are_refused = refused_specs(
    [
        ("tau=1.5", r"tau must lie in \[0, 1\], got 1.5"),
        ("tau=-0.1", r"tau must lie in \[0, 1\], got -0.1"),
        ("steps=0", "steps must be at least 1, got 0"),
    ],
    before="carry:",
)
