"""Grids of cases of which some always run, and all run under `-m slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import combinations, product
from math import comb
from typing import Any, TypeVar
from zlib import crc32

import pytest

T = TypeVar("T")


def thinned(cases: Iterable[tuple[Any, ...]], always: Callable[..., bool]) -> list[Any]:
    """The cases in their order; those for which `always` is false are marked slow."""
    return [pytest.param(*case, marks=() if always(*case) else pytest.mark.slow) for case in cases]


def one_in(count: int, *case: Any) -> bool:
    """Whether the case is among the one in `count` that always run; the same cases on every machine."""
    return crc32(repr(case).encode()) % count == 0


def chequered(*axes: Iterable[Any], count: int = 2) -> list[Any]:
    """All combinations, of which one in `count` always runs: each value with one in `count` of another axis."""
    squares = product(*(enumerate(axis) for axis in axes))
    return [
        pytest.param(
            *(value for _, value in square), marks=pytest.mark.slow if sum(at for at, _ in square) % count else ()
        )
        for square in squares
    ]


def covering(cases: Sequence[tuple[Any, ...]], together: int) -> set[int]:
    """The indices of a few cases that cover every value (`together` 1) or every pair of values (2) of all cases.

    Values are compared within their axis. The order is random, the same on every machine, so that a value is not always
    combined with the first values of other axes.
    """
    sets = [set(combinations(enumerate(case), together)) for case in cases]
    order = sorted(range(len(cases)), key=lambda at: crc32(repr(cases[at]).encode()))
    shown, taken = set[Any](), set[int]()
    for least in range(max((comb(len(case), together) for case in cases), default=0), 0, -1):
        for at in order:
            if len(sets[at] - shown) >= least:
                taken.add(at)
                shown |= sets[at]
    return taken


def pairwise(cases: Iterable[tuple[Any, ...]], axes: Callable[..., tuple[Any, ...]], together: int = 2) -> list[Any]:
    """The cases in their order; the few that always run cover all pairs of values of the cases' `axes`."""
    cases = list(cases)
    taken = covering([axes(*case) for case in cases], together)
    return [pytest.param(*case, marks=() if at in taken else pytest.mark.slow) for at, case in enumerate(cases)]


def fewer_where(slow: bool) -> Callable[[T], T]:
    """A decorator of tests: where their cases are `slow`, only the few that cover every value always run."""
    return pytest.mark.covers(1) if slow else lambda test: test
