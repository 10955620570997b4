"""`dcd`: a window of masks that moves over the row, compared with its naive version on recorded checkpoints."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.masked.block.dcd import DeferredCommitment
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Update
from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree
from tests.samplers.toys import MASK


def rule(masks: int | None = None, most: int | None = None) -> Make:
    def make(*sizes: int) -> naive.Dcd:
        made = naive.Dcd(*sizes)
        made.masks, made.most = masks, most
        return made

    return make


RULES = {"dcd": rule(), "dcd:masks=3,most=5": rule(masks=3, most=5), "dcd:most=3": rule(most=3)}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])


def test_caches_refresh_at_the_start_and_after_as_many_commits_as_a_block_has() -> None:
    canvas = Canvas((torch.full((12,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=4)
    stage = DeferredCommitment()
    state, started = stage.start(canvas), []
    for count in (0, 3, 1, 3):
        which = canvas.window < canvas.first_open[0] + count
        canvas.commit(Update(which & canvas.eligible, torch.zeros_like(canvas.window), which.float()))
        started.append(bool(stage.span(canvas, state).block_started[0]))
    assert started == [True, False, True, False]


def test_a_window_ends_before_one_mask_too_many_or_two_blocks_later() -> None:
    """Blocks of 4 of which the first position stays open: four masks, but no more than eight positions."""
    ends = []
    for committed in (0, 2, 4, 5, 9):
        canvas = Canvas((torch.full((24,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=4, moving=True)
        which = (canvas.window >= 1) & (canvas.window <= committed)
        canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
        stage = DeferredCommitment()
        ends.append(int(stage.span(canvas, stage.start(canvas)).block_end[0]))
    assert ends == [4, 6, 8, 8, 8]
