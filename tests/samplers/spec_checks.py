"""Makes the tests that many methods have: specs that are refused, and eight positions worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.eight_tokens import steps_of


def refused_specs(cases: Iterable[tuple[str, str]], *, family: Any = None, before: str = "") -> Callable[..., None]:
    """Makes a test: each spec, prefixed by `before`, is refused with its message."""

    @pytest.mark.parametrize(("spec", "says"), cases)
    def test(spec: str, says: str) -> None:
        with pytest.raises(SpecError, match=says):
            resolve(before + spec, family)

    return test


def commits_at(steps: Mapping[str, Sequence[int]] | Iterable[tuple[str, Sequence[int]]]) -> Callable[..., None]:
    """Makes a test: each spec commits the eight positions of `eight_tokens` at these forwards."""
    steps = dict(steps)

    @pytest.mark.parametrize("spec", steps)
    def test(spec: str) -> None:
        assert steps_of(spec) == steps[spec]

    return test
