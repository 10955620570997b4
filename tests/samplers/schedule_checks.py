"""Helpers for the tests of selects with a clock: first committed positions, and a comparison with a plain decoder."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.registry import build_method
from pardec.samplers.rng import Keyed
from pardec.samplers.spec import parse
from tests.reference import naive_schedules as naive
from tests.samplers.eight_tokens import LAWS
from tests.samplers.toys import BLOCK, MASK, fill, prompts, request, run, table


def first_sets(spec: str, rows: int, count: int, at: Sequence[int] = range(8)) -> dict[tuple[int, ...], int]:
    """How often each set of positions is committed first, over rows with separate seeds."""
    length = len(at)
    got = run(table(LAWS[list(at)]), spec, request([[6] * length] * rows, [0] * rows, block_length=length))
    found: dict[tuple[int, ...], int] = {}
    for when in got.trace.commit_step:
        chosen = tuple(np.flatnonzero(when == 0).tolist())
        found[chosen] = found.get(chosen, 0) + 1
    assert all(len(chosen) == count for chosen in found)
    return found


def agree(model: LanguageModel, spec: str, rule: naive.Rule, steps: int | None, *, propose: str = "confidence") -> None:
    """Checks that every row of a ragged batch equals the plain decoder's."""
    lengths, new = (3, 6, 1, 5), (7, 6, 9, 2)
    given = prompts(lengths)
    absolute = model.decoding_config.attention == "block-causal"
    got = fill(model, spec, given, new)
    for row, (prompt, count) in enumerate(zip(given, new, strict=True)):
        keyed = Keyed((100 + row,))

        def uniform(clock: int, position: int, purpose: str, keyed: Keyed = keyed) -> float:
            return keyed.uniform(np.array([0]), np.array([clock]), torch.tensor([[position]]), purpose).item()

        options = {"steps": steps, "propose": propose, "block_length": BLOCK, "absolute": absolute}
        tokens, when, nfe = naive.decode(model, prompt + [MASK] * count, len(prompt), rule, uniform, **options)
        assert got.tokens[row, : len(tokens)].tolist() == tokens
        assert got.trace.commit_step[row, : len(tokens)].tolist() == when
        assert got.nfe[row] == nfe


def check_a_held_row(spec: str) -> None:
    """Asserts that a finished row held by a revising stage stops its clock while its neighbour continues."""
    canvas = Canvas((torch.full((8,), 6),) * 2, (0, 0), mask_id=6, pad_id=4, block_length=8)
    select = build_method(parse(spec).parts[0])
    state = select.start(canvas)
    assert select.skipped_steps(canvas, state).tolist() == [0, 0]
    canvas.step = canvas.step + 2
    canvas.block_started, canvas.block_remaining = np.zeros(2, dtype=bool), np.array([0, 5])
    assert select.skipped_steps(canvas, state).tolist() == [0, 0]
    assert state.quota.tolist() == [0, 2]
