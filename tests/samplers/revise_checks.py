"""What the tests of revising stages share: ragged rows, and a comparison with tests/reference/naive_revise.py."""

from __future__ import annotations

from typing import Any

from pardec.samplers.events import Finished
from tests.samplers.toys import MASK, fill, prompts, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)


def agree(got: Finished, row: int, tokens: list[int], when: dict[int, int], nfe: int) -> None:
    length = len(tokens)
    assert got.tokens[row, :length].tolist() == tokens
    assert {p: int(s) for p, s in enumerate(got.trace.commit_step[row, :length]) if s >= 0} == when
    assert got.nfe[row] == nfe


def compare(spec: str, rule: Any, family: str, size: int, seed: int, **parameters: Any) -> tuple[Finished, int]:
    """Runs both on every row; how far the result is from that of the select alone."""
    model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
    got = fill(model, spec, given, NEW, block_length=size)
    for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
        agree(got, row, *rule(model, [*prompt, *[MASK] * new], len(prompt), size, MASK, **parameters))
    plain = fill(model, spec.split("+")[-1] if "+" in spec else "threshold:tau=0.4", given, NEW, block_length=size)
    return got, int((got.tokens != plain.tokens).sum()) + int(got.nfe != plain.nfe)
