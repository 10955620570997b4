"""`threshold`: every position whose score reaches a threshold that is fixed, falls per forward, or per filled share."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_masked, naive_selects
from tests.samplers import loop_parity
from tests.samplers.eight_tokens import LAWS, MASK, steps_of
from tests.samplers.heldout_answers import answered
from tests.samplers.masked import test_suffix
from tests.samplers.parity import FAMILIES, agree, agree_recorded
from tests.samplers.query_parity import queried
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

STEPS = {
    "threshold:tau=0.9": [0, 2, 0, 4, 0, 1, 0, 3],  # four pass, then one per forward
    "threshold:tau=1": [1, 5, 2, 7, 0, 4, 3, 6],
    "threshold:tau=0": [0] * 8,
    # Minus the entropies .067 .254 .401 .432 .588 1.113 1.292 1.380 nats
    "entropy+threshold:tau=-0.42": [0, 3, 0, 5, 0, 2, 1, 4],
    # Margins (4p - 1) / 3: .99 0.987, .95 0.933, .91 0.880, .901 0.868, .85 0.8
    "margin+threshold:tau=0.85": [0, 2, 0, 4, 0, 1, 0, 3],
    "margin+threshold:tau=0.87": [0, 3, 0, 5, 0, 2, 1, 4],
    # .9 | with four of eight left .9 (1 - .4 / 2) = .72 | three .675 | two .63 | one .585
    "threshold:relax=0.4": [0, 2, 0, 4, 0, 1, 0, 3],
    "threshold:relax=0.7": [0, 1, 0, 3, 0, 1, 0, 2],  # .9 | .585 | .4275 | .349
    "threshold:tau=0.94,relax=1": [0, 2, 1, 3, 0, 1, 1, 2],  # .94 | .705 | .3525 | .1175
}


test_eight_tokens_by_hand = commits_at(STEPS)


def test_two_blocks_by_hand() -> None:
    assert steps_of("threshold:tau=0.9", block_length=4) == [0, 1, 0, 2, 3, 4, 3, 5]


def test_it_falls_with_the_forwards() -> None:
    """At forward t it is max(tau, 1 - fall * t): with 0.7 everywhere and fall=0.1, forwards 0 to 2 commit one token."""
    distributions = torch.full((9, 8), 0.3 / 7)
    distributions[:, 1] = 0.7
    got = run(table(distributions), "threshold:tau=0.5,fall=0.1", request([[0, *[7] * 8]], [1], block_length=8))
    assert got.trace.commit_step[0].tolist() == [-1, 0, 1, 2, 3, 3, 3, 3, 3]


def the_share_that_is_open_is_that_of_the_block() -> None:
    """Two of four are open in each block after .95 and .91, or .99 and .901: .9 (1 - .8 / 2) = .54, then .36."""
    assert steps_of("threshold:relax=0.8", block_length=4) == [0, 1, 0, 2, 3, 4, 3, 5]
    # The last block has two: .99 passes .9, and one of two is open then.
    assert steps_of("threshold:relax=0.8", block_length=4, row=[MASK] * 6) == [0, 1, 0, 2, 3, 4]
    # What is given counts as committed, in its row alone.
    both = request([[0, MASK, MASK, 0], [MASK] * 4], [0, 0], block_length=4)
    got = run(table(LAWS), "threshold:relax=0.8", both)
    assert got.trace.commit_step.tolist() == [[-1, 0, 0, -1], [0, 1, 0, 2]]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tau", [0.9, 0.4, 0.3, 0])
@pytest.mark.covers(1)
def test_it_is_the_naive_rule(family: str, tau: float) -> None:
    model, given = toy(family, seed=1, sharp=1.2), prompts(loop_parity.LENGTHS, seed=1)
    loop_parity.compare(model, f"threshold:tau={tau}", naive_masked.threshold(tau), given, loop_parity.NEW)
    length = {} if "sdar" in family else {"block_length": 8}
    rule = naive_selects.Relaxing(tau, 0.4)
    agree(f"threshold:tau={tau},relax=0.4", lambda: rule, family=family, **length)


@pytest.mark.parametrize("name", ["llada", "dream"])
def test_it_is_the_naive_rule_on_recorded_checkpoints(name: str) -> None:
    agree_recorded(name, "threshold:tau=0.9,relax=0.4", lambda: naive_selects.Relaxing(0.9, 0.4))


@pytest.mark.parametrize(("score", "tau"), [("margin", 0.3), ("entropy", -1.2)])
def test_other_scores_are_held_against_it(score: str, tau: float) -> None:
    model, given = toy(seed=4, sharp=1.2), prompts(loop_parity.LENGTHS)
    rule = naive_masked.threshold(tau)
    loop_parity.compare(model, f"{score}+threshold:tau={tau}", rule, given, loop_parity.NEW)


@pytest.mark.parametrize("spec", ["threshold:tau=0.4{}", "threshold:tau=0.3,fall=0.2{}"])
def test_relaxing_by_nothing_changes_nothing(spec: str) -> None:
    model, given, new = toy("dream", sharp=1.2), prompts((4, 7, 2)), (9, 5, 11)
    one, other = (fill(model, spec.format(more), given, new) for more in ("", ",relax=0"))
    assert all(same(one, row, other, row) for row in range(3))


test_bad_parameters = refused_specs(
    [
        ("threshold:tau=-0.5", r"tau must lie in \[0, 1\], got -0.5"),
        ("margin+threshold:tau=-0.5", r"tau must lie in \[0, 1\], got -0.5"),
        ("entropy+threshold:tau=-1,relax=0.3", "relax=0.3 would raise a negative tau=-1.0"),
    ]
)


@pytest.mark.seeds("arXiv:2601.17917")
def test_a_threshold_that_falls_as_the_block_fills_takes_fewer_forwards_and_answers_stay_right() -> None:
    for spec in STEPS:
        if "relax" in spec:
            assert steps_of(spec) == STEPS[spec], spec
    the_share_that_is_open_is_that_of_the_block()
    test_suffix.test_the_last_position_is_that_of_each_row()
    test_suffix.test_where_blocks_move_each_row_keeps_its_masks_until_it_enters_a_block_or_one_shrinks()
    suffix = fill(
        toy(), "suffix:window=2+sequential", prompts((5,)), 12
    )  # two masks after each block, and the last position
    assert queried(suffix) == [(*range(11), 16)] * 4 + [(*range(15), 16)] * 4 + [tuple(range(17))] * 4
    each = {relax: answered("tiny-dream", "arithmetic", f"threshold:relax={relax}", 12) for relax in (0, 0.3, 0.8)}
    forwards = {relax: sum(result.nfe) for relax, (_, result) in each.items()}
    assert forwards[0.8] < forwards[0]
    assert forwards[0.3] <= forwards[0]
    assert each[0.3][0] >= each[0][0] - 1
