"""The choice between rounds with and without drafts, with scripted costs: what it settles on, and what trials lose."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.samplers.pace import LOST, ROUNDS, Pace, RoundTimer


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
    """Of 200 texts of 64 tokens, in 4 runs: a round drafts three tokens, each accepted with the chance of its text."""
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


class PlainCosts:
    """Rounds of one kind: weight, tokens and seconds of each."""

    def __init__(self) -> None:
        self.rounds = np.zeros((0, 3))

    @property
    def weight(self) -> float:
        return float(self.rounds[:, 0].sum())

    def mean(self, values: np.ndarray) -> float:
        return float((self.rounds[:, 0] * values).sum()) / self.weight

    @property
    def seconds(self) -> float:
        return self.mean(self.rounds[:, 2])

    def add(self, tokens: int, seconds: float) -> None:
        longest = 2 * self.seconds if len(self.rounds) >= 4 else seconds
        self.rounds[:, 0] *= 0.985
        self.rounds = np.concatenate((self.rounds, [[1, tokens, min(seconds, longest)]]))

    def rate(self, spread: float | None = None) -> float:
        """Tokens per second; with `spread`, two deviations of the mean above it."""
        mean = self.mean(self.rounds[:, 1])
        around = self.weight * self.mean((self.rounds[:, 1] - mean) ** 2)
        more = 0.0 if spread is None else 2 * (around + spread) ** 0.5
        return (self.weight * mean + more) / (self.weight * self.seconds)


class PlainPace:
    """The choice for a batch in plain Python: a trial, what it may lose, and the rest after it."""

    def __init__(self, rows: int) -> None:
        self.rows, self.kinds, self.drafting = rows, {False: PlainCosts(), True: PlainCosts()}, False
        self.wait = self.lost = self.checked = self.total = self.saved = 0.0
        self.since = self.check = 0
        self.last: bool | None = None

    def begin(self) -> None:
        plain = self.kinds[False]
        if len(plain.rounds) >= 8 and not self.drafting and self.saved > -24 * plain.seconds and not self.hopeless:
            self.wait, self.since = 0.0, 32

    @property
    def hopeless(self) -> bool:
        """Whether drafts lose by two deviations of their mean."""
        plain, drafted = self.kinds[False], self.kinds[True]
        return len(drafted.rounds) >= 2 and drafted.rate(40.0 * self.rows) <= plain.rate()

    def drafts(self) -> bool:
        plain, drafted = self.kinds[False], self.kinds[True]
        if self.wait <= 0 and self.check == 0:
            if self.drafting and self.since >= 128:
                self.check, self.checked = 5, 0.0
            elif not self.drafting and len(plain.rounds) >= 8 and (self.since >= 32 or not len(drafted.rounds)):
                self.drafting, self.lost, self.since = True, 0.0, 0
                drafted.rounds[:, 0] *= min(1.0, 64 / max(drafted.weight, 1))
        return self.drafting and self.check == 0

    def add(self, drafted: bool, tokens: int, seconds: float, rounds: int) -> None:
        if self.last in (None, drafted):
            self.kinds[drafted].add(tokens, seconds)
        self.last, self.total, self.since = drafted, self.total + seconds * rounds, self.since + rounds
        self.wait -= seconds * rounds
        if self.check:
            self.check -= 1
            self.checked += seconds - tokens / self.kinds[True].rate()
            if self.check == 0:
                self.wait, self.since = max(0.0, self.checked) / 0.005, 0
        elif self.drafting:
            loss = seconds - tokens / self.kinds[False].rate()
            self.lost, self.saved = max(0.0, self.lost + loss), 0.999 * self.saved - loss
            one = self.kinds[False].seconds
            risk = min(max(0.02 * self.total, 6 * one), 10 * one)
            slower = len(self.kinds[True].rounds) >= 2 and self.kinds[True].rate() < self.kinds[False].rate()
            if (slower and self.lost > risk) or self.hopeless:
                self.drafting, self.wait, self.since = False, self.lost / 0.005, 0


@pytest.mark.parametrize("seed", range(12))
def test_every_choice_is_that_of_a_plain_version(seed: int) -> None:
    generator, rows = np.random.RandomState(seed), 1 + seed % 3
    pace, plain, ways = Pace(rows), PlainPace(rows), list[bool]()
    cost, gained = 1.0, 2.0
    for number in range(1500):
        if number % 300 == 0:  # acceptance and costs change along a text
            cost, gained = generator.uniform(1.0, 2.5), generator.uniform(1.0, 3.0)
            for each in (pace, plain):
                each.begin()
        ways.append(pace.drafts())
        assert ways[-1] == plain.drafts(), number
        seconds = generator.lognormal(0, 0.2) * (cost if ways[-1] else 1) * (20 if generator.rand() < 0.01 else 1)
        tokens = int(rows + generator.poisson(rows * (gained - 1)) if ways[-1] else rows)
        rounds = 1 + (pace.untimed if seed % 2 else 0)
        for each in (pace, plain):
            each.add(ways[-1], tokens, seconds, rounds)
    assert 0 < np.mean(ways) < 1


class Network:
    """Something that rates are kept for."""


def test_rates_are_kept_for_a_network_a_key_and_a_class_of_batch_sizes() -> None:
    network = Network()

    def paced(rows: int, *key: object, of: object = network) -> Pace:
        timer = RoundTimer(of, lambda: 0.0, *key)
        timer.begin(rows)
        return timer.pace

    one, two = paced(1, "auto"), paced(2, "auto")
    assert one is not two
    assert paced(1, "auto") is one
    assert paced(3, "auto") is two
    assert paced(1, "auto:copy=suffix") is not one
    assert paced(1, "auto", of=Network()) is not one


def test_a_round_is_timed_when_a_row_has_left() -> None:
    timer = RoundTimer(Network(), lambda: 0.0, "auto")
    timer.begin(2)
    timer.end(np.ones(2))
    timer.untimed, timer.passed = 5, 2
    timer.begin(2)
    assert (timer.started, timer.untimed, timer.passed) == (None, 4, 3)
    timer.begin(1)
    assert (timer.started, timer.untimed, timer.passed) == (0.0, 0, 0)


@pytest.mark.parametrize(("saved", "drafts"), [(5.0, True), (-20.0, True), (-30.0, False)])
def test_a_request_begins_with_drafts_unless_they_have_lost_much(saved: float, drafts: bool) -> None:
    network = Network()
    first = RoundTimer(network, lambda: 0.0, "auto")
    first.begin(1)
    for _ in range(ROUNDS):
        first.pace.add(False, 1, 1.0)
    first.pace.saved, first.pace.wait = saved, 500.0
    assert not first.begin(1)
    assert RoundTimer(network, lambda: 0.0, "auto").begin(1) is drafts
