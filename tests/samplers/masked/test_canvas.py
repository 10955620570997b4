"""The canvas: who may write to it, where its rows are, and which rows remain when others leave."""

from __future__ import annotations

import numpy as np
import torch

from pardec.samplers.masked.canvas import Canvas, Revision, Update
from pardec.samplers.trace import PROMPT, UNCOMMITTED

MASK, PAD = 9, 8
M = MASK


def canvas(rows: list[list[int]], prompts: list[int], block: int = 4, **options: bool | int) -> Canvas:
    return Canvas([torch.tensor(row) for row in rows], prompts, mask_id=MASK, pad_id=PAD, block_length=block, **options)


def commit(held: Canvas, places: list[list[int]], token: int = 1) -> None:
    """Commits these absolute positions of each row, open or not."""
    which = torch.zeros_like(held.eligible)
    for row, positions in enumerate(places):
        for p in positions:
            which[row, p - int(held.block_start[row])] = True
    held.commit(Update(which, torch.full_like(held.window, token), torch.full(held.window.shape, 0.5)))


def test_only_open_positions_are_written() -> None:
    held = canvas([[1, 2, M, 5, M, M], [3, M, M]], [2, 1])
    commit(held, [[2, 3, 4], [1]], token=7)
    assert held.tokens[:, :6].tolist() == [[1, 2, 7, 5, 7, M], [3, 7, M, PAD, PAD, PAD]]
    commit(held, [[2, 3, 4], [1]], token=6)
    assert held.tokens[:, :6].tolist() == [[1, 2, 7, 5, 7, M], [3, 7, M, PAD, PAD, PAD]]
    assert held.commit_step[:, :6].tolist() == [
        [PROMPT, PROMPT, 0, PROMPT, 0, UNCOMMITTED],
        [PROMPT, 0, UNCOMMITTED, PROMPT, PROMPT, PROMPT],
    ]
    commit(held, [[5], []], token=6)
    assert held.commit_step[0, 5] == 2
    assert held.commit_score[0, :6].tolist() == [0, 0, 0.5, 0, 0.5, 0.5]
    assert held.nfe.tolist() == held.step.tolist() == [3, 3]
    assert held.finished.tolist() == [True, False]


def test_a_mask_in_the_prompt_is_given() -> None:
    held = canvas([[M, M, M, M]], [2])
    assert held.open[0, :4].tolist() == [False, False, True, True]


def test_the_scratch_column_is_never_open() -> None:
    held = canvas([[1, M], [1, M, M, M, M, M, M]], [1, 1], block=3)
    assert held.window.tolist() == [[1, 7, 7], [1, 2, 3]]
    assert held.eligible.tolist() == [[True, False, False], [True, True, True]]
    held.commit(Update(torch.ones(2, 3, dtype=torch.bool), torch.full((2, 3), 5), torch.ones(2, 3)))
    assert not held.open[:, 7].any()
    assert held.tokens[:, 7].tolist() == [PAD, PAD]
    assert held.commit_step[:, 7].tolist() == [PROMPT, PROMPT]


def test_blocks_follow_the_first_open_position() -> None:
    held = canvas([[1, 2, 3, M, M, M, M, M, M, M]], [3])
    assert (held.block_start[0], held.block_end[0], held.end[0], held.block_remaining[0], held.block_started[0]) == (
        3,
        7,
        10,
        4,
        True,
    )
    commit(held, [[4]])
    assert (held.block_start[0], held.block_remaining[0], held.block_started[0]) == (3, 3, False)
    commit(held, [[3, 5, 6]])
    assert (held.block_start[0], held.block_end[0], held.block_remaining[0], held.block_started[0]) == (7, 10, 3, True)
    commit(held, [[7, 8, 9]])
    assert held.finished.all()
    assert held.first_open.tolist() == [10]


def test_a_grid_from_position_0_may_overlap_the_prompt() -> None:
    held = canvas([[1, 2, 3, 4, 5, M, M, M, M, M]], [5], absolute=True)
    assert (held.block_start[0], held.block_end[0], held.block_remaining[0]) == (4, 8, 3)
    assert held.eligible.tolist() == [[False, True, True, True]]


def test_a_block_with_nothing_open_is_passed_over() -> None:
    held = canvas([[M, 1, 1, 1, 1, 1, 1, 1, M]], [0], block=4)
    commit(held, [[0]])
    assert (held.block_start[0], held.block_end[0]) == (8, 9)


def test_a_block_causal_row_sees_up_to_its_block() -> None:
    held = canvas([[1, 2, 3, M, M, M], [1, M, M]], [3, 1], absolute=True, block_causal=True)
    assert held.end.tolist() == [4, 3]
    commit(held, [[3], [1]])
    assert held.end.tolist() == [6, 3]


def test_closing_a_row_pads_what_is_open() -> None:
    held = canvas([[1, M, M, 2, M], [1, M, M, 2, M]], [1, 1])
    commit(held, [[1], [1]])
    held.close(np.array([True, False]))
    assert held.tokens[:, :5].tolist() == [[1, 1, PAD, 2, PAD], [1, 1, M, 2, M]]
    assert held.commit_step[0, :5].tolist() == [PROMPT, 0, UNCOMMITTED, PROMPT, UNCOMMITTED]
    assert held.finished.tolist() == [True, False]


def test_kept_rows_carry_everything_with_them() -> None:
    rows = [[1, M, M, M], [2, 2, 2, M, M, M, M], [3, M]]
    held, alone = canvas(rows, [1, 3, 1], block=2), canvas(rows[1:2], [3], block=2)
    commit(held, [[1], [4], [1]])
    commit(alone, [[4]])
    held.advance_clock(np.array([0, 5, 0]))
    alone.advance_clock(np.array([5]))
    held.keep(np.array([1]))
    assert held.rows.tolist() == [1]
    for name in ("tokens", "open", "commit_step", "window", "eligible"):
        assert torch.equal(getattr(held, name), getattr(alone, name)), name
    for name in (
        "prompt",
        "total",
        "block_start",
        "block_end",
        "end",
        "step",
        "nfe",
        "block_started",
        "block_remaining",
        "first_open",
        "open_host",
    ):
        assert (getattr(held, name) == getattr(alone, name)).all(), name
    assert (held.step[0], held.nfe[0]) == (6, 1)
    commit(held, [[3]])
    assert held.block_start.tolist() == [5]
    held.keep(np.array([], dtype=int))
    assert len(held) == 0


def test_the_first_committed_end_token() -> None:
    held = canvas([[7, M, M, 7, M], [7, M, M, M, M]], [1, 1])
    assert held.first_committed((7,)).tolist() == [5, 5]
    commit(held, [[2], [4]], token=7)
    assert held.first_committed((7,)).tolist() == [2, 4]
    assert held.first_committed((6, 7)).tolist() == [2, 4]
    assert held.first_committed(()).tolist() == [5, 5]


def test_commit_step_counts_more_forwards_than_sixteen_bits_hold() -> None:
    held = canvas([[1, M, M]], [1])
    held.nfe += 40_000
    commit(held, [[1]])
    assert held.commit_step[0, :3].tolist() == [PROMPT, 40_000, UNCOMMITTED]


def test_a_canvas_is_as_long_as_the_longest_request() -> None:
    assert canvas([[1] * 40_000 + [M]], [40_000]).total.tolist() == [40_001]


def test_revisions_join() -> None:
    held = canvas([[1, M, M, M]], [1], block=3)
    yes, no = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    full = lambda value: torch.full((1, 3), value)  # noqa: E731
    held.commit(Update(torch.ones(1, 3, dtype=torch.bool), full(4), full(0.5)))
    one = Revision(reopen=yes, rewrite=Update(yes, full(5), full(0.6)))
    other = Revision(rewrite=Update(no, full(6), full(0.7)), hold=torch.tensor([True]))
    held.commit(Update(torch.zeros(1, 3, dtype=torch.bool), full(4), full(0.5)), revision=one.merge(other))
    assert held.tokens[0, :4].tolist() == [1, M, M, 6]
    assert held.commit_step[0, :4].tolist() == [-1, -2, -2, 1]
    assert held.hold_block.tolist() == [True]
