"""`dus` and `spacing`: rounds and distances by hand, and against the naive rules."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.select.dus import rounds
from pardec.samplers.registry import resolve
from tests.reference import naive_selects as naive
from tests.samplers.heldout_answers import answered
from tests.samplers.masked.test_selects import LAWS, MASK, TOKENS
from tests.samplers.parity import FAMILIES, NEW, agree, agree_recorded
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45
STEPS = {
    "dus": [0, 2, 1, 2, 0, 2, 1, 2],
    "dus:base=4": [0, 1, 0, 1, 0, 1, 0, 1],
    "dus:base=8": [0] * 8,
    "dus:skip=0.88": [0, 2, 1, 2, 0, 2, 1, 2],  # 5, 1, 7 and 3 are unsure, and the last round takes all
    "dus:skip=0.92": [0, 2, 1, 2, 0, 2, 2, 2],  # of the second round .91 and .901 wait; one goes, since one has to
    "threshold:tau=0.9+spacing:gap=2": [0, 2, 0, 4, 0, 1, 0, 3],  # .99 .95 .91 .901 are no neighbours
    "threshold:tau=0.8+spacing:gap=2": [0, 2, 0, 4, 0, 1, 0, 3],  # .85 is one of .99
    "threshold:tau=0.9+spacing:gap=3": [0, 3, 1, 5, 0, 2, 1, 4],  # .99 .95 | .91 .901 | then one per forward
    "threshold:tau=0.9+spacing": [0, 3, 1, 5, 0, 2, 1, 4],  # at first 8 open positions ask for a distance of 4, then 3
    "threshold:tau=0.9+spacing:gap=8": [1, 5, 2, 7, 0, 4, 3, 6],
    "threshold:tau=0.9+spacing:gap=1": [0, 2, 0, 4, 0, 1, 0, 3],
}


@pytest.mark.parametrize("spec", STEPS)
def test_eight_tokens_by_hand(spec: str) -> None:
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == STEPS[spec]
    assert got.tokens[0].tolist() == list(TOKENS)


def test_rounds_of_any_width() -> None:
    assert rounds(1, 2) == (0,)
    assert rounds(6, 2) == (0, 1, 1, 0, 1, 1)
    assert rounds(7, 2) == (0, 1, 1, 0, 1, 1, 0)
    for base in (2, 3, 5):
        for width in range(1, 70):
            each = rounds(width, base)
            assert [{at for at, t in enumerate(each) if t == level} for level in range(max(each) + 1)] == (
                naive.dilated(width, base)
            )
    for width in (2, 4, 8, 16, 32, 64):
        assert max(rounds(width, 2)) + 1 == math.log2(width)


def test_given_tokens_and_short_blocks_leave_rounds_out() -> None:
    row = [0, MASK, MASK, MASK, 0, MASK, 0, MASK]  # nothing of the first round is open, and 2 of the second
    got = run(table(LAWS), "dus", request([row], [0], block_length=8))
    assert got.trace.commit_step[0].tolist() == [-1, 1, 0, 1, -1, 1, -1, 1]
    got = run(table(LAWS), "dus", request([[MASK] * 5], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == [0, 1, 0, 1, 2]


def of_rows(family: str) -> Iterator[int]:
    """Each row's own block length, in turn: all that it generates where that is less, but on a grid from position 0."""
    return cycle([4] * len(NEW) if "sdar" in family else [min(8, new) for new in NEW])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("base", "skip"), [(2, 0.0), (3, 0.0), (2, 0.5), (2, 1.0)])
def test_rounds_are_the_naive_rule(family: str, base: int, skip: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    widths = of_rows(family)
    agree(f"dus:base={base},skip={skip}", lambda: naive.DUS(next(widths), base, skip), family=family, **length)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tau", "gap", "base"), [(0.3, 2, 2), (0.2, None, 2), (0.2, None, 4), (0.1, 5, 2)])
def test_spacing_is_the_naive_rule(family: str, tau: float, gap: int | None, base: int) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    widths, name = of_rows(family), "none" if gap is None else gap

    def rule() -> Any:
        return naive.spacing(naive.threshold(tau), next(widths), gap, base)

    agree(f"threshold:tau={tau}+spacing:gap={name},base={base}", rule, family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_both_are_the_naive_rules_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "dus", lambda: naive.DUS(8, 2, 0.0))
    agree_recorded(name, "dus:skip=0.3", lambda: naive.DUS(8, 2, 0.3))
    widths = cycle([16, 16, 9])  # the last row is shorter than a block
    make = lambda: naive.spacing(naive.threshold(0.3), next(widths), None)  # noqa: E731
    agree_recorded(name, "threshold:tau=0.3+spacing", make, block_length=16)


def test_the_order_is_known_before_a_forward() -> None:
    """`dkv_greedy` asks for what will be committed; with `skip` that is not known."""
    model, given = toy(sharp=1.2), prompts((4, 7))
    got = fill(model, "dus@dkv_greedy", given, (9, 12), block_length=8)
    alone = fill(model, "dus@dkv_greedy", given[1:], (12,), block_length=8, seeds=[101])
    assert same(alone, 0, got, 1)
    for row, start in enumerate((4, 7)):
        plain = fill(model, "dus", [given[row]], (9, 12)[row], block_length=8)
        length = int(got.trace.lengths[row])
        assert got.trace.commit_step[row, start:length].tolist() == plain.trace.commit_step[0, start:length].tolist()
    with pytest.raises(SpecError):
        resolve("dus:skip=0.5@dkv_greedy")


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("dus:base=1", "base must be at least 2, got 1"),
        ("dus:skip=1.5", r"skip must lie in \[0, 1\], got 1.5"),
        ("threshold+spacing:gap=0", "gap must be at least 1, got 0"),
        ("threshold+spacing:base=1", "base must be at least 2, got 1"),
    ],
)
def test_bad_parameters(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        resolve(spec)


@pytest.mark.seeds("arXiv:2506.19037")
def test_the_number_of_forwards_is_known_and_spacing_leaves_no_two_near_each_other() -> None:
    for block, forwards in ((32, 5), (16, 8), (8, 12)):
        right, result = answered("tiny-dream", "records", "dus", 6, block_length=block)
        assert set(result.nfe) == {forwards}
        assert right == 6
    right, result = answered("tiny-dream", "arithmetic", "threshold:tau=0.5+spacing:gap=3", 10)
    for when in result.trace.commit_step:
        for step in range(when.max() + 1):
            at = torch.from_numpy(when == step).nonzero()[:, 0]
            assert (at.diff() >= 3).all()
    plain, _ = answered("tiny-dream", "arithmetic", "threshold:tau=0.5", 10)
    assert right > plain
