"""The search on candidates of known quality and cost, statistics against hand-computed numbers, small real runs."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.cli import run as command
from pardec.comparison.tuning import halving
from pardec.comparison.tuning.bench import Baseline, ProblemSet, split_problems
from pardec.comparison.tuning.confirming import MAX_CONFIRMED, Confirmation, confirm, level, problem_count
from pardec.comparison.tuning.fit import Fit
from pardec.comparison.tuning.halving import Outcome, SearchResult, Trial, max_candidates, search
from pardec.comparison.tuning.paired import drop, probability
from pardec.comparison.tuning.prepared import SearchRequest, prepare
from pardec.comparison.tuning.space import Candidate, Space
from pardec.models.errors import SpecError
from pardec.samplers.registry import cards
from pardec.samplers.spec import parse
from pardec.tasks import Problem, Task, task

# --- paired statistics ---


def test_interval_without_a_discordant_pair_is_the_closed_form() -> None:
    """Without a discordant pair the score test reduces to n d / (1 - d) = z^2, so d = z^2 / (n + z^2)."""
    result = drop([1.0] * 50, [1.0] * 50, level=0.9)
    z = 1.6448536
    assert result.points == 0
    assert result.high == pytest.approx(100 * z * z / (50 + z * z), abs=1e-4)
    assert result.low == pytest.approx(-result.high)


def test_interval_is_the_published_one() -> None:
    """Tango (1998): 44 pairs, one of them discordant; 95% interval: -0.060 to 0.118."""
    result = drop([1.0] * 44, [1.0] * 43 + [0.0])
    assert (result.lost, result.gained) == (1, 0)
    assert (result.low, result.high) == pytest.approx((-5.95, 11.8), abs=0.1)


@pytest.mark.parametrize(("lost", "gained", "n"), [(3, 1, 20), (0, 2, 15), (5, 5, 30), (9, 0, 9), (1, 0, 400)])
def test_interval_is_what_the_score_test_keeps(lost: int, gained: int, n: int) -> None:
    """Compared with the constrained likelihood maximized on a grid, and interval ends found by scanning."""

    def statistic(difference: float) -> float:
        gaining = np.linspace(max(0.0, -difference), (1 - difference) / 2, 20001)[1:-1]
        losing, rest = gaining + difference, 1 - 2 * gaining - difference
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = [k * np.log(p) for k, p in ((lost, losing), (gained, gaining), (n - lost - gained, rest)) if k]
        best = gaining[np.argmax(sum(terms))]
        return float((lost - gained - n * difference) / math.sqrt(n * (2 * best + difference * (1 - difference))))

    result = drop([1.0] * lost + [0.0] * gained + [1.0] * (n - lost - gained), [0.0] * lost + [1.0] * (n - lost))
    if result.high < 99.9:
        assert statistic(result.high / 100) == pytest.approx(-1.96, abs=0.02)
    if result.low > -99.9:
        assert statistic(result.low / 100) == pytest.approx(1.96, abs=0.02)


def test_swapping_the_samplers_mirrors_the_interval() -> None:
    a, b = [1.0, 1.0, 1.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0, 0.0]
    one, other = drop(a, b), drop(b, a)
    assert (one.points, one.low, one.high) == pytest.approx((-other.points, -other.high, -other.low))


def test_graded_scores_are_bootstrapped_and_never_certain() -> None:
    rng = np.random.default_rng(3)
    first = rng.uniform(0.5, 1.0, 80)
    second = first - rng.uniform(0.0, 0.2, 80)
    result = drop(list(first), list(second))
    error = 100 * (first - second).std() / math.sqrt(80)
    assert result.points == pytest.approx(100 * (first - second).mean())
    assert result.high - result.points >= 1.9 * error
    assert result == drop(list(first), list(second))
    assert drop([0.5] * 20, [0.5] * 20).high == pytest.approx(drop([1.0] * 20, [1.0] * 20).high)


def test_chance_is_the_score_test_at_the_bound() -> None:
    """If no pair differs, z = sqrt(n d / (1 - d)): 1.005 for 100 problems and 1 point, which is exactly one loss."""
    right = [1.0] * 100
    assert probability(right, right, 1.0) == pytest.approx(0.8426, abs=1e-4)
    assert probability(right, [0.0, *right[1:]], 1.0) == pytest.approx(0.5)
    assert probability(right[:8], [0.0, *right[1:8]], 1.0) < 0.2 < 0.6 < probability(right[:8], right[:8], 1.0) < 0.62
    assert probability(right, [0.0] * 5 + right[5:], 1.0) < probability(
        [0.0, *right[1:]], [1.0] + [0.0] * 5 + right[6:], 1.0
    )
    assert probability(right, right, 0.0) < 0.65
    graded = [0.9] * 50 + [0.5] * 50
    assert probability(graded, [x - 0.01 for x in graded], 1.0) == pytest.approx(0.5)
    assert probability(graded, [x - 0.1 for x in graded], 1.0) < 0.01


# --- the search ---


@dataclass
class World:
    """Candidates that are right with a known probability, at a known cost; records the measurements."""

    quality: Mapping[Candidate, float]
    cost: Mapping[Candidate, float]
    seed: int = 0
    decodes: int = 0
    seen: set[int] = field(default_factory=set)
    fails: frozenset[Candidate] = frozenset()

    def __call__(self, some: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        assert not self.seen & set(range(start, stop))
        self.seen |= set(range(start, stop))
        self.decodes += len(some) * (stop - start)
        return {one: [self._one(one, at) for at in range(start, stop)] for one in some}

    def _one(self, one: Candidate, at: int) -> Outcome | None:
        if one in self.fails:
            return None
        draw = random.Random(f"{self.seed}/{one.spec}/{at}").random()
        return Outcome(float(draw < self.quality[one]), self.cost[one], 10 * self.cost[one], self.cost[one] / 100)


BASE = Candidate("sequential")


def _candidates(count: int) -> list[Candidate]:
    return [Candidate(f"threshold:tau={0.5 + at / 1000:g}") for at in range(count)]


def _world(count: int, **more: object) -> tuple[list[Candidate], World, Candidate]:
    """Candidates whose quality falls with their cost, except one that is cheap and as good as the baseline."""
    some = _candidates(count)
    quality = {one: 0.3 + 0.7 * at / count for at, one in enumerate(some)} | {BASE: 1.0}
    cost = {one: 1.0 + at for at, one in enumerate(some)} | {BASE: 100.0}
    best = some[count // 4]
    quality[best] = 1.0
    return some, World(quality, cost, **more), best  # type: ignore[arg-type]


def _search(some: Sequence[Candidate], world: World, budget: int = 2000, problems: int = 10_000) -> SearchResult:
    return search(some, BASE, world, budget=budget, problems=problems, max_drop=1.0, cost="nfe")


@pytest.mark.parametrize("seed", range(5))
def test_search_finds_the_cheapest_that_keeps_the_quality(seed: int) -> None:
    some, world, best = _world(60, seed=seed)
    result = _search(some, world)
    assert result.trials[0].candidate == best


@pytest.mark.parametrize(("count", "budget"), [(60, 2000), (60, 1999), (13, 500), (4, 57), (1, 10), (200, 1100)])
def test_search_spends_its_budget_and_never_more(count: int, budget: int) -> None:
    some, world, _ = _world(count)
    result = _search(some, world, budget)
    assert result.spent == world.decodes <= budget
    assert (
        result.spent > budget - halving.FINALISTS * halving.REDUCTION - 2
    )  # less is left than one problem more would cost
    assert result.problems == len(world.seen)


def test_search_is_the_same_again_and_stops_where_problems_end() -> None:
    some, world, _ = _world(30)
    first = _search(some, world, problems=25)
    some, world, _ = _world(30)
    again = _search(some, world, problems=25)
    assert [s.candidate for s in first.trials] == [s.candidate for s in again.trials]
    assert world.seen == set(range(25))
    assert len(first.trials) == 30
    assert first.finalists <= halving.FINALISTS


def test_fast_and_wrong_is_dropped_as_losing_too_much() -> None:
    some, world, best = _world(20)
    poison = Candidate("prophet")
    result = _search([poison, *some], World({**world.quality, poison: 0.2}, {**world.cost, poison: 0.5}), budget=1500)
    (trial,) = [s for s in result.trials if s.candidate == poison]
    assert trial.reason == "loses too much"
    assert result.trials[0].candidate == best


def test_failed_candidates_go_and_problems_the_baseline_failed_count_for_nobody() -> None:
    some, world, best = _world(20)
    world.fails = frozenset({best})
    result = _search(some, world)
    assert next(s.reason for s in result.trials if s.candidate == best) == "failed"
    partly = Trial(best, "nfe")
    partly.add([Outcome(1, 1, 1, 1)] * 2, [None, Outcome(1, 1, 1, 1)])
    assert partly.reason == "failed"
    trial = Trial(best, "nfe")
    trial.add([None, Outcome(1, 1, 1, 1)], [Outcome(1, 1, 1, 1), Outcome(0, 3, 1, 1)])
    assert (trial.points, trial.mean("nfe"), trial.reason) == (100, 3, "")


def test_ties_go_to_the_simpler_then_to_the_earlier() -> None:
    plain, longer, later = Candidate("threshold+eos"), Candidate("credit+threshold+eos"), Candidate("factor+eos")
    one = {plain: 1.0, longer: 1.0, later: 1.0, BASE: 1.0}
    cost = {plain: 2.0, longer: 1.999, later: 2.0, BASE: 60.0}
    result = _search([longer, plain, later], World(one, cost), budget=100)
    assert [s.candidate for s in result.trials] == [plain, later, longer]


def test_where_quality_is_sure_cost_decides_and_a_gain_does_not_pay_for_it() -> None:
    better, cheaper, bad = (Candidate(f"threshold:tau={tau}") for tau in (0.99, 0.9, 0.5))
    right = {better: 20, cheaper: 18, bad: 17, BASE: 18}  # of every 20 problems
    cost = {better: 3.0, cheaper: 2.0, bad: 1.0, BASE: 9.0}

    def measure(some: Sequence[Candidate], start: int, stop: int) -> dict[Candidate, list[Outcome | None]]:
        places = range(start, stop)
        return {one: [Outcome(float(at % 20 < right[one]), cost[one], 1, 1) for at in places] for one in some}

    result = search([better, cheaper, bad], BASE, measure, budget=4000, problems=9999, max_drop=1.0, cost="nfe")
    assert [(s.candidate, s.points) for s in result.trials] == [(cheaper, 0), (better, -10), (bad, 5)]
    assert [s.reason for s in result.trials] == ["", "", "loses too much"]


def test_a_budget_without_a_problem_a_rung_is_refused() -> None:
    some, world, _ = _world(60)
    with pytest.raises(SpecError, match="too small for 60 candidates") as caught:
        _search(some, world, budget=100)
    assert str(4 * 61) in str(caught.value.hint)
    assert world.decodes == 0


@pytest.mark.parametrize("budget", [200, 2500, 10_000])
def test_room_leaves_the_first_rung_its_problems(budget: int) -> None:
    count = halving.max_candidates(budget)
    assert budget // halving.rungs(count) // (count + 1) >= halving.MIN_PROBLEMS
    assert budget // halving.rungs(count + 1) // (count + 2) < halving.MIN_PROBLEMS


# --- the confirmation ---


def _standing(candidate: Candidate, lost: int, gained: int = 0, n: int = 1000, cost: float = 2.0) -> Trial:
    trial = Trial(candidate, "nfe")
    base = [1.0] * (n - gained) + [0.0] * gained
    own = [0.0] * lost + [1.0] * (n - lost)
    trial.add([Outcome(x, 64, 1, 1) for x in base], [Outcome(x, cost, 1, 1) for x in own])
    return trial


def _confirm(lost: Sequence[int], n: int = 1000) -> tuple[str, Candidate | None, int]:
    some = _candidates(len(lost))
    known = {one: _standing(one, count, n=n) for one, count in zip(some, lost, strict=True)}
    verdict = confirm(list(known.values()), lambda look, one: [known[one[0]]], 1.0)
    return verdict.verdict, verdict.winner and verdict.winner.candidate, len(verdict.trials)


def test_the_first_that_holds_is_taken() -> None:
    some = _candidates(4)
    assert _confirm([0, 0]) == ("holds", some[0], 1)
    assert _confirm([30, 1, 0]) == ("holds", some[1], 2)
    # 8 of 1000 lie within one point, yet more than one point is possible.
    assert _confirm([8, 1]) == ("holds", some[1], 2)
    assert _confirm([9, 8, 30]) == ("within", some[1], 3)
    assert _confirm([30, 30, 30, 0]) == ("none", None, MAX_CONFIRMED)


def test_looks_share_the_error() -> None:
    """Three tests at 1.67% each: z = 2.128, so 449 problems without a loss confirm 1 point, and 448 do not."""
    assert 1 - level() == pytest.approx(2 * 0.05 / 3)
    assert problem_count(1.0) == 449
    one = Candidate("threshold")
    assert _standing(one, 0, n=449).drop(level()).high <= 1.0 < _standing(one, 0, n=448).drop(level()).high
    assert (problem_count(10.0), problem_count(0.0)) == (100, 500)


def test_false_advice_is_rarer_than_said() -> None:
    """Three candidates truly lose 1.2 points; at most 5% of the confirmations accept one with a bound of 1 point."""
    rng, some, wrong = np.random.default_rng(0), _candidates(3), 0
    for _ in range(200):
        losses = rng.binomial(450, 0.012, size=3)
        known = {one: _standing(one, int(lost), n=450) for one, lost in zip(some, losses, strict=True)}
        wrong += confirm(list(known.values()), lambda look, one, known=known: [known[one[0]]], 1.0).verdict == "holds"
    assert wrong <= 0.05 * 200


# --- the space ---


@pytest.fixture(scope="module")
def fit() -> Fit:
    return Fit.of("tiny-dream", {"device": "cpu"}, {})


@pytest.fixture(scope="module")
def space(fit: Fit) -> Space:
    return fit.space("sequential", None, (), mix=True)


def test_every_method_names_values_that_it_takes() -> None:
    for card in cards():
        known = {f.name for f in fields(card.make)}
        for name, values in card.make.tuning_grid.items():
            assert name in known, card.name
            for value in values:
                card.make(**{name: value})


def test_space_begins_with_the_default_and_holds_every_method_once(space: Space, fit: Fit) -> None:
    some = space.candidates(120, seed=0)
    assert some[0] == Candidate("threshold+eos")
    assert len({fit.spec(one) for one in some}) == len(some) == 120
    named = {part.name for one in some for part in parse(one.spec).parts}
    methods = {c.name for c in cards() if c.family == "masked" and c.stage not in ("cache", "propose")}
    random_canvases = {
        "selfcondition",
        "denoise",
        "renoise",
        "ancestral",
        "adaptive",
        "defer",
    }  # of models without a mask token
    assert methods - named == {"sequential", "oracle", "levenshtein"} | random_canvases  # which needs edit tokens
    caches = {parse(one.spec).cache for one in some} - {None}
    assert {cache.name for cache in caches if cache} >= {"dual", "prefix", "dkv", "vicinity"}
    assert all("eos" in one.spec for one in some)


def test_space_writes_specs_shortly_and_is_drawn_by_its_seed(space: Space) -> None:
    assert space.candidates(160, seed=1) == space.candidates(160, seed=1) != space.candidates(160, seed=2)
    assert space.of(["threshold:tau=0.9+eos@none", "confidence+threshold:fall=0.0+eos"])[0] == Candidate(
        "threshold+eos"
    )


def test_a_part_without_parameters_stands_for_all_its_values(space: Space) -> None:
    assert [one.spec for one in space.of(["factor+eos", "threshold:tau=0.42"])] == [
        "factor+eos",
        "factor:f=0.5+eos",
        "factor:f=1.5+eos",
        "factor:f=2.0+eos",
        "threshold:tau=0.42",
    ]


def test_caches_are_restricted_and_unknown_ones_refused(fit: Fit) -> None:
    some = fit.space("sequential", ["none", "dual:refresh=2"], (), mix=True)
    assert [one.spec for one in some.of(["threshold:tau=0.42"])] == [
        "threshold:tau=0.42",
        "threshold:tau=0.42@dual:refresh=2",
    ]
    assert {str(parse(one.spec).cache) for one in some.candidates(40, 0)} <= {"None", "dual:refresh=2"}
    with pytest.raises(SpecError, match="duall"):
        fit.space("sequential", ["duall"], (), mix=True)


def test_block_lengths_multiply_the_space(fit: Fit) -> None:
    some = fit.space("sequential", None, (16, 64), mix=True).of(["threshold:tau=0.42"])
    assert some == [Candidate("threshold:tau=0.42", 16), Candidate("threshold:tau=0.42", 64)]


def test_what_a_preset_leaves_at_one_token_a_forward_is_filled_in(space: Space) -> None:
    specs = [one.spec for one in space.candidates(120, seed=0)]
    assert "entropy+timesteps:steps=16+eos" in specs
    assert not any(one.startswith(("fixed+", "timesteps+", "origin+")) for one in specs)


# --- problems ---


def test_confirmation_problems_are_never_seen_in_tuning() -> None:
    tuning, confirmation = split_problems([task("arithmetic"), task("lists")], 80, 41, seed=3)
    assert (len(tuning.owners), len(confirmation.owners)) == (80, 41)
    prompts = [{p.prompt for _, p in chosen.owners} for chosen in (tuning, confirmation)]
    assert not prompts[0] & prompts[1]
    assert {owner.name for owner, _ in confirmation.owners} == {"arithmetic", "lists"}
    arithmetic = task("arithmetic")
    heldout = {p.prompt for p in arithmetic.problems("heldout", 41, 3)}
    assert {p.prompt for owner, p in confirmation.owners if owner is arithmetic} <= heldout
    owner, problem = confirmation.owners[1]
    assert confirmation.score(problem, owner.problems("heldout", 1, 3)[0].answer) == 1.0


@dataclass
class Fixed(Task):
    """A task with a single split, such as a file."""

    count: int
    name: str = "fixed"
    summary: str = ""

    def problems(self, split: str = "heldout", n: int | None = 50, seed: int = 7) -> list[Problem]:
        return [Problem(str(at), f"prompt {at}", "a") for at in range(self.count)][:n]

    def score(self, problem: Problem, text: str) -> float:
        return float(text == problem.answer)


@pytest.mark.parametrize(("count", "confirmed"), [(30, 15), (200, 40), (2, 1)])
def test_a_file_is_cut_in_two_by_the_seed(count: int, confirmed: int) -> None:
    tuning, confirmation = split_problems([Fixed(count)], 100, 40, seed=1)
    ids = [{p.id for _, p in chosen.owners} for chosen in (tuning, confirmation)]
    assert not ids[0] & ids[1]
    assert len(ids[1]) == confirmed
    assert len(ids[0]) == min(100, count - confirmed)
    assert ids[1] != {p.id for _, p in split_problems([Fixed(count)], 100, 40, seed=4)[1].owners} or count == 2


def test_one_problem_cannot_be_cut() -> None:
    with pytest.raises(SpecError, match="fixed has 1 problem"):
        split_problems([Fixed(1)], 10, 10, seed=0)


# --- true runs ---


def _small(**more: object) -> dict[str, object]:
    chosen = ["threshold:tau=0.9+eos", "threshold:tau=0.0+eos"]  # the second is one forward, and mostly wrong
    return {"samplers": chosen, "budget": 60, "confirm": 12, "max_drop": 10.0, "max_new_tokens": 32, **more}


@pytest.mark.slow
def test_a_true_run_advises_what_holds_and_never_what_is_fast_and_wrong(tmp_path: Path) -> None:
    model = pardec.load("tiny-dream", device="cpu")
    advice = pardec.tune(model, "arithmetic", out=tmp_path / "run", **_small())  # type: ignore[arg-type]
    assert advice.spec == "threshold+eos"
    baseline = next(one for one in advice.evidence if one["verdict"] == "baseline")
    winner = advice.evidence[0]
    assert winner["verdict"].startswith("advised")
    assert winner["nfe"] <= baseline["nfe"] / 2
    assert winner["drop"] <= 10.0
    poison = [one for one in advice.evidence if one["sampler"] == "threshold:tau=0.0+eos"]
    assert poison[-1]["nfe"] == 1.0
    assert poison[-1]["drop"] > 10.0
    assert json.loads((tmp_path / "run" / "advice.json").read_text())["spec"] == advice.spec
    rows = [json.loads(line) for line in (tmp_path / "run" / "rung-1" / "rows.jsonl").read_text().splitlines()]
    fresh = [json.loads(x) for x in (tmp_path / "run" / "confirmation-1" / "rows.jsonl").read_text().splitlines()]
    assert not {row["problem"] for row in rows} & {row["problem"] for row in fresh}
    assert len(rows) == advice.document["decodes"]["spent"] <= 60

    # Again with the folder: nothing is decoded anew, and the advice is the same.
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("rows.jsonl")}
    again = pardec.tune(model, "arithmetic", out=tmp_path / "run", resume=True, **_small())  # type: ignore[arg-type]
    assert {file: file.read_bytes() for file in before} == before
    assert again.evidence == advice.evidence
    with pytest.raises(SpecError, match="holds a run"):
        pardec.tune(model, "arithmetic", out=tmp_path / "run", **_small())  # type: ignore[arg-type]


def test_where_nothing_holds_the_baseline_is_advised_with_its_own_tokens() -> None:
    advice = pardec.tune(
        "tiny-dream", "lists", device="cpu", samplers=["random+fixed:steps=1"], budget=8, confirm=4, max_drop=1.0,
        max_new_tokens=8, block_lengths=[8],
    )  # fmt: skip
    assert advice.verdict in ("baseline", "default")
    assert advice.evidence[0]["drop"] <= 0
    assert advice.spec != "random+fixed:steps=1"
    assert "No tested candidate stays within 1 point" in advice.text


def test_tune_autoregressive_models_where_the_default_is_the_baseline() -> None:
    settings: dict[str, Any] = {"budget": 8, "confirm": 2, "max_new_tokens": 8, "device": "cpu"}
    advice = pardec.tune("tiny-llama", "arithmetic", samplers=["sequential", "lookup:k=5"], **settings)
    assert [(row["sampler"], row["measured"]) for row in advice.evidence] == [
        ("sequential", "confirmed"), ("lookup:k=5", "confirmed"), ("lookup:k=5", "rung 1"),
    ]  # fmt: skip
    with pytest.raises(SpecError, match="sequential is the sampler that others are compared with"):
        pardec.tune("tiny-llama", "arithmetic", samplers=["sequential"], **settings)
    fit = Fit.of("tiny-llama", {"device": "cpu"}, {})
    plan = prepare(fit, {"arithmetic": task("arithmetic")}, SearchRequest(budget=40))
    assert len(plan.candidates) == max_candidates(40)
    assert plan.baseline == Candidate(plan.space.default)
    assert plan.baseline not in plan.candidates


def test_confirm_without_a_finalist_where_the_default_is_the_baseline() -> None:
    class Decoder:
        def decode(self, stage: str, candidates: Sequence[Candidate], problems: ProblemSet) -> dict[Candidate, Any]:
            return {candidate: [Outcome(1.0, 9, 9, 1.0)] * len(problems.owners) for candidate in candidates}

    own, arithmetic = Candidate("sequential"), task("arithmetic")
    problems = ProblemSet(tuple((arithmetic, problem) for problem in arithmetic.problems(n=3)))
    baseline = Baseline(Decoder(), own, problems)  # type: ignore[arg-type]
    judgement = Confirmation(baseline, own, "nfe", lambda line: None).judge([], 1.0)
    assert judgement.verdict == "baseline"
    assert judgement.default is judgement.baseline is judgement.winner
    assert judgement.winner.mean("nfe") == 9


def test_command_prints_one_spec_and_the_evidence_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--budget", "30", "--confirm", "6", "--max-drop", "20", "--max-new-tokens", "8", "--device", "cpu"]
    ask = ["tune", "tiny-dream", "--task", "lists", "-s", "threshold:tau=0.9+eos", "--block-length", "4", *options]
    assert command(ask) == 0
    out, err = capsys.readouterr()
    assert out == "threshold+eos\n"
    assert "confirmed" in err
    assert "--block-length 4" in err
    assert command([*ask, "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["spec"], document["arguments"]) == ("threshold+eos", {"max_new_tokens": 8, "block_length": 4})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cost": "nfes"}, "did you mean 'nfe'"),
        ({"max_drop": -1.0}, "max_drop must be a number of points"),
        ({"samplers": ["treshold"]}, "unknown sampler"),
        ({"samplers": ["threshold"], "budget": 3}, "too small"),
        ({"task": "arithmetics"}, "arithmetic"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_what_cannot_be_is_refused_before_a_decode(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        pardec.tune("tiny-dream", **{"task": "arithmetic", "device": "cpu", **arguments})  # type: ignore[arg-type]


def test_prompts_without_answers_cannot_be_tuned_on() -> None:
    with pytest.raises(SpecError, match="has no score"):
        pardec.tune(
            "tiny-dream", prompts=["a", "b", "c", "d"], device="cpu", samplers=["threshold:tau=0.5"], budget=4,
            max_new_tokens=4,
        )  # fmt: skip


def test_lossy_caches_of_autoregressive_models_are_tried_only_where_they_are_named() -> None:
    fit = Fit.of("tiny-llama", {"device": "cpu"}, {})
    some = [one.spec for one in fit.space("sequential", None, (), mix=True).candidates(150, seed=0)]
    assert len(some) > 50
    assert not [spec for spec in some if "@" in spec or "superposed" in spec]
    named = fit.space("sequential", ["int8"], (), mix=True).candidates(20, seed=0)
    assert any("@int8" in one.spec for one in named)
