"""`adablock`: blocks that end at delimiters, compared with its naive version on recorded checkpoints."""

from __future__ import annotations

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.masked.block.adablock import AdaptiveBlock
from pardec.samplers.masked.canvas import Canvas
from tests.reference import naive_blocks as naive
from tests.samplers.block_parity import agree
from tests.samplers.parity import recorded
from tests.samplers.toys import MASK, fill, prompts, same, table, toy


@pytest.mark.parametrize(("tau", "scope"), [(0.02, 0.25), (0.9, 0.25), (0.02, 0.1), (0.02, 0.5)])
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule_step_by_step(name: str, tau: float, scope: float) -> None:
    """Of 21 tokens a scope of 2, 5 or 10 is searched, in blocks of 6."""
    ids = range(0, recorded(name).vocab_size, 3)

    def rule(*sizes: int) -> naive.AdaBlock:
        made = naive.AdaBlock(*sizes, tau=tau, scope=scope)
        made.delimiters = frozenset(ids)
        return made

    agree(name, f"adablock:tau={tau},scope={scope},delimiters={'-'.join(map(str, ids))}", rule)


def test_a_delimiter_of_just_tau_ends_the_block() -> None:
    sure, even = [0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]  # 0 is the delimiter
    model = table(torch.tensor([sure, sure, even, sure, sure]))
    for tau, when in ((0.5, [0, 0, 1, 1]), (0.51, [0, 0, 0, 0])):
        spec = f"adablock:tau={tau},delimiters=0,scope=1+threshold:tau=0.1"
        assert fill(model, spec, [[1]], 4, block_length=4).trace.commit_step[0, 1:5].tolist() == when


def test_the_scope_is_not_rounded_down() -> None:
    canvas = Canvas((torch.full((100,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=4, moving=True)
    assert AdaptiveBlock(scope=0.29)._scope(canvas).tolist() == [29]


def test_of_equally_probable_delimiters_the_first_ends_the_block() -> None:
    sure, even = [0.0, 1.0, 0.0, 0.0, 0.0], [0.5, 0.5, 0.0, 0.0, 0.0]  # 0 is the delimiter
    model = table(torch.tensor([sure, sure, even, even, sure]))
    got = fill(model, "adablock:tau=0.5,delimiters=0,scope=1+threshold:tau=0.1", [[1]], 4, block_length=4)
    assert got.trace.commit_step[0, 1:5].tolist() == [0, 0, 1, 2]  # and the second its own


def test_rows_of_a_batch_have_blocks_of_their_own() -> None:
    """A row that has begun a block keeps its end while others begin theirs."""
    model, given, new = toy("dream", sharp=1.2), prompts((3, 6, 1)), (17, 12, 20)
    spec = "adablock:tau=0.2,delimiters=0-1-2,scope=0.5+threshold:tau=0.4"
    together = fill(model, spec, given, new, block_length=6)
    for row, prompt in enumerate(given):
        assert same(together, row, fill(model, spec, [prompt], new[row], block_length=6), 0)


def test_it_needs_delimiters() -> None:
    with pytest.raises(SpecError, match="no newline token"):
        fill(toy("llada"), "adablock+threshold", prompts((3,)), 8)
    with pytest.raises(SpecError, match="token ids joined by -"):
        registry.resolve("adablock:delimiters=a-b+threshold", "masked")
