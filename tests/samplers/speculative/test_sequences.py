"""The rows of an autoregressive request: what a commit writes, and what leaves with a row."""

from __future__ import annotations

import numpy as np
import torch

from pardec.samplers.speculative.sequences import Sequences
from pardec.samplers.trace import PROMPT, UNCOMMITTED


def made() -> Sequences:
    """Rows of 2, 3 and 1 given tokens that may grow to 5, 4 and 6."""
    return Sequences([torch.tensor(row) for row in ([7, 8], [5, 6, 9], [4])], [5, 4, 6], pad_id=0)


def test_a_new_request_holds_its_prompts() -> None:
    text = made()
    assert len(text) == 3
    assert text.length.tolist() == text.prompt.tolist() == [2, 3, 1]
    assert text.remaining.tolist() == [3, 1, 5]
    assert text.last.tolist() == [8, 9, 4]
    assert text.tokens.tolist() == [[7, 8, 0, 0, 0, 0], [5, 6, 9, 0, 0, 0], [4, 0, 0, 0, 0, 0]]
    assert text.commit_step[0].tolist() == [PROMPT, PROMPT, UNCOMMITTED, UNCOMMITTED, UNCOMMITTED, UNCOMMITTED]
    assert text.row(1).tolist() == [5, 6, 9]


def test_a_commit_appends_to_each_row_as_many_as_it_is_told() -> None:
    text = made()
    text.nfe += 1
    text.commit(np.array([[1, 2, 3]] * 3), np.array([3, 1, 0]), np.array([[0.1, 0.2, 0.3]] * 3, dtype=np.float32))
    assert [text.row(at).tolist() for at in range(3)] == [[7, 8, 1, 2, 3], [5, 6, 9, 1], [4]]
    text.nfe += 1
    text.commit(np.array([[6, 0]] * 3), np.array([0, 0, 2]), np.array([[0.5, 0.25]] * 3, dtype=np.float32))
    assert text.row(2).tolist() == [4, 6, 0]
    assert text.last.tolist() == [3, 1, 0]  # the pad id is a token like any other
    assert text.commit_step[2].tolist() == [PROMPT, 1, 1, UNCOMMITTED, UNCOMMITTED, UNCOMMITTED]
    assert text.commit_step[0].tolist() == [PROMPT, PROMPT, 0, 0, 0, UNCOMMITTED]
    assert text.commit_score[2, 1:3].tolist() == [0.5, 0.25]
    assert text.remaining.tolist() == [0, 0, 3]
    assert text.tokens.numpy().tolist() == text.host.tolist()


def test_rows_that_leave_take_what_is_theirs_and_the_others_stay_as_they_were() -> None:
    text = made()
    text.nfe += 1
    text.commit(np.array([[1]] * 3), np.array([1, 1, 1]), np.full((3, 1), 0.5, dtype=np.float32))
    text.keep(np.array([0, 2]))
    assert text.rows.tolist() == [0, 2]
    assert text.nfe.tolist() == [1, 1]
    assert text.limit.tolist() == [5, 6]
    assert [text.row(at).tolist() for at in range(2)] == [[7, 8, 1], [4, 1]]
    text.nfe += 1
    text.commit(np.array([[2, 3]] * 2), np.array([2, 1]), np.zeros((2, 2), dtype=np.float32))
    assert [text.row(at).tolist() for at in range(2)] == [[7, 8, 1, 2, 3], [4, 1, 2]]
    assert text.tokens.numpy().tolist() == text.host.tolist()
    text.keep(np.array([], dtype=np.int64))
    assert len(text) == 0


def test_a_given_prompt_is_copied() -> None:
    prompt = torch.tensor([1, 2])
    text = Sequences([prompt], [4], pad_id=0)
    text.commit(np.array([[3]]), np.array([1]), np.zeros((1, 1), dtype=np.float32))
    assert prompt.tolist() == [1, 2]
    assert text.at(np.array([0])).tolist() == [1]


def test_commit_step_counts_more_forwards_than_sixteen_bits_hold() -> None:
    text = made()
    text.nfe += 40_001
    text.commit(np.array([[1]] * 3), np.array([1, 1, 1]), np.full((3, 1), 0.5, dtype=np.float32))
    assert text.commit_step[0, 2] == 40_000
