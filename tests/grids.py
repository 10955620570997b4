"""Grids of cases of which some run always and all of them under `-m slow`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def thinned(cases: Iterable[tuple[Any, ...]], always: Callable[..., bool]) -> list[Any]:
    """The cases in their order; those of which `always` says no are slow ones."""
    return [pytest.param(*case, marks=() if always(*case) else pytest.mark.slow) for case in cases]
