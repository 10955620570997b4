"""The choice between rounds with and without drafts, with scripted costs: what it settles on, and what trials lose."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.samplers.pace import LOST, ROUNDS, Pace


def played(
    costs: list[tuple[tuple[int, float], tuple[int, float]]], pace: Pace | None = None
) -> tuple[list[bool], float]:
    """The ways of rounds whose tokens and seconds are scripted for both, and seconds per token of all of them."""
    pace = pace or Pace()
    ways, tokens, seconds = list[bool](), 0, 0.0
    for cost in costs:
        ways.append(pace.drafts())
        gained, taken = cost[ways[-1]]
        pace.add(ways[-1], gained, taken)
        tokens, seconds = tokens + gained, seconds + taken
    return ways, seconds / tokens


@pytest.mark.parametrize(
    ("gained", "cost", "drafts"), [(1, 5.0, False), (2, 2.2, False), (2, 1.8, True), (5, 1.5, True)]
)
def test_the_faster_way_is_taken_after_the_first_rounds(gained: int, cost: float, drafts: bool) -> None:
    ways, _ = played([((1, 1.0), (gained, cost))] * 2000)
    assert set(ways[: 2 * ROUNDS + 2]) == {False, True}
    assert np.mean(ways[2 * ROUNDS + 2 :] if drafts else ~np.array(ways[2 * ROUNDS + 2 :])) > 0.85


@pytest.mark.parametrize(
    ("gained", "cost"), [(1, 1.02), (1, 1.1), (2, 2.1), (1, 1.5), (1, 5.0), (2, 2.5), (2, 1.9), (4, 1.5)]
)
def test_trials_lose_less_than_a_percent_against_the_better_way(gained: int, cost: float) -> None:
    pace = Pace()
    played([((1, 1.0), (gained, cost))] * (2 * ROUNDS + 2), pace)  # an earlier request
    _, per_token = played([((1, 1.0), (gained, cost))] * 3000, pace)
    assert per_token <= min(1.0, cost / gained) * (1 + 2 * LOST)


def test_noise_in_the_times_costs_less_than_three_percent() -> None:
    generator = np.random.default_rng(3)
    for gained, cost in ((1, 1.3), (2, 1.6), (2, 2.1)):
        noise = generator.lognormal(0, 0.3, size=(4000, 2))
        noise /= noise.mean(0)
        pace = Pace()
        costs = [((1, a), (gained, cost * b)) for a, b in noise.tolist()]
        played(costs[:100], pace)
        ways, _ = played(costs[100:], pace)
        share = np.mean(ways)  # by expected times
        mean = (share * cost + 1 - share) / (share * gained + 1 - share)
        assert mean <= 1.03 * min(1.0, cost / gained)


def test_rounds_that_other_programs_interrupt_change_nothing() -> None:
    generator = np.random.default_rng(5)
    slow = np.where(generator.random((3000, 2)) < 0.02, 20.0, 1.0).tolist()
    ways, _ = played([((1, a), (1, 1.2 * b)) for a, b in slow])
    assert np.mean(ways[50:]) < 0.1


def test_it_changes_its_mind_where_drafts_begin_to_be_accepted() -> None:
    before, after = ((1, 1.0), (1, 1.2)), ((1, 1.0), (4, 1.2))
    ways, _ = played([before] * 400 + [after] * 2000)
    assert np.mean(ways[50:400]) < 0.12
    assert np.mean(ways[-500:]) > 0.9


def test_the_first_round_of_a_way_does_not_count_since_it_catches_up() -> None:
    pace = Pace()
    for _ in range(ROUNDS):
        pace.add(pace.drafts(), 1, 1.0)
    assert pace.drafts()
    pace.add(True, 1, 100.0)
    assert pace.drafted.rounds == 0
    for _ in range(ROUNDS):
        assert pace.drafts()
        pace.add(True, 4, 1.0)
    assert pace.best


@pytest.mark.parametrize(("mean", "spread"), [(0.3, 0.15), (0.4, 0.2), (0.5, 0.2), (0.6, 0.2)])
@pytest.mark.parametrize("cost", [1.3, 1.55, 1.8])
def test_texts_of_unequal_gains_cost_less_than_three_percent(mean: float, spread: float, cost: float) -> None:
    """In 4 runs of 200 texts of 64 tokens: three are drafted a round accepted with a chance of each text."""
    taken, always = 0.0, 0.0
    for seed in range(4):
        generator, pace = np.random.default_rng(seed), Pace()
        for chance in generator.normal(mean, spread, size=200).clip(0.02, 0.98):
            pace.begin()
            missing = 64
            while missing > 0:
                drafts = pace.drafts()
                accepted = (generator.random(3) < chance).cumprod().sum()
                gained, seconds = (1 + int(accepted), cost) if drafts else (1, 1.0)
                seconds *= float(generator.lognormal(0, 0.1))
                pace.add(drafts, gained, seconds)
                taken, missing = taken + seconds, missing - gained
            always += 64 * cost / sum(chance**power for power in range(4))
    assert taken <= 1.03 * min(always, 4 * 200 * 64.0)
