"""`dsb`: blocks that slide with the first open position and grow, compared with a naive version."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.masked.block.dsb import DynamicSlidingBlock
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Update
from pardec.samplers.masked.loop import MaskedLoop
from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree
from tests.samplers.toys import BLOCK, MASK, request, toy


def rule(most: int | None = None) -> Make:
    def make(*sizes: int) -> naive.Dsb:
        made = naive.Dsb(*sizes)
        made.most = most
        return made

    return make


RULES = {"dsb": rule(), "dsb:most=4": rule(most=4)}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])


def test_its_window_reaches_to_the_end_of_the_row() -> None:
    """A sampler without a block stage keeps a window of the block's width."""
    canvas = request([[1, 2, *[MASK] * 12]], [2])
    for spec, width in (("threshold", BLOCK), ("dsb+threshold", 12)):
        loop = MaskedLoop(toy("llada"), registry.resolve(spec, "masked"), canvas)
        assert loop.canvas.window.shape == (1, width)


def test_caches_refresh_where_the_first_open_position_enters_another_block_of_the_grid() -> None:
    """Blocks of 4 after a prompt of 2 tokens."""
    row = torch.tensor([1, 2, *[MASK] * 12])
    canvas = Canvas((row,), (2,), mask_id=MASK, pad_id=4, block_length=4, moving=True)
    stage, started = DynamicSlidingBlock(), []
    state = stage.start(canvas)
    for first in (2, 5, 6, 9, 11):
        which = canvas.eligible & (canvas.window < first)
        canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
        started.append(bool(stage.span(canvas, state).block_started[0]))
    assert started == [True, False, True, False, True]
