"""Lengths by goodput: compared with all possible choices; fitted costs, load, and changing acceptance."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.samplers.speculative.length.goodput import Costs, Goodput, lengths, prefixes
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import (
    NEW,
    RAGGED,
    best_fixed,
    context,
    greedy,
    named,
    near,
    outcome,
    speed,
    switching,
    target,
    written,
)
from tests.samplers.joint_distributions import WORLDS, measure


def rate(uniform: np.ndarray, k: np.ndarray, costs: Costs, context: float) -> float:
    tokens = sum(a**j for a, count in zip(uniform, k, strict=True) for j in range(count + 1))
    fed = float(k.sum()) + len(k)
    return float(tokens) / (costs.fixed + costs.draft * k.max() + costs.token * fed + costs.context * context)


@pytest.mark.parametrize("seed", range(12))
def test_no_other_lengths_make_more_tokens_a_second(seed: int) -> None:
    drawn = np.random.RandomState(seed)
    uniform = drawn.rand(3)
    costs = Costs(1.0, *drawn.choice([0.0, 0.05, 0.2, 0.6], 3))
    found = lengths(uniform, 4, costs, 2.0)
    best = max(rate(uniform, np.array(k), costs, 2.0) for k in product(range(5), repeat=3))
    assert rate(uniform, found, costs, 2.0) == pytest.approx(best)


@pytest.mark.seeds("arXiv:2406.14066")
def test_one_row_alone_has_the_k_of_the_formula() -> None:
    under_load_nothing_is_drafted()
    rows_that_are_accepted_more_draft_more()
    of_equal_rates_the_shorter_drafts_are_taken()
    the_context_of_all_rows_is_paid()
    test_measured_costs_are_found_again()
    assert Costs.fitted([(1, 1, 1, 3), (2, 1, 1, 2), (3, 1, 1, 1)]).draft == 0, "no cost is negative"
    a_round_begins_without_the_estimates_of_the_one_before()
    test_acceptance_is_counted_up_to_the_first_rejection_and_fades()
    test_one_row_drafts_what_gains_the_most_tokens_over_cost()
    for seed in range(6):
        test_no_other_lengths_make_more_tokens_a_second(seed)
    # (1 - .8^(k+1)) / (1 - .8) / (1 + .1 k): 1, 1.636, 2.033, 2.271, 2.401, 2.459, 2.470, 2.448
    assert lengths(np.array([0.8]), 10, Costs(1, 0.1, 0, 0), 0).tolist() == [6]
    assert lengths(np.array([0.8]), 4, Costs(1, 0.1, 0, 0), 0).tolist() == [4]


def under_load_nothing_is_drafted() -> None:
    costs = Costs(1, 0.1, 0.01, 0)
    drafted = [int(lengths(np.full(count, 0.6), 8, costs, 0).max()) for count in (1, 16, 64, 256, 1024)]
    assert drafted[0] >= 3
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[-1] == 0


def of_equal_rates_the_shorter_drafts_are_taken() -> None:
    """1.25 tokens for 1.25: as many as 1 for 1, by the drafter's forward or by the position fed."""
    assert lengths(np.array([0.25]), 1, Costs(1, 0.25, 0, 0), 0).tolist() == [0]
    rate, counts = prefixes(np.array([[0.25]]), Costs(0.75, 0, 0.25, 0), 0, 1)
    assert (rate, counts.tolist()) == (1, [0])


def the_context_of_all_rows_is_paid() -> None:
    """Texts of 20 and 60 tokens at .01 each cost .8: (1 - .8^(k+1)) / (1.8 + .1 k) is greatest at 8, not at 7."""
    stage, controller = context(written([[1] * 20, [1] * 60])), Goodput(0.1, 0.0, 0.01, prior=0.8)
    assert controller.budget(12, stage, controller.start(stage)).tolist() == [8, 8]


def a_round_begins_without_the_estimates_of_the_one_before() -> None:
    stage, controller = context(written([[1]])), Goodput()
    state = controller.start(stage)
    state.survival = np.full((1, 4), 0.5)
    controller.budget(3, stage, state)
    assert state.survival.shape == (1, 0)


def rows_that_are_accepted_more_draft_more() -> None:
    found = lengths(np.array([0.95, 0.2, 0.6]), 8, Costs(1, 0.05, 0.1, 0), 0)
    assert found[0] > found[2] > found[1]


def test_measured_costs_are_found_again() -> None:
    truth, drawn = Costs(3.0, 0.7, 0.02, 0.001), np.random.RandomState(1)
    seen = []
    for _ in range(30):
        forwards, fed, context = drawn.randint(0, 9), drawn.randint(1, 50), drawn.randint(10, 2000)
        seconds = truth.fixed + truth.draft * forwards + truth.token * fed + truth.context * context
        seen.append((float(forwards), float(fed), float(context), seconds + 0.01 * drawn.randn()))
    found = Costs.fitted(seen)
    assert (found.draft, found.token, found.context) == pytest.approx(
        (truth.draft, truth.token, truth.context), rel=0.05
    )
    same = Costs.fitted([(3.0, 4.0, 100.0, 2.0)] * 5)  # nothing tells these apart: together they explain the time
    assert same.fixed + 3 * same.draft + 4 * same.token + 100 * same.context == pytest.approx(2.0)


def test_acceptance_is_counted_up_to_the_first_rejection_and_fades() -> None:
    stage = context(written([[1], [2], [3]]))
    controller = Goodput(decay=0.5)
    state = controller.start(stage)
    controller.observe(outcome([4, 4, 0], [4, 1, 0]), stage, state)
    assert (state.tested.tolist(), state.accepted.tolist()) == ([4, 2, 0], [4, 1, 0])
    controller.observe(outcome([0, 1, 2], [0, 1, 0]), stage, state)
    assert (state.tested.tolist(), state.accepted.tolist()) == ([2, 2, 1], [2, 1.5, 0])


@pytest.mark.parametrize("c", [*(pytest.param(c, marks=pytest.mark.slow) for c in (0.05, 0.5)), 0.2])
def test_it_is_within_three_percent_of_the_best_fixed_length_and_beyond_where_acceptance_changes(c: float) -> None:
    controller = Goodput(c=c, token=0)
    for alphas, least in (((0.9, 0.3, 0.8, 0.1), 1.1), ((0.9,), 0.97), ((0.2,), 0.97)):
        uniform = switching(alphas, 600 // len(alphas), 10)
        assert speed(controller, uniform, c, 10) >= least * best_fixed(uniform, c, 10)


def test_drafting_is_tried_again_after_a_bad_time() -> None:
    stage, controller = context(written([[1]])), Goodput(c=0.3)
    state, drafted = controller.start(stage), []
    for _ in range(80):
        drafted.append(int(controller.budget(10, stage, state)[0]))
        controller.observe(outcome(drafted[-1:], [0]), stage, state)
    assert drafted[0] > 0
    assert 0 < sum(k > 0 for k in drafted[-40:]) < 20


@pytest.mark.parametrize("measured", ["true", "false"])
def test_greedy_decoding_is_kept_whatever_the_clock_says(measured: str) -> None:
    with named(near=near()):
        done = run(target(), f"model:name=near,k=4+goodput:measured={measured}", RAGGED, NEW)
    assert rows(done) == greedy()


def test_given_costs_leave_nothing_to_the_clock() -> None:
    with named(near=near()):
        one, two = (run(target(), "model:name=near,k=4+goodput", RAGGED, NEW, temperature=1.0) for _ in range(2))
    assert rows(one) == rows(two)
    assert one.trace.drafted == two.trace.drafted


def test_measured_costs_are_asked_for_with_different_lengths_first() -> None:
    with named(near=near()):
        done = run(target(), "model:name=near,k=4+goodput:measured=true", [[1, 2]], 60)
    assert done.trace.drafted[0][1:7] == (4, 0, 2, 4, 0, 2)


# --- where the drafter says how likely each token is accepted ---


def estimating(count: int) -> Any:
    """The context of rows for which a module with a confidence head drafts."""
    stage = context(written([[1]] * count))
    module = DraftModule.__new__(DraftModule)
    torch.nn.Module.__init__(module)
    module.estimates_acceptance = True
    stage.request = SimpleNamespace(temperature=0.0, draft_model=module)
    return stage


def cut(controller: Goodput, confidence: np.ndarray) -> list[int]:
    """The number of tokens that each row drafts, level by level as shapes request them."""
    count, most = confidence.shape
    stage = estimating(count)
    state = controller.start(stage)
    budget = controller.budget(most, stage, state)
    counts, live = np.zeros(count, dtype=int), budget > 0
    for step in range(most):
        sure = torch.from_numpy(np.where(live, confidence[:, step], 0)).float()
        stopped = controller.stop(sure, step, stage, state)
        assert stopped is not None
        live = live & ~stopped.numpy()
        counts += live
    return counts.tolist()


def test_one_row_drafts_what_gains_the_most_tokens_over_cost() -> None:
    """c = 0.2 and 0.1 per token: (1, 1.9, 2.62, 2.98, 2.998) / (1.3, 1.4, 1.5, 1.6, 1.7) is greatest for three."""
    confidence = np.array([[0.9, 0.8, 0.5, 0.05]])
    rates = [1 / 1.3, 1.9 / 1.4, 2.62 / 1.5, 2.98 / 1.6, 2.998 / 1.7]
    assert int(np.argmax(rates)) == 3
    assert cut(Goodput(c=0.2, token=0.1), confidence) == [3]
    assert cut(Goodput(c=0.2, token=0.1), confidence[:, :2]) == [2]
    # .7, .49 and .343 tokens are worth .3 each, and .24 are not: (1, 1.7, 2.19, 2.533, 2.773) / (1.5, 1.8, .., 2.7).
    assert cut(Goodput(c=0.2, token=0.3), np.full((1, 4), 0.7)) == [3]
    # A doubtful first token spoils what is sure after it: each adds 0.05 tokens and costs more.
    assert cut(Goodput(c=0.2, token=0.1), np.array([[0.05, 1.0, 1.0, 1.0]])) == [0]


@pytest.mark.parametrize("seed", range(20))
def test_no_length_of_one_row_makes_more_tokens_a_second_than_its_estimates_choose(seed: int) -> None:
    random = np.random.RandomState(seed)
    confidence, token = random.rand(1, 6) ** 0.3, float(random.choice([0.01, 0.05, 0.2]))
    survival = np.concatenate(([1.0], confidence[0].cumprod()))
    rates = [survival[: k + 1].sum() / (1.1 + token * (k + 1)) for k in range(7)]
    assert cut(Goodput(c=0.1, token=token), confidence) == [int(np.argmax(rates))]


@pytest.mark.parametrize("seed", range(8))
def test_no_prefixes_of_several_rows_make_more_tokens_a_second(seed: int) -> None:
    random = np.random.RandomState(seed)
    survival, costs = random.rand(3, 4).cumprod(1), Costs(1.0, 0.3, float(random.choice([0.02, 0.1])), 0.01)

    def of(k: tuple[int, ...]) -> float:
        tokens = 3 + sum(survival[row, :count].sum() for row, count in enumerate(k))
        return float(tokens / (1.0 + 0.3 * 2 + costs.token * (3 + sum(k)) + 0.01 * 5))

    rate, counts = prefixes(survival, costs, 5, 2)
    best = max(of(k) for k in product(range(5), repeat=3))
    assert (rate, of(tuple(counts))) == (pytest.approx(best), pytest.approx(best))


def test_rows_that_are_surer_draft_more_and_under_load_none_does() -> None:
    confidence = np.array([[0.9, 0.9, 0.9, 0.9], [0.9, 0.3, 0.9, 0.9], [0.1, 0.9, 0.9, 0.9]])
    assert cut(Goodput(c=0.1, token=0.2), confidence) == [4, 1, 0]
    assert cut(Goodput(c=0.1, token=0.0), confidence) == [4, 4, 4]
    assert cut(Goodput(c=3.0, token=0.2), confidence) == [0, 0, 0]  # by the counts, before any forward


def test_draws_that_estimates_cut_have_the_joint_distribution_of_the_target() -> None:
    """Costs are such that drafts of these random drafters are cut everywhere."""
    for reading in measure("dflash:name=draft,k=3+goodput:token=0.0001", WORLDS["5 tokens, length 4"], 4000):
        assert reading.z < 4, reading
        assert reading.distance < reading.noise + 4 * reading.spread, reading
