"""Grids of cases of which some run always and all of them under `-m slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product
from typing import Any
from zlib import crc32

import pytest


def thinned(cases: Iterable[tuple[Any, ...]], always: Callable[..., bool]) -> list[Any]:
    """The cases in their order; those of which `always` says no are slow ones."""
    return [pytest.param(*case, marks=() if always(*case) else pytest.mark.slow) for case in cases]


def one_in(count: int, *case: Any) -> bool:
    """Whether the case is of the one in `count` that runs always: the same cases on every machine."""
    return crc32(repr(case).encode()) % count == 0


def chequered(*axes: Iterable[Any], count: int = 2) -> list[Any]:
    """All combinations, of which one in `count` runs always: each value with one in `count` of another axis."""
    squares = product(*(enumerate(axis) for axis in axes))
    return [
        pytest.param(
            *(value for _, value in square), marks=pytest.mark.slow if sum(at for at, _ in square) % count else ()
        )
        for square in squares
    ]
