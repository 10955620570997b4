"""Every figure on hand-made rows, with numbers computed by hand or taken from published tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pardec.comparison import metrics


def row(index: int = 0, **fields: Any) -> dict[str, Any]:
    """A finished row of a problem."""
    base: dict[str, Any] = {
        "task": "t",
        "index": index,
        "seed": 0,
        "error": None,
        "score": 1.0,
        "lenient": 1.0,
        "tokens": [5, 6, 3],
        "generated": 2,
        "nfe": 4,
        "nfe_to_end": 3,
        "tokens_fed": 40,
        "peak_memory": 100,
        "device": "a",
        "batch": {"id": f"b{index}", "seconds": 2.0, "rows": 1, "forwards": 10},
    }
    return base | fields


def failed(index: int = 0) -> dict[str, Any]:
    """A row that failed: every figure is null."""
    kept = {"task": "t", "index": index, "seed": 0, "error": "SpecError: no"}
    return {**dict.fromkeys(row()), **kept, "device": "a"}


def places(rows: list[dict[str, Any]]) -> set[metrics.ProblemKey]:
    return {metrics.problem_key(one) for one in rows if one["error"] is None and one["score"] is not None}


# --- quality ---


@pytest.mark.parametrize(
    ("right", "n", "low", "high"),
    [  # the worked examples of Newcombe, Statistics in Medicine 17 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (29, 29, 0.8830, 1.0000),
    ],
)
def test_wilson_is_the_published_interval(right: int, n: int, low: float, high: float) -> None:
    assert metrics.wilson(right / n, n) == pytest.approx((low, high), abs=5e-5)


def test_accuracy_of_right_and_wrong_answers_takes_wilson() -> None:
    rows = [row(i, score=float(i < 5), lenient=1.0) for i in range(10)]
    result = metrics.quality(rows, places(rows))
    assert result["accuracy"] == 0.5
    assert (result["accuracy_low"], result["accuracy_high"]) == pytest.approx((0.2366, 0.7634), abs=5e-5)
    assert result["lenient"] == 1.0


def test_several_seeds_are_averaged_a_problem_before_the_bootstrap() -> None:
    # Problem 0 is right with one seed of two, problem 1 with both, problem 2 with its only one.
    rows = [row(0, score=1.0), row(0, score=0.0, seed=1), row(1), row(1, seed=1), row(2)]
    result = metrics.quality(rows, places(rows))
    assert result["accuracy"] == pytest.approx((0.5 + 1 + 1) / 3)
    # A mean of three draws from {0.5, 1, 1} is 0.5 with probability 1/27 and 1 with 8/27: both are within 95%.
    assert (result["accuracy_low"], result["accuracy_high"]) == (0.5, 1.0)


def test_the_bootstrap_of_partial_scores_is_as_wide_as_its_standard_error() -> None:
    values = np.random.default_rng(5).uniform(size=400).tolist()
    low, high = metrics.bootstrap(values)
    assert (high - low) == pytest.approx(2 * 1.96 * np.std(values) / 20, rel=0.05)
    assert metrics.bootstrap(values) == (low, high)


def test_a_failed_row_is_a_wrong_answer_where_the_problem_has_one() -> None:
    rows = [row(0), row(1), failed(2), failed(3)]
    scored = {("t", 0), ("t", 1), ("t", 2)}  # another sampler has a score for 2, and none has one for 3
    assert metrics.quality(rows, scored)["accuracy"] == pytest.approx(2 / 3)


def test_what_failed_wholly_or_has_no_answers_has_no_accuracy() -> None:
    nothing = dict.fromkeys(("accuracy", "accuracy_low", "accuracy_high", "lenient"))
    assert metrics.quality([failed(0), failed(1)], {("t", 0)}) == nothing
    assert metrics.quality([row(0, score=None, lenient=None)], set()) == nothing
    assert metrics.quality([], set()) == nothing


# --- forwards ---


def test_forwards_tokens_and_memory_by_hand() -> None:
    rows = [row(0), row(1, nfe=8, nfe_to_end=5, generated=10, tokens_fed=200, peak_memory=300), failed(2)]
    result = {name: figure(rows) for name, figure in metrics.FIGURES.items()}
    assert {name: result[name] for name in ("nfe", "nfe_to_end", "tokens_fed", "peak_memory")} == {
        "nfe": 6.0,  # (4 + 8) / 2
        "nfe_to_end": 4.0,  # (3 + 5) / 2
        "tokens_fed": 120.0,  # (40 + 200) / 2
        "peak_memory": 300,
    }
    assert result["tokens_per_forward"] == 1.0  # (2 + 10) / (4 + 8), and not the mean of 0.5 and 1.25
    assert result["fed_per_token"] == 20.0  # (40 + 200) / (2 + 10)


def test_figures_that_do_not_apply_are_null() -> None:
    for rows in ([], [failed(0)]):
        assert {figure(rows) for figure in metrics.FIGURES.values()} == {None}
        assert set(metrics.speed(rows, metrics.device(rows)).values()) == {None}
        assert metrics.floor_share(rows, [row(0)]) is None
        assert metrics.agreement(rows, [row(0)]) == {"agreement": None, "identical": None}
    assert metrics.FIGURES["fed_per_token"]([row(0, generated=0)]) is None
    assert metrics.FIGURES["peak_memory"]([row(0, peak_memory=None)]) is None


# --- speed ---


def test_speed_is_the_median_over_the_batches_and_not_over_the_rows() -> None:
    def batch(name: str, generated: list[int], *left: tuple[float, int]) -> list[dict[str, Any]]:
        calls = [{"id": name, "seconds": at, "rows": len(generated), "forwards": made} for at, made in left]
        return [row(i, generated=one, batch=when) for i, (one, when) in enumerate(zip(generated, calls, strict=True))]

    rows = [
        *batch("x", [10, 30], (2.0, 10), (0.9, 4)),  # 20 tokens per second until its last row left, 0.2 s a forward
        *batch("y", [50], (1.0, 10)),  # 50 and 0.1
        *batch("z", [20, 60, 40], (2.0, 4), (4.0, 8), (1.0, 2)),  # 30 and 0.5
        failed(9),
    ]
    assert metrics.speed(rows, "a") == {
        "tokens_per_second": 30.0,
        "tokens_per_second_low": 25.0,
        "tokens_per_second_high": 40.0,
        "seconds_per_forward": 0.2,
    }


def test_speeds_of_another_device_and_of_half_a_batch_do_not_count() -> None:
    rows = [
        row(0, batch={"id": "p", "seconds": 1.0, "rows": 1, "forwards": 9}),
        row(1, batch={"id": "q", "seconds": 1.0, "rows": 1, "forwards": 9}),
        row(2, batch={"id": "half", "seconds": 1.0, "rows": 2, "forwards": 9}, generated=1000),
        row(3, batch={"id": "r", "seconds": 1.0, "rows": 1, "forwards": 9}, generated=1000, device="b"),
    ]
    assert metrics.device(rows) == "a"
    result = metrics.speed(rows, "a")
    assert (result["tokens_per_second"], result["tokens_per_second_high"]) == (2.0, 2.0)


# --- against references ---


def test_the_floor_is_measured_on_problems_that_both_finished() -> None:
    rows = [row(0, nfe=10), row(1, nfe=20), row(0, nfe=30, seed=1), row(2, nfe=1000), failed(3)]
    oracle = [row(0, nfe=2), row(1, nfe=5), failed(2), row(3, nfe=1)]
    assert metrics.floor_share(rows, oracle) == pytest.approx((2 + 5 + 2) / (10 + 20 + 30))
    assert metrics.floor_share(rows, None) is None


def test_agreement_counts_places_up_to_the_end_of_the_longer_text() -> None:
    rows = [row(0, tokens=[1, 2, 3]), row(1, tokens=[1, 9, 3]), row(2, tokens=[1, 2]), row(3, tokens=[7, 1, 2])]
    sequential = [row(0, tokens=[1, 2, 3]), row(1, tokens=[1, 2, 3, 4]), row(2, tokens=[1, 2, 3, 4]), failed(3)]
    result = metrics.agreement(rows, sequential)
    assert result == {"agreement": pytest.approx((1 + 2 / 4 + 2 / 4) / 3), "identical": pytest.approx(1 / 3)}
