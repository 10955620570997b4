"""The stop at a likely rejection: its counts, its estimates, and its cost compared with fixed lengths."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.length.calibrated import Calibrated
from pardec.samplers.speculative.length.unsure import Unsure
from tests.samplers.fake_draft_model import best_fixed, context, outcome, speed, switching, written


def it_stops_when_a_rejection_is_likely_enough() -> None:
    stage = context(written([[1], [2]]))
    controller = Calibrated(h=0.5, buckets=10)
    state = controller.start(stage)
    assert controller.budget(5, stage, state).tolist() == [5, 5]
    # Nothing seen: a token is believed to be accepted as often as the middle of its bucket says.
    assert controller.stop(torch.tensor([0.81, 0.62]), 0, stage, state).tolist() == [False, False]  # .85, .65
    assert controller.stop(torch.tensor([0.62, 0.81]), 1, stage, state).tolist() == [False, False]  # .5525
    assert controller.stop(torch.tensor([0.99, 0.81]), 2, stage, state).tolist() == [False, True]  # .525, .47
    controller.budget(5, stage, state)
    assert controller.stop(torch.tensor([0.99, 0.81]), 0, stage, state).tolist() == [False, False]  # a new round


def only_tokens_up_to_the_first_rejection_are_counted() -> None:
    stage = context(written([[1], [2], [3]]))
    controller = Calibrated(buckets=10, decay=1.0)
    state = controller.start(stage)
    controller.budget(3, stage, state)
    for step, said in enumerate((0.95, 0.55, 0.15)):
        controller.stop(torch.tensor([said] * 3), step, stage, state)
    controller.observe(outcome([3, 3, 2], [1, 3, 2]), stage, state)
    assert state.tested[:, [9, 5, 1]].tolist() == [[1, 1, 0], [1, 1, 1], [1, 1, 0]]
    assert state.accepted[:, [9, 5, 1]].tolist() == [[1, 0, 0], [1, 1, 1], [1, 1, 0]]
    assert state.tested.sum() == 7
    # Two tokens of the prior at .55 and one rejection.
    assert controller.acceptance(state, np.array([5, 5, 5])) == pytest.approx([1.1 / 3, 2.1 / 3, 2.1 / 3])


def counts_fade() -> None:
    stage = context(written([[1]]))
    controller = Calibrated(buckets=2, decay=0.5)
    state = controller.start(stage)
    for _ in range(2):
        controller.budget(1, stage, state)
        controller.stop(torch.tensor([0.9]), 0, stage, state)
        controller.observe(outcome([1], [1]), stage, state)
    assert state.tested.tolist() == [[0, 1.5]]
    assert state.accepted.tolist() == [[0, 1.5]]


def test_an_overconfident_drafter_is_found_out() -> None:
    drawn = np.random.RandomState(3)
    sure = drawn.beta(2, 1, (600, 10))
    uniform = sure**2
    for c, least in ((0.05, 1.0), (0.2, 1.0), (0.5, 0.83)):
        found = speed(Calibrated(), uniform, c, 10, sure)
        assert found >= least * best_fixed(uniform, c, 10)
        assert found > 1.05 * speed(Unsure(), uniform, c, 10, sure)


@pytest.mark.parametrize(
    ("c", "least"),
    [
        pytest.param(0.05, 0.99, marks=pytest.mark.slow),
        pytest.param(0.2, 0.95, marks=pytest.mark.slow),
        (0.5, 0.79),
    ],
)
def test_it_is_not_far_from_the_best_fixed_length(c: float, least: float) -> None:
    for alphas in ((0.9, 0.3, 0.8, 0.1), (0.9,), (0.2,)):
        uniform = switching(alphas, 600 // len(alphas), 10)
        assert speed(Calibrated(), uniform, c, 10) >= least * best_fixed(uniform, c, 10)


@pytest.mark.seeds("arXiv:2405.19715")
def test_the_threshold_of_a_cost_takes_fewer_units_a_token_than_any_fixed_length_where_difficulty_is_mixed() -> None:
    """Easy and hard tokens at random, in long runs, and with a hard end; then tiny-llama keeps its tokens."""
    it_stops_when_a_rejection_is_likely_enough()
    only_tokens_up_to_the_first_rejection_are_counted()
    counts_fade()
    a_draft_ends_where_one_more_token_promises_less_than_its_cost()
    bounds_by_hand()
    rows_copied_count_for_neither_gain_nor_cost()
    random = np.random.RandomState(3)
    streams = {
        "random": np.where(random.rand(250, 10) < 0.7, 0.97, 0.3),
        "runs": np.repeat(random.choice([0.97, 0.3], 25), 10)[:, None].repeat(10, 1),
        "ends": np.where(np.arange(10) >= random.geometric(0.25, (250, 1)), 0.1, 0.98),
    }
    for name, uniform in streams.items():
        for c in (0.1, 0.4):
            units = 1 / speed(Calibrated(cost=str(c)), uniform, c, 10)
            assert units < 0.98 / best_fixed(uniform, c, 10), (name, c)
    model = pardec.load("tiny-llama", device="cpu")
    given = [each.prompt for each in pardec.task("lists").problems(split="heldout", n=3, seed=7)]
    plain = model.generate(given, sampler="sequential", max_new_tokens=32, stop_ids=[])

    def cost(spec: str) -> float:
        """Cost per token, where a drafting forward costs 0.4."""
        done = model.generate(given, sampler=f"model:name=tiny-llama-draft,{spec}", max_new_tokens=32, stop_ids=[])
        assert done.tokens == plain.tokens
        return (sum(done.nfe) + 0.4 * sum(done.draft_forwards)) / sum(map(len, done.tokens))

    adaptive = cost("k=8+calibrated:cost=0.4")
    assert adaptive < 0.9 * min(cost("k=8"), cost("k=8+calibrated"))


def bounds_by_hand() -> None:
    """A bucket from .5 to 1 begins at .75; at a cost of what is accepted, 1 at first, nothing is drafted."""
    stage = context(written([[1]]))
    for h, stops in ((0.25, False), (0.24, True)):
        controller = Calibrated(h=h, buckets=2)
        state = controller.start(stage)
        controller.budget(3, stage, state)
        assert bool(controller.stop(torch.tensor([0.9]), 0, stage, state)) == stops
    for cost, most in (("1", 0), ("0.99", 3)):
        controller = Calibrated(cost=cost)
        assert controller.budget(3, stage, controller.start(stage)).tolist() == [most]


def rows_copied_count_for_neither_gain_nor_cost() -> None:
    stage = context(written([[1], [2]]))
    controller = Calibrated(cost="0.5", decay=1)
    state = controller.start(stage)
    controller.budget(2, stage, state)
    done = outcome([2, 2], [1, 1])
    copied = replace(done.draft, ignores_length_controller=np.array([True, False]))
    controller.observe(replace(done, draft=copied), stage, state)
    assert (state.gained.tolist(), state.spent.tolist()) == ([1, 3], [1, 3])  # 2 tokens for 1 + .5 * 2
    state.tested[1, 0] = 2  # both were rejected: 2 / 4 is no more than the cost
    assert controller.budget(3, stage, state).tolist() == [3, 0]


def a_draft_ends_where_one_more_token_promises_less_than_its_cost() -> None:
    stage = context(written([[1]]))
    controller = Calibrated(cost="0.25", buckets=10, decay=1.0)
    state = controller.start(stage)
    assert controller.threshold(state).tolist() == [0.75]  # one token a unit, and nothing is known of acceptance
    assert controller.budget(4, stage, state).tolist() == [4]
    for step, p in enumerate((0.95, 0.95)):
        assert controller.stop(torch.tensor([p]), step, stage, state).tolist() == [False]
    controller.observe(outcome([2], [1]), stage, state)  # two tokens for 1 + 2 * 0.25; one of two was accepted
    assert controller.threshold(state) == pytest.approx([1 - 0.25 * (1 + 2) / (1 + 1.5) / (3 / 4)])


def test_rounds_of_another_drafter_do_not_count_for_the_rate() -> None:
    stage = context(written([[1]]))
    controller = Calibrated(cost="0.25", decay=1.0)
    state = controller.start(stage)
    controller.budget(3, stage, state)
    made = outcome([3], [3])
    copied = replace(made.draft, ignores_length_controller=np.array([True]))
    controller.observe(replace(made, draft=copied), stage, state)
    assert controller.threshold(state).tolist() == [0.75]


def test_nothing_is_drafted_at_a_cost_equal_to_what_is_accepted() -> None:
    """Two tokens of the prior and two rejections: a half."""
    stage = context(written([[1]]))
    controller = Calibrated(cost="0.5", decay=1.0)
    state, budgets = controller.start(stage), []
    for _ in range(3):
        budgets.append(int(controller.budget(3, stage, state)[0]))
        controller.stop(torch.tensor([0.5]), 0, stage, state)
        controller.observe(outcome([min(budgets[-1], 1)], [0]), stage, state)
    assert budgets == [3, 3, 0]


def test_nothing_is_drafted_at_a_cost_above_what_is_accepted() -> None:
    stage = context(written([[1]]))
    controller = Calibrated(cost="0.9", decay=0.5)
    state, budgets = controller.start(stage), []
    for _ in range(12):
        budgets.append(int(controller.budget(3, stage, state)[0]))
        if budgets[-1]:
            controller.stop(torch.tensor([0.5]), 0, stage, state)
        controller.observe(outcome([min(budgets[-1], 1)], [0]), stage, state)
    assert budgets[0] == 3
    assert budgets[1:4] == [0, 0, 0]
    assert 3 in budgets[4:]  # what is known of acceptance fades, and drafting is tried again


def test_the_cost_may_be_the_drafter_s_own() -> None:
    stage = context(written([[1]]), length=None)
    stage.model, stage.sampler.draft = None, SimpleNamespace(cost_ratio=lambda *_: 0.125, registered=("model", "draft"))
    assert Calibrated(cost="drafter").start(stage).cost == 0.125
    stage.sampler.draft.cost_ratio = lambda *_: None
    with pytest.raises(SpecError, match="cost=drafter, and model cannot estimate its cost"):
        Calibrated(cost="drafter").start(stage)
    with pytest.raises(SpecError, match="dflash drafts all in one"):
        registry.resolve("dflash:name=x+calibrated:cost=0.1", "ar")


@pytest.mark.parametrize("cost", ["0", "-1", "nan", "inf", "cheap"])
def test_a_cost_that_is_none_is_refused(cost: str) -> None:
    with pytest.raises(SpecError, match=f"calibrated: cost must be drafter or a number above 0, got '{cost}'"):
        Calibrated(cost=cost)
