"""`suffix`: of the masks after the block a window and the last ones are computed; the model does not see others."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.masked import compatibility
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.masked.query.suffix import State, SuffixWindow
from tests.reference import naive_query as naive
from tests.samplers.query_parity import agree, queried
from tests.samplers.toys import EOS, MASK, fill, prompts, request, run, same, toy

LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)


def test_a_window_and_the_last_position_by_hand() -> None:
    got = fill(toy(), "suffix:window=2+sequential", prompts((5,)), 12)
    first, second, last = (*range(11), 16), (*range(15), 16), tuple(range(17))
    assert queried(got) == [first] * 4 + [second] * 4 + [last] * 4
    assert got.tokens_fed == (4 * (12 + 16 + 17),)
    assert queried(fill(toy(), "suffix:window=0,tail=0+sequential", prompts((5,)), 8))[0] == tuple(range(9))
    # With a cache the window is queried when a block is entered, and a block by itself at other steps.
    got = fill(toy(), "suffix:window=2+sequential@dual", prompts((5,)), 12)
    assert queried(got)[:6] == [first, (5, 6, 7, 8), (5, 6, 7, 8), (5, 6, 7, 8), second, (9, 10, 11, 12)]
    got = fill(toy("dream"), "suffix:window=2+leftmost+sequential@prefix", prompts((5,)), 12)
    assert queried(got)[:3] == [first, (5, 6, 7, 8, 9, 10, 16), (5, 6, 7, 8, 9, 10, 16)]


def test_the_last_position_is_that_of_each_row() -> None:
    got = fill(toy(), "suffix:window=0+sequential", prompts((5, 2)), (12, 7))
    assert [queried(got, row)[0] for row in range(2)] == [(*range(9), 16), (*range(6), 8)]


def test_where_blocks_move_each_row_keeps_its_masks_until_it_enters_a_block_or_one_shrinks() -> None:
    """Of blocks from 0 on in rows of 12: the first row enters one, that of the second grows, of the third shrinks."""
    rule, asked = SuffixWindow(window=2), request([[MASK] * 12] * 3, [0] * 3)
    state, block_start = State(np.zeros((3, 12), dtype=bool), np.full(3, -1), np.full(3, -1)), np.zeros(3, dtype=int)
    for started, ends, seen in (
        ([True] * 3, [4, 4, 8], [[4, 5, 11], [4, 5, 11], [8, 9, 11]]),
        ([True, False, False], [6, 6, 6], [[6, 7, 11], [4, 5, 11], [6, 7, 11]]),
        ([False, False, False], [6, 6, 7], [[6, 7, 11], [4, 5, 11], [6, 7, 11]]),
        ([False, False, False], [6, 3, 6], [[6, 7, 11], [3, 4, 11], [6, 7, 11]]),
    ):
        canvas: Any = SimpleNamespace(
            moving=True, length=12, total=np.full(3, 12), block_start=block_start,
            block_started=np.array(started), block_end=np.array(ends),
        )  # fmt: skip
        assert [row.nonzero()[0].tolist() for row in rule.visible(canvas, asked, state)] == seen


def test_tokens_that_were_given_after_the_block_stay() -> None:
    row = [1, 2, *[MASK] * 8, 3, MASK, MASK, MASK]
    got = run(toy(), "suffix:window=0,tail=0+sequential", request([row], [2]))
    assert queried(got)[0] == (0, 1, 2, 3, 4, 5, 10)
    assert got.tokens[0, 10] == 3


@pytest.mark.parametrize(("window", "tail"), [(3, 1), (0, 2)])
@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_step_by_step(name: str, window: int, tail: int) -> None:
    agree(name, f"suffix:window={window},tail={tail}", naive.suffix(window, tail))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    "cache", ["none", "dual", "prefix", "dkv", "vicinity:before=2,after=1,warmup=0", "spa", "mlcache"]
)
@pytest.mark.covers(1)
def test_no_token_depends_on_masks_that_are_left_out(family: str, cache: str) -> None:
    """Longer canvases whose additional masks are all left out give the same blocks, with any cache."""
    spec = f"suffix:window=2,tail=0+threshold:tau=0.3@{cache}"
    if cache == "spa":  # computes a share of the answer, so that more of it is more to compute
        spec = spec.replace("spa", "spa:response=1")
    short, long = (fill(toy(family, sharp=1.2), spec, prompts((5,)), new) for new in (14, 40))
    stop = 5 + 12
    assert short.tokens[0, :stop].tolist() == long.tokens[0, :stop].tolist()
    assert short.trace.commit_step[0, :stop].tolist() == long.trace.commit_step[0, :stop].tolist()


REST = (
    "sequential",
    "dsb+threshold:tau=0.3",
    "adablock:delimiters=1-2-3-4+threshold:tau=0.3",
    "wino+threshold:tau=0.3",
    "remdm+threshold:tau=0.3",
    "lopa+threshold:tau=0.3",
    "prophet+threshold:tau=0.3",
)


@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "dkv"])
@pytest.mark.parametrize("rest", REST)
@pytest.mark.covers(1)
def test_a_window_that_reaches_the_end_changes_nothing(rest: str, cache: str) -> None:
    model, options = toy("dream", sharp=1.2), {"stop_ids": (EOS,)}
    plain, wide = (
        fill(model, f"{head}{rest}@{cache}", prompts(LENGTHS), NEW, **options) for head in ("", "suffix:window=99+")
    )
    for row in range(len(NEW)):
        assert same(plain, row, wide, row)


def test_slots_are_those_of_what_is_left() -> None:
    """A forward reads as many keys as there are visible positions."""
    loop = MaskedLoop(toy(), registry.resolve("suffix:window=2+threshold@dual"), request([[1, 2, *[MASK] * 20]], [2]))
    loop.step()
    plan = loop.forward.groups[0].plan
    assert plan.positions.tolist() == [[*range(8), 21]]
    assert plan.slots.tolist() == [list(range(9))]
    assert plan.lengths.tolist() == [9]
    assert plan.uniform == 9


def test_sliding_windows_refuse_it() -> None:
    """Sliding windows count slots, which `suffix` renumbers."""
    model = toy()
    model.decoder.config = replace(model.decoder.config, window=4)
    with pytest.raises(SpecError, match="layers with sliding windows"):
        fill(model, "suffix+threshold", prompts((3,)), 8)


def test_images_refuse_it() -> None:
    asked = request([[3, MASK]], [1], conditions=(object(),))
    with pytest.raises(SpecError, match="suffix leaves out"):
        compatibility.check(registry.resolve("suffix+threshold"), request=asked)
