"""Shared by the tests of revising stages: ragged rows, and a comparison with tests/reference/naive_revise.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pardec.samplers.events import Finished
from tests.samplers.toys import MASK, fill, prompts, same, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)


def agree(got: Finished, row: int, tokens: list[int], when: dict[int, int], nfe: int) -> None:
    length = len(tokens)
    assert got.tokens[row, :length].tolist() == tokens
    assert {p: int(s) for p, s in enumerate(got.trace.commit_step[row, :length]) if s >= 0} == when
    assert got.nfe[row] == nfe


def compare(spec: str, rule: Any, family: str, size: int, seed: int, **parameters: Any) -> tuple[Finished, int]:
    """Compares both on every row; returns how far the result is from that of the select alone."""
    model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
    got = fill(model, spec, given, NEW, block_length=size)
    for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
        agree(got, row, *rule(model, [*prompt, *[MASK] * new], len(prompt), size, MASK, **parameters))
    plain = fill(model, spec.split("+")[-1] if "+" in spec else "threshold:tau=0.4", given, NEW, block_length=size)
    return got, int((got.tokens != plain.tokens).sum()) + int(got.nfe != plain.nfe)


def as_the_select_alone(*pairs: tuple[str, str]) -> Callable[..., None]:
    """Makes a test: the first spec of each pair decodes like the second, with any cache."""

    @pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dual:refresh=2"])
    @pytest.mark.parametrize("family", ["llada", "dream", "sdar", "shifted-sdar"])
    @pytest.mark.parametrize(("spec", "base"), pairs)
    @pytest.mark.covers(1)
    def test(spec: str, base: str, family: str, cache: str) -> None:
        model, given = toy(family, sharp=1.2), prompts(LENGTHS)
        one, other = (fill(model, f"{text}@{cache}", given, NEW) for text in (spec, base))
        assert all(same(one, row, other, row) for row in range(3))

    return test
