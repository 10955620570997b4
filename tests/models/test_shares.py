"""Shares of counts, rounded down and up, compared with exact fractions."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from pardec.models.caches.shares import ceil_of_share, floor_of_share


def test_shares_of_three_digits_round_as_exact_fractions() -> None:
    counts, plain = np.arange(300), [0, 0]
    for digits in range(1001):
        share, exact = digits / 1000, [Fraction(digits * count, 1000) for count in range(300)]
        assert floor_of_share(share, counts).tolist() == [math.floor(product) for product in exact]
        assert ceil_of_share(share, counts).tolist() == [math.ceil(product) for product in exact]
        plain[0] += sum(math.floor(share * count) < math.floor(product) for count, product in enumerate(exact))
        plain[1] += sum(math.ceil(share * count) > math.ceil(product) for count, product in enumerate(exact))
    assert min(plain) > 10, "products of floats alone are off for some of them"


def test_shares_of_a_long_canvas_and_what_1_minus_a_share_leaves() -> None:
    assert int(floor_of_share(1 - 0.9, 10)) == 1
    assert int(ceil_of_share(1 - 0.9, 10)) == 1
    assert int(floor_of_share(0.29, 10**7)) == int(ceil_of_share(0.29, 10**7)) == 2_900_000
    for count in (0, np.array([0, 0])):
        assert np.all(floor_of_share(0.5, count) == 0)
        assert np.all(ceil_of_share(0.5, count) == 0)
