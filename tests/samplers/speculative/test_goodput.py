"""Lengths by goodput: against all choices there are, fitted costs, load, and changing acceptance."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from pardec.models.errors import SpecError
from pardec.samplers.speculative.length._goodput import Costs, lengths
from pardec.samplers.speculative.length.goodput import Goodput
from tests.samplers.ar_toys import rows, run
from tests.samplers.voices import (
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


def test_one_row_alone_has_the_k_of_the_formula() -> None:
    # (1 - .8^(k+1)) / (1 - .8) / (1 + .1 k): 1, 1.636, 2.033, 2.271, 2.401, 2.459, 2.470, 2.448
    assert lengths(np.array([0.8]), 10, Costs(1, 0.1, 0, 0), 0).tolist() == [6]
    assert lengths(np.array([0.8]), 4, Costs(1, 0.1, 0, 0), 0).tolist() == [4]


def test_under_load_nothing_is_drafted() -> None:
    costs = Costs(1, 0.1, 0.01, 0)
    drafted = [int(lengths(np.full(count, 0.6), 8, costs, 0).max()) for count in (1, 16, 64, 256, 1024)]
    assert drafted[0] >= 3
    assert drafted == sorted(drafted, reverse=True)
    assert drafted[-1] == 0


def test_rows_that_are_accepted_more_draft_more() -> None:
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


@pytest.mark.parametrize("c", [0.05, 0.2, 0.5])
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


@pytest.mark.parametrize(
    ("part", "said"), [({"c": -1}, "c must be at least 0, got -1"), ({"prior": 0}, "prior must lie in")]
)
def test_values_out_of_range_are_refused(part: dict[str, float], said: str) -> None:
    with pytest.raises(SpecError, match=f"goodput: {said}"):
        Goodput(**part)  # type: ignore[arg-type]
