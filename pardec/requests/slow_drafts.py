"""Warns of a drafter that took longer than plain decoding would have, by the measured costs of both."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..result import Result

_SLOWER = 1.1  # times the seconds of plain decoding that are said
_said = set[tuple[str, str]]()  # models and specs


class SlowDrafts(UserWarning):
    """Drafts cost more time than they saved."""


def warn(result: Result, seconds: tuple[float, float | None] | None, *, stacklevel: int) -> None:
    """Warns once per model and spec. `seconds`: of all rounds, and of plain ones for the same tokens, where known."""
    if seconds is None or seconds[1] is None or seconds[0] < _SLOWER * seconds[1]:
        return
    key = result.model, result.spec
    clocked = result.spec.startswith("auto:") and "measured=false" not in result.spec
    if key in _said or clocked:  # it leaves out what costs more, after a few rounds
        return
    _said.add(key)
    spent, plain = seconds
    warnings.warn(
        f"{result.spec} took {spent:.3g} s, and plain decoding would have taken {plain:.3g} s for the same tokens, by "
        'its measured rounds; sampler="auto" drafts only where that saves time',
        SlowDrafts,
        stacklevel=stacklevel + 1,
    )
