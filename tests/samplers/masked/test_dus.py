"""`dus`: the rounds of a block by hand, and compared with the naive rule."""

from __future__ import annotations

import math

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.select.dus import rounds
from pardec.samplers.registry import resolve
from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import LAWS, MASK, steps_of
from tests.samplers.heldout_answers import answered
from tests.samplers.masked import test_spacing
from tests.samplers.parity import FAMILIES, agree, agree_recorded, block_lengths
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45
STEPS = {
    "dus": [0, 2, 1, 2, 0, 2, 1, 2],
    "dus:base=4": [0, 1, 0, 1, 0, 1, 0, 1],
    "dus:base=8": [0] * 8,
    "dus:skip=0.88": [0, 2, 1, 2, 0, 2, 1, 2],  # 5, 1, 7 and 3 are unsure, and the last round takes all
    "dus:skip=0.92": [0, 2, 1, 2, 0, 2, 2, 2],  # of the second round .91 and .901 wait; one goes, since one has to
}


def rounds_of_any_width() -> None:
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


def given_tokens_and_short_blocks_leave_rounds_out() -> None:
    row = [0, MASK, MASK, MASK, 0, MASK, 0, MASK]  # nothing of the first round is open, and 2 of the second
    assert steps_of("dus", row=row) == [-1, 1, 0, 1, -1, 1, -1, 1]
    got = run(table(LAWS), "dus", request([[MASK] * 5], [0], block_length=4))
    assert got.trace.commit_step[0].tolist() == [0, 1, 0, 1, 2]


def test_a_candidate_of_the_score_skip_does_not_wait() -> None:
    halves = torch.tensor([0.5, 0.5, 0.0, 0.0, 0.0]).expand(8, 5)
    done = run(table(halves), "dus:skip=0.5", request([[4] * 8], [0], block_length=8))
    assert done.trace.commit_step[0].tolist() == [0, 2, 1, 2, 0, 2, 1, 2]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("base", "skip"), [(2, 0.0), (3, 0.0), (2, 0.5), (2, 1.0)])
def test_it_is_the_naive_rule(family: str, base: int, skip: float) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    widths = block_lengths(family)
    agree(f"dus:base={base},skip={skip}", lambda: naive.DUS(next(widths), base, skip), family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "dus", lambda: naive.DUS(8, 2, 0.0))
    agree_recorded(name, "dus:skip=0.3", lambda: naive.DUS(8, 2, 0.3))


def test_the_order_is_known_before_a_forward() -> None:
    """`dkv_greedy` must know the coming commits, which are unknown with `skip`."""
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


@pytest.mark.seeds("arXiv:2506.19037")
def test_the_number_of_forwards_is_known_and_answers_stay_right() -> None:
    for spec, steps in STEPS.items():
        assert steps_of(spec) == steps, spec
    rounds_of_any_width()
    given_tokens_and_short_blocks_leave_rounds_out()
    test_a_candidate_of_the_score_skip_does_not_wait()
    test_it_is_the_naive_rule("llada", 2, 0.5)  # rows of a batch have blocks of several lengths
    test_spacing.test_equal_scores_go_to_the_lowest_position()
    test_spacing.test_falling_scores_leave_one_after_the_other_and_a_gap_is_rounded_down_twice()
    test_spacing.test_it_is_the_naive_rule("llada", 0.2, None, 4)
    for spec, steps in test_spacing.STEPS.items():
        assert steps_of(spec) == steps, spec
    for block, forwards in ((32, 5), (16, 8), (8, 12)):
        right, result = answered("tiny-dream", "records", "dus", 6, block_length=block)
        assert set(result.nfe) == {forwards}
        assert right == 6
