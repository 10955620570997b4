"""`slowfast`: slow steps determine the span of a fast phase, compared with its naive version."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.masked.block.slowfast import SlowFast
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence, Update
from pardec.samplers.ops.distribution import DenseDistribution
from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree
from tests.samplers.eight_tokens import MASK
from tests.samplers.toys import request

RULES: dict[str, Make] = {
    "slowfast:tau=0.05": lambda *sizes: naive.SlowFast(*sizes, tau=0.05),
    "slowfast:tau=0.1,steps=3,all=true": lambda *sizes: naive.SlowFast(*sizes, tau=0.1, steps=3, whole=True),
}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])


@pytest.mark.parametrize(
    ("ends", "whole", "end"),
    [
        ((7, 3), False, 5),  # the slow phase is over, and its last two ends do not agree: their mean
        ((7, 7), False, 7),
        ((6, 7), False, 7),  # a standard deviation of a half: they agree
        ((5, 7), False, 6),  # of 1: they do not
        ((7, 3, 5), False, 4),
        ((7, 3, 3), False, 3),
        ((7, 3), True, 5),
    ],
)
def test_where_a_stretch_ends_by_hand(ends: tuple[int, ...], whole: bool, end: int) -> None:
    """A stretch ends at the farthest confident position of each forward of the phase."""
    canvas = Canvas((torch.full((8,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=8)
    stage = SlowFast(tau=0.9, steps=len(ends), all=whole)
    state, asked = stage.start(canvas), request([[MASK] * 8], [0], block_length=8)
    for number, each in enumerate(ends, 1):
        laws = torch.full((8, 7), 1 / 7)
        laws[[0, each - 1]] = torch.tensor([0.94, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01])
        stage.narrow(
            Evidence(DenseDistribution(laws.log()[None]), canvas.window, canvas.eligible, asked), canvas, state
        )
        assert state.fast[0] == (number == len(ends))
    assert state.end[0] == end


def test_a_new_slow_phase_counts_from_its_start() -> None:
    """The stretch of 0 to 3 is complete, and the next phase, from 4 on, has made no forward."""
    canvas = Canvas((torch.full((8,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=8)
    stage, asked = SlowFast(tau=0.9, steps=2), request([[MASK] * 8], [0], block_length=8)
    state = stage.start(canvas)
    laws = torch.full((8, 7), 1 / 7)
    laws[3] = torch.tensor([0.94, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01])
    evidence = Evidence(DenseDistribution(laws.log()[None]), canvas.window, canvas.eligible, asked)
    for _ in range(2):
        stage.narrow(evidence, canvas, state)
    assert (state.fast[0], state.end[0], state.step[0]) == (True, 4, 2)
    first = canvas.window < 4
    canvas.commit(Update(first, torch.zeros_like(canvas.window), first.float()))
    stage.span(canvas, state)
    assert (state.fast[0], state.begin[0], state.step[0]) == (False, 4, 0)
