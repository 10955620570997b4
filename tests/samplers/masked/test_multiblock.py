"""`multiblock`: blocks become active before earlier ones are complete; with one active block it is the grid."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.masked.block.multiblock import MultiBlock
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Update
from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import Make, agree
from tests.samplers.toys import MASK, fill, prompts, same, toy

RULES: dict[str, Make] = {
    "multiblock": naive.MultiBlock,
    "multiblock:add=0.5,blocks=2": lambda *sizes: naive.MultiBlock(*sizes, add=0.5, blocks=2),
    "multiblock:add=0,blocks=3": lambda *sizes: naive.MultiBlock(*sizes, add=0.0, blocks=3),
}


@pytest.mark.parametrize("spec", RULES)
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, spec: str) -> None:
    agree(name, spec, RULES[spec])


def test_no_more_blocks_than_asked_for_are_active_and_the_first_has_to_progress() -> None:
    """With add=0 the next block is active at once: two of five, however often it is asked."""
    canvas = Canvas((torch.full((10,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=2)
    stage = MultiBlock(add=0, blocks=2)
    state = stage.start(canvas)
    for _ in range(3):
        span = stage.span(canvas, state)
        assert span.progress is not None
        assert (span.block_start[0], span.block_end[0], span.progress[0]) == (0, 4, 2)


def test_a_block_that_the_prompt_began_counts_its_own_tokens_alone() -> None:
    """Blocks of 4 after a prompt of 3, add=0.5: the first one's only token opens the next, of which it takes two."""
    row = torch.tensor([1, 2, 3, *[MASK] * 13])
    canvas = Canvas((row,), (3,), mask_id=MASK, pad_id=4, block_length=4, absolute=True, moving=True)
    stage, ends = MultiBlock(add=0.5, blocks=4), []
    state = stage.start(canvas)
    for first in (3, 4, 5, 6):
        which = canvas.eligible & (canvas.window < first)
        canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
        ends.append(int(stage.span(canvas, state).block_end[0]))
    assert ends == [4, 8, 8, 12]


@pytest.mark.parametrize(
    ("add", "size", "first"), [(0.8, 5, 4), (0.55, 20, 11), (0.55, 60, 33), (0.1, 10, 1), (0.81, 5, 5)]
)
def test_a_block_joins_at_the_share_and_not_one_token_later(add: float, size: int, first: int) -> None:
    canvas = Canvas((torch.full((3 * size,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=size, moving=True)
    stage, ends = MultiBlock(add=add, blocks=2), []
    state = stage.start(canvas)
    for count in range(size):
        which = canvas.eligible & (canvas.window < count)
        canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
        ends.append(int(stage.span(canvas, state).block_end[0]))
    assert ends == [size] * first + [2 * size] * (size - first)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar"])
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "block", "vicinity:before=2,after=1,warmup=0"])
@pytest.mark.parametrize("revise", ["", "+edit:tau=0.2,post=3"])
def test_one_block_at_once_is_the_grid(family: str, cache: str, revise: str) -> None:
    """A complete block that is still edited holds its row: caches refresh once the next one is entered."""
    if cache == "block" and family != "sdar":
        pytest.skip("for block-causal families")
    rest = f"threshold:tau=0.3{revise}@{cache}"
    both = [fill(toy(family, sharp=1.2), spec, prompts((5, 2)), 12) for spec in (rest, f"multiblock:blocks=1+{rest}")]
    for row in range(2):
        assert same(both[0], row, both[1], row)
    assert both[0].trace.fed == both[1].trace.fed


@pytest.mark.parametrize("cache", ["none", "dual:refresh=1", "block"])
def test_blocks_in_flight_change_nothing_but_order_in_a_block_causal_family(cache: str) -> None:
    """With an exact cache the tokens equal those without, whatever later blocks held when K/V were written."""
    model, given = toy("sdar", sharp=1.2), prompts((5, 2, 7))
    spec = "multiblock:add=0.2+threshold:tau=0.3"
    plain, cached = fill(model, f"{spec}@none", given, 14), fill(model, f"{spec}@{cache}", given, 14)
    assert plain.tokens.tolist() == cached.tokens.tolist()
    assert plain.trace.commit_step.tolist() == cached.trace.commit_step.tolist()
