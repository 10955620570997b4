"""Dimple's confident decoding: by hand, against the naive decoder, and special cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.grids import chequered
from tests.reference import naive_schedules as naive
from tests.samplers.eight_tokens import steps_of
from tests.samplers.heldout_answers import answered
from tests.samplers.schedule_checks import agree, check_a_held_row
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, request, run, same, table, toy

STEPS = [
    # Four pass. Then, times an eighth apart: t = 4/8, int(4 (1 - .376 / .5)) = 0, int(4 (1 - .251 / .5)) = 1;
    # t = 3/8, int(3 (1 - .126 / .375)) = 1; t = 2/8, int(2 (1 - .126 / .25)) = 0, and the last time takes both.
    ("confident:tau=0.9", [0, 2, 0, 3, 0, 1, 0, 3]),
    # Off: 1; t = 7/8, int(7 (1 - .5005 / .875)) = 2; t = 5/8, int(5 (1 - .251 / .625)) = 2; the last step takes 3.
    ("confident:tau=none,steps=4", [1, 3, 1, 3, 0, 2, 2, 3]),
    ("confident:tau=1,steps=4", [1, 3, 1, 3, 0, 2, 2, 3]),  # nothing exceeds 1
    ("entropy+confident:tau=0.1,steps=4", [1, 3, 1, 3, 0, 2, 2, 3]),  # nor does minus an entropy
    ("confident:tau=0", [0] * 8),
    ("confident:tau=0.9,steps=2", [0, 1, 0, 1, 0, 1, 0, 1]),  # the second step is the last
    ("confident:tau=0.9,steps=1", [0] * 8),
    # .99 passes. Then late by the clock: t = 7/8, int(7 (1 - .334 / .875)) = 4, though .667 is below .875 too.
    ("confident:tau=0.98,steps=3", [1, 2, 1, 2, 0, 1, 1, 2]),
    ("confident:tau=0.9,order=left", [0, 1, 0, 2, 0, 3, 0, 4]),
    ("confident:tau=0.9,steps=3,order=left", [0, 1, 0, 2, 0, 2, 0, 2]),
]


def the_share_of_masks_is_of_what_the_block_held() -> None:
    """Times 0.5 apart in each block: .95 .91 pass, t = 2/4, so only the last time is below; then .99 .901, likewise."""
    assert steps_of("confident:tau=0.9,steps=8", block_length=4) == [0, 1, 0, 1, 2, 3, 2, 3]


def the_threshold_is_strict() -> None:
    """Four equally likely tokens: a score of exactly 1/4 reaches `threshold`'s tau, but does not exceed this one's."""
    distributions = torch.zeros(3, 7)
    distributions[:, :4] = 0.25
    query = request([[6] * 3], [0], block_length=3)
    assert run(table(distributions), "threshold:tau=0.25", query).nfe == (1,)
    assert run(table(distributions), "confident:tau=0.25", query).nfe == (2,)
    assert run(table(distributions), "confident:tau=0.249", query).nfe == (1,)


@pytest.mark.parametrize(("family", "steps"), chequered(FAMILIES, [None, 1, 3, 7, 40]))
@pytest.mark.covers(1)
def test_as_the_naive_decoder(family: str, steps: int | None) -> None:
    text = "none" if steps is None else steps
    model = toy(family, seed=3, sharp=1.2)
    agree(model, f"confident:tau=0.6,steps={text}", naive.confident(0.6), steps)
    agree(model, f"confident:tau=none,steps={text}", naive.confident(None), steps)
    agree(model, f"margin+confident:tau=0.3,eps=0.1,steps={text}", naive.confident(0.3, 0.1), steps, propose="margin")
    agree(model, f"confident:tau=0.6,order=left,steps={text}", naive.confident(0.6, order="left"), steps)


def test_left_without_a_threshold_is_left_to_right() -> None:
    one = fill(toy("dream", sharp=1.2), "confident:tau=none,order=left", prompts((3, 5)), (9, 6))
    other = fill(toy("dream", sharp=1.2), "leftmost+sequential", prompts((3, 5)), (9, 6))
    assert all(same(one, row, other, row) for row in range(2))


def test_without_ties_the_published_order_is_the_same() -> None:
    one, other = (
        fill(toy(sharp=1.2), f"confident:tau=0.7,steps=5,reference={flag}", prompts((3, 5)), 8)
        for flag in ("true", "false")
    )
    assert all(same(one, row, other, row) for row in range(2))


def test_a_row_held_with_nothing_open_owes_nothing_and_keeps_its_clock() -> None:
    check_a_held_row("confident:steps=4")


test_bad_parameters_are_refused = refused_specs(
    [
        ("tau=1.5", r"tau must lie in \[0, 1\], got 1.5"),
        ("tau=-0.3", r"tau must lie in \[0, 1\], got -0.3"),
        ("steps=0", "steps must be at least 1, got 0"),
        ("eps=1", r"eps must lie in \[0, 1\), got 1.0"),
        ("order=right", "order must be one of score, left, got 'right'"),
    ],
    before="confident:",
)


@pytest.mark.seeds("arXiv:2505.16990")
def test_a_threshold_of_one_is_a_token_a_step_and_lower_ones_prefilling_and_fixed_tokens_do_as_told() -> None:
    """With threshold 1 the authors' clock leaves two tokens for the last step."""
    for spec, steps in STEPS:
        assert steps_of(spec) == steps, spec
    the_share_of_masks_is_of_what_the_block_held()
    the_threshold_is_strict()
    assert steps_of("confident") == steps_of("confident:tau=0.95") != steps_of("confident:tau=0.9")
    each_row_goes_by_its_own_scores()
    results = [answered("tiny-dream", "lists", f"confident:tau={tau}", 3)[1] for tau in (1, 0.99, 0.5)]
    assert all(gained == [1] * 30 + [2] for gained in results[0].trace.gained)
    steps = [sum(result.nfe) for result in results]
    assert steps[0] > steps[1] > steps[2]
    prefilled = answered("tiny-dream", "lists", "confident:tau=1@prefix", 3)[1]
    assert sum(prefilled.tokens_fed) < 0.8 * sum(results[0].tokens_fed)
    model = toy("dream", seed=3, sharp=1.2)
    given = prompts((9, 12), seed=1)
    plain, cached = (fill(model, f"confident:tau=1{cache}", given, 8, block_length=8) for cache in ("", "@prefix"))
    first = [np.abs(a - b).max() for a, b in zip(plain.trace.commit_score, cached.trace.commit_score, strict=True)]
    assert 0 < max(first) < 0.5  # what the cache changes of a probability: measured, and not nothing
    rows = [[*prompt, 3, MASK, MASK, 5, MASK, MASK] for prompt in given]
    fixed = run(model, "confident:tau=0.3", request(rows, [9, 12], block_length=6))
    for row, prompt in zip(fixed.tokens, given, strict=True):
        assert (row[len(prompt)], row[len(prompt) + 3]) == (3, 5)


def each_row_goes_by_its_own_scores() -> None:
    """Row 0 has five sure tokens, row 1 none: as alone, the schedule commits int(5 (1 - .5005)) = 2, then the rest."""
    distributions = torch.full((10, 7), 0.01)
    distributions[:5, 1], distributions[:5, 0] = 0.94, 0.01
    distributions[5:, :5] = torch.tensor([0.5, 0.12, 0.12, 0.12, 0.12])
    for at in range(5):
        distributions[5 + at, :2] += torch.tensor([-0.02, 0.02]) * at
    query = request([[6] * 5, [6] * 10], [0, 5], block_length=5)
    both = run(table(distributions), "confident:tau=0.9,steps=2", query)
    assert both.trace.commit_step[0, :5].tolist() == [0] * 5
    assert both.trace.commit_step[1, 5:].tolist() == [0, 0, 1, 1, 1]
