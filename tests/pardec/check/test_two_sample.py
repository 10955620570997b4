"""The two-sample test: its p-values under the null hypothesis, what it finds, and its power."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from pardec.check.two_sample import two_sample


def sampled(seed: int, *, rows: int = 40, wrong: float = 0.0, length: int = 6, linked: bool = False) -> list[list[int]]:
    """Rows of tokens 0 .. 4, 0 being likeliest; a share `wrong` of them is 0. `linked`: each repeats the one before."""
    generator = np.random.default_rng(seed)
    tokens = generator.choice(5, p=[0.4, 0.3, 0.1, 0.1, 0.1], size=(rows, length))
    if linked:
        tokens[:, 1::2] = tokens[:, ::2]
    tokens[generator.random(tokens.shape) < wrong] = 0
    return [list(map(int, row[: generator.integers(3, length + 1)])) for row in tokens]


def p_value(one: list[list[int]], other: list[list[int]]) -> float:
    """The p-value alone, without the trials that measure the power."""
    with patch("pardec.check.two_sample._power", return_value=0.0):
        return two_sample([one], [other]).p


def test_p_values_of_equal_distributions_are_uniform() -> None:
    values = [p_value(sampled(2 * n), sampled(2 * n + 1)) for n in range(60)]
    assert 0.35 < np.mean(values) < 0.65
    assert np.mean(np.array(values) < 0.2) < 0.4
    assert np.mean(np.array(values) <= 0.001) < 0.05


def test_a_changed_share_of_tokens_is_found_as_often_as_the_power_says() -> None:
    same = two_sample([sampled(1)], [sampled(2)])
    found = np.mean([p_value(sampled(3 + 2 * n), sampled(4 + 2 * n, wrong=0.4)) <= 0.001 for n in range(10)])
    assert same.power[0.05] < 0.3
    assert found == pytest.approx(same.power[0.4], abs=0.35)
    assert same.power[0.8] == 1.0
    assert 0.2 <= same.finds <= 0.8


def test_pairs_of_tokens_are_compared_too() -> None:
    """Every token has the right distribution, and neighbours are not independent."""
    one = [row for n in range(3) for row in sampled(n, rows=100)]
    other = [row for n in range(3, 6) for row in sampled(n, rows=100, linked=True)]
    assert two_sample([one], [other]).p <= 0.001


def test_rows_are_exchanged_within_a_prompt_only() -> None:
    """Answers to two prompts that share no token are no difference between the samplers."""
    other = [[token + 10 for token in row] for row in sampled(7)]
    assert two_sample([sampled(5), other], [sampled(6), other]).p > 0.01


def test_constant_answers_have_no_power() -> None:
    constant = [[1, 2, 3]] * 20
    test = two_sample([constant], [constant])
    assert test.p == 1.0
    assert test.finds is None
