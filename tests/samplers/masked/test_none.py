"""No cache: every forward computes the whole row."""

from __future__ import annotations

import pytest

from pardec.samplers import registry
from tests.samplers.cache_checks import (
    ALL,
    LENGTHS,
    NEW,
    check_by_hand,
)
from tests.samplers.toys import fill, prompts, toy


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_every_forward_queries_everything(family: str) -> None:
    check_by_hand(family, "none", [ALL] * 10)


def test_guided_rows_compute_both_halves() -> None:
    model, given = toy("llada", seed=1, sharp=1.2), prompts(LENGTHS)
    plain, guided = (fill(model, "sequential@none", given, NEW, **options) for options in ({}, {"cfg": 1.5}))
    assert plain.tokens_fed == tuple((n + new) * new for n, new in zip(LENGTHS, NEW, strict=True))
    assert guided.tokens_fed == tuple(2 * fed for fed in plain.tokens_fed)


def test_it_is_exact_and_the_default() -> None:
    assert registry.resolve("sequential").spec == registry.resolve("sequential@none").spec
    assert registry.resolve("sequential@none").exact == "greedy"
