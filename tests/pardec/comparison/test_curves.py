"""Curves computed by hand: interpolation, equal accuracy, domination, AUP, and intervals for more and more problems."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pardec.comparison import curve_table
from pardec.comparison.curve_table import Setting


def setting(name: str, nfe: float, accuracy: float, n: int = 10, tokens: float = 60.0) -> Setting:
    """A sampler that takes `nfe` forwards on each of `n` problems and is right on a share of them."""
    score = (np.arange(n) < round(accuracy * n)).astype(float)
    costs = {"nfe": np.full(n, nfe), "tokens_fed": np.full(n, 10 * nfe), "seconds": np.full(n, nfe / 100)}
    return Setting(name, score, costs, np.full(n, tokens))


REFERENCE = [setting("strict", 20, 1.0), setting("middle", 10, 0.8), setting("loose", 5, 0.4)]


def test_the_gain_is_the_distance_to_the_curve_at_equal_forwards() -> None:
    # Between 10 and 20 forwards the reference rises from 0.8 to 1.0: 0.9 at 15.
    assert curve_table.accuracy_gain(setting("above", 15, 1.0), REFERENCE).value == pytest.approx(0.1)
    assert curve_table.accuracy_gain(setting("below", 15, 0.8), REFERENCE).value == pytest.approx(-0.1)
    assert curve_table.accuracy_gain(setting("outside", 4, 0.8), REFERENCE).value is None
    assert curve_table.accuracy_gain(REFERENCE[1], REFERENCE).value == pytest.approx(0)


def test_a_setting_of_the_reference_itself_has_no_gain_in_any_resample() -> None:
    gain = curve_table.accuracy_gain(REFERENCE[1], REFERENCE)
    assert (gain.low, gain.high) == pytest.approx((0, 0))


def test_settings_of_equal_cost_are_both_on_the_curve() -> None:
    tied = [*REFERENCE, setting("twin", 10, 0.6)]
    for own in tied:
        gain = curve_table.accuracy_gain(own, tied)
        assert (gain.value, gain.low, gain.high) == pytest.approx((0, 0, 0)), own.sampler
    assert curve_table.accuracy_gain(setting("between", 10, 0.7), tied).value == pytest.approx(0)
    assert curve_table.accuracy_gain(setting("above", 10, 0.9), tied).value == pytest.approx(0.1)
    # The better of the two leads on to the dearer setting, the worse is what the cheaper one leads to.
    assert curve_table.accuracy_gain(setting("behind", 15, 0.9), tied).value == pytest.approx(0)
    assert curve_table.accuracy_gain(setting("before", 7.5, 0.5), tied).value == pytest.approx(0)


def test_costs_are_compared_at_equal_accuracy() -> None:
    # 0.9 lies halfway between the settings with 10 and 20 forwards.
    assert curve_table.cost_at(REFERENCE, 0.9).value == pytest.approx(15)
    assert curve_table.cost_at(REFERENCE, 0.3).value == pytest.approx(5)  # the cheapest setting does better already
    method = [setting("a", 8, 1.0), setting("b", 4, 0.8)]
    assert curve_table.cost_ratio(method, REFERENCE, 0.9).value == pytest.approx(6 / 15)
    assert curve_table.cost_ratio(method, REFERENCE, 0.9, "seconds").value == pytest.approx(6 / 15)
    assert curve_table.cost_ratio([setting("poor", 3, 0.5)], REFERENCE, 0.9).value is None


def test_resamples_in_which_the_reference_never_gets_there_do_not_count() -> None:
    method, reference = [setting("a", 8, 1.0, 100)], [setting("b", 16, 0.99, 100)]
    ratio = curve_table.cost_ratio(method, reference, 0.985)
    assert (ratio.value, ratio.low, ratio.high) == (0.5, 0.5, 0.5)


def test_a_dearer_setting_that_is_worse_does_not_bend_the_curve_down() -> None:
    line = [*REFERENCE, setting("worse", 30, 0.6)]
    assert curve_table.cost_at(line, 1.0).value == pytest.approx(20)


def test_a_setting_is_dominated_by_one_that_is_no_worse_in_both() -> None:
    some = [*REFERENCE, setting("poor", 12, 0.7), setting("twin", 10, 0.8)]
    assert curve_table.dominated(some) == {"poor": "middle"}


def test_aup_by_hand() -> None:
    # Tokens a forward 3, 6, 12 at 100, 80 and 40 percent: only the first is within 5 points of the first.
    assert curve_table.area_under_parallelism(REFERENCE, 1.0) == pytest.approx(3 * 100)
    near = [setting("strict", 20, 1.0, 100), setting("loose", 10, 0.96, 100)]
    weight = 96 * math.exp(-3 * 0.04)
    assert curve_table.area_under_parallelism(near, 1.0) == pytest.approx(300 + 3 * (weight + 100) / 2)


def test_intervals_cover_the_value_and_narrow_with_the_problems() -> None:
    wide = curve_table.accuracy_gain(setting("x", 15, 0.7, 20), [setting("a", 20, 0.9, 20), setting("b", 10, 0.5, 20)])
    long = curve_table.accuracy_gain(
        setting("x", 15, 0.7, 2000), [setting("a", 20, 0.9, 2000), setting("b", 10, 0.5, 2000)]
    )
    for interval in (wide, long):
        assert interval.low <= interval.value <= interval.high  # type: ignore[operator]
    assert (long.high - long.low) < (wide.high - wide.low) / 5  # type: ignore[operator]


def test_the_interval_of_a_gain_is_that_of_paired_differences() -> None:
    """Against a reference that is right with chance 0.5 on the same problems, the gain's spread is the binomial one."""
    rng = np.random.default_rng(1)
    n = 400
    own, other = rng.random(n) < 0.7, rng.random(n) < 0.5
    costs = {"nfe": np.full(n, 10.0), "tokens_fed": np.full(n, 10.0), "seconds": np.full(n, 1.0)}
    mine = Setting("own", own.astype(float), costs, np.full(n, 20.0))
    theirs = [
        Setting(name, other.astype(float), {**costs, "nfe": np.full(n, nfe)}, np.full(n, 20.0))
        for name, nfe in (("a", 5.0), ("b", 15.0))
    ]
    gain = curve_table.accuracy_gain(mine, theirs)
    spread = 1.96 * (own.astype(float) - other).std() / math.sqrt(n)
    assert gain.value == pytest.approx(own.mean() - other.mean())
    assert gain.high - gain.low == pytest.approx(2 * spread, rel=0.1)  # type: ignore[operator]
