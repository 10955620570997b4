"""benchmarks/methods.md has one row for each method, made from the committed figures, and pairs what it times."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import method_plans
import methods
import numpy as np
import pytest

from pardec.samplers import measured, registry

ROOT = Path(__file__).resolve().parents[1]


def test_every_method_has_exactly_one_row_and_those_of_its_further_plans() -> None:
    rows = [(row.name, row.family, row.model, row.task, row.spec, row.plain) for row in measured.rows()]
    wanted = [methods.key(methods.identity(card, plan)) for card, plan in methods.every()]
    missing = [str(name) for name, *rest in wanted if (name, *rest) not in rows]
    assert not missing, f"without a row; run python benchmarks/methods.py {' '.join(missing)}"
    assert rows == wanted, "rows of methods that are gone; run python benchmarks/methods.py --write"
    further = {(name, family) for family, names in method_plans.FURTHER.items() for name in names}
    count = Counter((row.name, row.family) for row in measured.rows())
    assert count == {(card.name, card.family): 1 for card in registry.cards()} | dict.fromkeys(further, 2)


def test_rows_without_figures_are_those_that_no_model_here_runs_and_those_that_wait() -> None:
    waiting = dict.fromkeys(row.name for row in measured.rows() if not row.problems and row.spec is not None)
    assert tuple(waiting) == method_plans.WAITING, f"run python benchmarks/methods.py {' '.join(waiting)}"


def test_page_is_what_the_rows_give() -> None:
    document = json.loads(measured.FILE.read_text())
    written = "run python benchmarks/methods.py --write"
    assert methods.complete(document["rows"]) == document["rows"], written
    assert methods.page(document) == (ROOT / "benchmarks" / "methods.md").read_text(), written


PAYS = ("gains", "faster", "level", measured.NOT_MEASURED)


def test_what_does_not_pay_has_a_reason() -> None:
    unexplained = [row.name for row in measured.rows() if row.verdict not in PAYS and not row.reason]
    assert unexplained == [], "say in REASONS or NEEDS of benchmarks/method_plans.py why they do not pay"


@pytest.mark.parametrize(
    ("card", "plan"),
    [(card, plan) for card, plan in methods.every() if plan.model],
    ids=lambda value: getattr(value, "name", getattr(value, "model", "")),
)
def test_plain_is_the_same_decoding_without_the_method(card: Any, plan: Any) -> None:
    """Only defaults, which are compared with themselves, stand on both sides."""
    spec, plain = (registry.resolve(one, card.family).spec for one in (plan.spec, plan.plain))
    assert card.name in {part.name for part in spec.every}
    assert str(spec) == str(plain) or card.name not in {part.name for part in plain.every}


def test_pairs_alternate_and_figures_are_sums_over_the_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 4 problems the plain decode takes 1, 2, 3, 4 seconds and 10 forwards, the method twice that and 5."""
    order = []

    def decode(model: Any, task: Any, problem: Any, seed: int, spec: str, arguments: Any) -> methods.Run:
        order.append((seed, spec))
        slow = 2 if spec == "lookup" else 1
        return methods.Run(float(slow == 1 or seed > 0), 10 / slow, 3 * (slow - 1), 20 * slow, (seed + 1.0) * slow)

    monkeypatch.setattr(methods, "decode", decode)
    plan = method_plans.Plan("tiny-llama", "copies", 4, "lookup", "sequential")
    found = measured.row(methods.measure(registry.find("lookup", "ar"), plan, None))  # type: ignore[arg-type]
    warm_up, timed = order[:2], order[2:]
    assert {spec for _, spec in warm_up} == {"lookup", "sequential"}
    assert timed == [
        (0, "sequential"), (0, "lookup"), (1, "lookup"), (1, "sequential"),
        (2, "sequential"), (2, "lookup"), (3, "lookup"), (3, "sequential"),
    ]  # fmt: skip
    assert (found.seconds, found.forwards, found.positions) == ((2, 2, 2), (0.5, 0.5, 0.5), (2, 2, 2))
    assert (found.right, found.plain_right, found.quality[0]) == (0.75, 1, -0.25)
    assert found.per_problem == (5, 3, 40)
    assert found.verdict == "loses"


def test_interval_is_that_of_a_normal_mean_and_of_a_ratio_of_sums() -> None:
    values = np.random.default_rng(1).normal(3.0, 1.0, 400)
    value, low, high = methods.resampled(values)
    assert value == pytest.approx(values.mean())
    half = 2.576 * values.std() / 20  # the 99% interval of a mean of 400
    assert (value - low, high - value) == (pytest.approx(half, rel=0.1), pytest.approx(half, rel=0.1))
    assert methods.resampled(values, 2 * values)[0] == pytest.approx(0.5)
    assert methods.resampled(np.array([1.0, 3.0]), np.array([1.0, 1.0]))[0] == 2
