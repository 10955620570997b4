"""Dream's schedule by hand, compared with the naive decoder; the distribution of its random positions."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import torch

from pardec.samplers.masked.ops.schedule import commit_share, times
from pardec.samplers.ops.rank import top_as_published
from tests.grids import chequered
from tests.reference import naive_schedules as naive
from tests.samplers.eight_tokens import SURE, steps_of
from tests.samplers.schedule_checks import agree, check_a_held_row, first_sets
from tests.samplers.spec_checks import commits_at, refused_specs
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, resolved, same, toy

test_eight_tokens_by_hand = commits_at(
    [
        # t = 1, .75025, .5005, .25075: int(8 * .250), int(7 * .333), int(5 * .499), all: 1, 2, 2, 3 tokens
        ("timesteps:steps=4", [1, 3, 1, 3, 0, 2, 2, 3]),
        # int(8 * .125) = 0: the first step owes nothing and makes no forward; the last one has two left
        ("timesteps", [1, 5, 2, 6, 0, 4, 3, 6]),
        ("timesteps:steps=8", [1, 5, 2, 6, 0, 4, 3, 6]),
        ("timesteps:steps=1", [0] * 8),
        # t = 1, .75: int(8 * .25) = 2; then all
        ("timesteps:steps=2,eps=0.5", [0, 1, 1, 1, 0, 1, 1, 1]),
        ("margin+timesteps:steps=4", [1, 3, 1, 3, 0, 2, 2, 3]),
        ("timesteps:steps=4,alg_temp=0", [1, 3, 1, 3, 0, 2, 2, 3]),
        ("timesteps:steps=4,alg_temp=0.0001", [1, 3, 1, 3, 0, 2, 2, 3]),  # so cold that the best are drawn
    ]
)


def test_the_steps_are_shared_out_over_the_blocks() -> None:
    """Two steps per block: int(4 * .4995) = 1, then the other three."""
    assert steps_of("timesteps:steps=4", block_length=4) == [0, 1, 1, 1, 2, 3, 3, 3]


def test_a_count_is_of_open_positions() -> None:
    """Four of eight are given: int(4 * .250) = 0, so the clock goes on to int(4 * .333) = 1; then int(3 * .499) = 1."""
    assert steps_of("timesteps:steps=4", row=[6, 0, 6, 0, 6, 0, 6, 0]) == [1, -1, 2, -1, 0, -1, 2, -1]


@pytest.mark.parametrize(("family", "steps"), chequered(FAMILIES, [None, 1, 3, 5, 12, 64]))
@pytest.mark.covers(1)
def test_as_the_naive_decoder(family: str, steps: int | None) -> None:
    text = "none" if steps is None else steps
    model = toy(family, seed=3, sharp=1.2)
    agree(model, f"timesteps:steps={text}", naive.timesteps(), steps)
    agree(model, f"entropy+timesteps:steps={text},eps=0.05", naive.timesteps(0.05), steps, propose="entropy")
    agree(model, f"timesteps:steps={text},alg_temp=0.3", naive.timesteps(alg_temp=0.3), steps)


def test_many_steps_make_no_more_forwards_than_tokens() -> None:
    got = fill(toy(sharp=1.2), "timesteps:steps=512", prompts((3, 5)), (8, 6))
    assert got.nfe[0] <= 8
    assert got.nfe[1] <= 6


def test_without_ties_the_published_order_is_the_same() -> None:
    one, other = (
        fill(toy(sharp=1.2), f"timesteps:steps=5,reference={flag}", prompts((3, 5)), 8) for flag in ("true", "false")
    )
    assert all(same(one, row, other, row) for row in range(2))


def test_positions_are_drawn_without_replacement_by_the_softmax_of_their_scores() -> None:
    """Two of five at the first of two steps: P{i, j} = p_i p_j / (1 - p_i) + p_j p_i / (1 - p_j)."""
    rows = 4000
    weight = np.exp(np.array(SURE[:5]) / 0.3)
    p = weight / weight.sum()
    found = first_sets("timesteps:steps=2,alg_temp=0.3", rows, 2, range(5))
    chi = 0.0
    for i, j in combinations(range(5), 2):
        expected = rows * p[i] * p[j] * (1 / (1 - p[i]) + 1 / (1 - p[j]))
        chi += (found.get((i, j), 0) - expected) ** 2 / expected
    assert chi < 30  # 9 degrees of freedom: mean 9, and over 30 once in 2,000 seeds


def test_times_and_shares() -> None:
    assert times(np.array([2, 1]), 0.5).tolist() == [[1.0, 0.75, 0.5], [1.0, 0.5, 0.0]]
    assert commit_share(np.array([2, 1, 2]), 0.5).tolist() == [[0.25, 1.0], [1.0, 1.0], [0.25, 1.0]]
    assert commit_share(np.array([16]), 1e-3)[0, :2] == pytest.approx([0.0624375, 0.0665955], abs=1e-6)
    assert commit_share(np.array([3]), 1e-3).dtype == np.float32


def test_published_ties_are_those_of_topk_over_the_whole_row() -> None:
    score = torch.tensor([[1.0, 1.0, 0.5, 1.0, 1.0, 1.0], [0.2, 0.9, 0.9, 0.9, 0.1, -torch.inf]])
    lo, hi, length, count = np.array([30, 2]), np.array([36, 7]), np.array([40, 9]), np.array([3, 2])
    window = lo[:, None] + np.arange(6)
    window[1, 5] = 9  # past its end
    found = top_as_published(score, count, window, length)
    for row in range(2):
        whole = torch.full((int(length[row]),), -torch.inf)
        whole[lo[row] : hi[row]] = score[row, : hi[row] - lo[row]]
        expected = sorted((whole.topk(int(count[row])).indices - lo[row]).tolist())
        assert found[row].nonzero()[:, 0].tolist() == expected


@pytest.mark.parametrize("select", ["fixed:steps=1", "timesteps:steps=1", "confident:tau=none,steps=1"])
@pytest.mark.parametrize("more", ["", "@window", "+slowfast", "+dsb", "+multiblock"])
def test_published_ties_where_a_step_owes_more_than_the_window_has(select: str, more: str) -> None:
    spec = f"{select},reference=true{more}"
    if not resolved(spec):
        pytest.skip("refused by name")
    whole = fill(toy(sharp=1.2), spec, prompts((3, 6)), (9, 5))
    assert (whole.tokens != MASK).all()
    assert same(fill(toy(sharp=1.2), spec, prompts((3, 6))[1:], 5, seeds=[101]), 0, whole, 1)


def test_a_row_held_with_nothing_open_owes_nothing_and_keeps_its_clock() -> None:
    check_a_held_row("timesteps:steps=4")


test_bad_parameters_are_refused = refused_specs(
    [
        ("steps=0", "steps must be at least 1, got 0"),
        ("eps=1", r"eps must lie in \[0, 1\), got 1.0"),
        ("eps=-0.1", r"eps must lie in \[0, 1\)"),
        ("eps=nan", r"eps must lie in \[0, 1\), got nan"),
        ("alg_temp=-1", "alg_temp must be at least 0, got -1.0"),
        ("alg_temp=1e-41", "alg_temp must be 0, or from 1e-06"),
        ("alg_temp=1e300", "alg_temp must be 0, or from 1e-06"),
        ("alg_temp=inf", "alg_temp must be at least 0, got inf"),
    ],
    before="timesteps:",
)
