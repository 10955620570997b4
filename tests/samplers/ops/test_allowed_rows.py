"""Sets of allowed tokens while rows leave and join, compared with a plain list of sets."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from pardec.samplers.ops.allowed import AllowedRows
from pardec.samplers.request import Allowed

VOCAB, WIDTH = 7, 12
CPU = torch.device("cpu")


def some_rows(draw: random.Random, count: int) -> tuple[Allowed | None, list[list[set[int]]]]:
    """Rows of unequal length, or none with a limit; and the same as sets."""
    lengths = [draw.randrange(1, 6) for _ in range(count)]
    if draw.random() < 0.3:
        return None, [[set(range(VOCAB))] * length for length in lengths]
    sets = torch.rand(draw.randrange(2, 5), VOCAB, generator=torch.manual_seed(draw.randrange(1000))) < 0.5
    sets[0] = True
    at = tuple(torch.tensor([draw.randrange(len(sets)) for _ in range(length)]) for length in lengths)
    return Allowed(sets, at), [[set(np.flatnonzero(sets[i]).tolist()) for i in row.tolist()] for row in at]


def same(rows: AllowedRows, expected: list[list[set[int]]]) -> bool:
    if not rows:
        return all(each == set(range(VOCAB)) for row in expected for each in row)
    mask = rows.mask(torch.arange(len(expected))[:, None], torch.arange(WIDTH)[None]).numpy()
    padded = [row + [set(range(VOCAB))] * (WIDTH - len(row)) for row in expected]
    return all(
        set(np.flatnonzero(mask[at, position])) == padded[at][position]
        for at in range(len(expected))
        for position in range(WIDTH)
    )


@pytest.mark.parametrize("seed", range(12))
def test_rows_keep_their_sets_whatever_leaves_and_joins(seed: int) -> None:
    draw = random.Random(seed)
    allowed, expected = some_rows(draw, 4)
    rows = AllowedRows(allowed, 4, CPU)
    for _ in range(8):
        where = np.array(sorted(draw.sample(range(len(expected)), draw.randrange(1, len(expected) + 1))))
        others, theirs = some_rows(draw, len(where))
        rows.put(where, AllowedRows(others, len(where), CPU))
        for at, row in zip(where.tolist(), theirs, strict=True):
            expected[at] = row
        assert same(rows, expected)
        if len(expected) > 2 and draw.random() < 0.4:
            keep = np.array(sorted(draw.sample(range(len(expected)), len(expected) - 1)))
            rows.keep(keep)
            expected = [expected[at] for at in keep.tolist()]
            assert same(rows, expected)
    assert rows.sets is None or len(rows.sets) <= 1 + sum(map(len, expected))  # none that no row has


def test_sets_of_one_step_leave_the_others_alone() -> None:
    allowed = Allowed(torch.tensor([[True] * 3, [True, False, False]]), (torch.tensor([0, 1]), torch.tensor([1])))
    rows = AllowedRows(allowed, 2, CPU)
    now = rows.with_sets([0, 1], [0, 4], np.array([[False, True, False], [False, False, True]]))
    assert now.mask(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 4])).int().tolist() == [
        *([0, 1, 0], [1, 0, 0], [1, 0, 0], [0, 0, 1])
    ]
    assert rows.mask(torch.tensor([0, 1]), torch.tensor([0, 4])).all()
    assert rows.forced is not None
    assert rows.forced.tolist() == [[-1, 0, -1], [0, -1, -1]]
