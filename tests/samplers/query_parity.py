"""Compares a query stage with its rule of tests/reference/naive_query.py on the checkpoints of recorded sets."""

from __future__ import annotations

import numpy as np

from pardec.samplers.events import Finished
from tests.reference import naive_query as naive
from tests.samplers.parity import recorded
from tests.samplers.toys import request, run


def queried(got: Finished, row: int = 0) -> list[tuple[int, ...]]:
    """The positions that each forward of a row computed."""
    return [tuple(positions) for positions in got.trace.fed[row]]


def agree(name: str, spec: str, rule: naive.Rule) -> None:
    """Compares with a plain version that deletes the masks and runs the rest in one full forward."""
    model = recorded(name)
    mask, vocab = model.decoding_config.mask_id, model.vocab_size
    drawn, new, size = np.random.RandomState(3), 21, 6
    for tau, length in ((0.05, 5), (0.15, 9)):
        prompt = drawn.randint(3, vocab - 10, length).tolist()
        row = [*prompt, *[mask] * new]
        got = run(model, f"{spec}+threshold:tau={tau}", request([row], [length], block_length=size))
        tokens, when, fed = naive.decode(model, row, length, size, tau, rule)
        assert got.tokens[0].tolist() == tokens
        assert got.trace.commit_step[0].tolist() == when
        assert [list(positions) for positions in queried(got)] == fed
        assert got.tokens_fed[0] == sum(map(len, fed)) < len(fed) * len(row)
