"""The forwards of the verify loop: groups of rows, slots, and the recorded positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given as random_tokens
from hypothesis import settings
from hypothesis import strategies as st

from pardec.samplers.speculative.contracts import DecodeContext, Draft, Uniforms
from pardec.samplers.speculative.forward import FedNodes, grouped
from tests.samplers.ar_toys import plain_greedy, prompts, run, speculation, toy_ar
from tests.samplers.loop_drafters import LENGTHS, VOCAB, Chain, Forest, check_plain, greedy, right


@random_tokens(st.lists(st.integers(1, 80), min_size=1, max_size=12))
@settings(max_examples=300, deadline=None)
def test_groups_hold_every_row_once_and_little_padding(sizes: list[int]) -> None:
    found = grouped(np.array(sizes))
    assert sorted(row for rows in found for row in rows.tolist()) == list(range(len(sizes)))
    fed = sum(max(sizes[row] for row in rows) * len(rows) for rows in found)
    assert fed <= 1.25 * sum(sizes)
    assert all((np.diff(rows) > 0).all() for rows in found)
    if max(sizes) * len(sizes) <= 1.25 * sum(sizes):
        assert len(found) == 1


def test_what_was_fed_is_a_span_unless_a_tree_was() -> None:
    rows, base, sizes = np.arange(2), np.array([4, 7]), np.array([3, 4])
    assert FedNodes(rows, base, sizes).of(1) == range(7, 11)
    depths = np.array([[0, 1, 2, 9], [0, 1, 1, 2]])
    assert FedNodes(rows, base, sizes, depths).of(0) == range(4, 7)  # a tree that is a chain
    assert FedNodes(rows, base, sizes, depths).of(1) == (7, 8, 8, 9)
    assert FedNodes(rows, base, sizes, np.array([0, 1, 1, 2])).of(0) == (4, 5, 5)  # one form for all rows


def test_a_draft_with_columns_that_no_row_uses_is_verified_all_the_same() -> None:
    @dataclass(frozen=True)
    class Wide(Chain):
        def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: None) -> Draft:
            made = super().propose(context, room, uniforms, state)
            return Draft(torch.nn.functional.pad(made.tokens, (0, 3)), made.sizes, made.base)

    model, given = toy_ar(1, VOCAB), prompts(LENGTHS, vocab=VOCAB)
    check_plain(model, run(model, greedy(Wide(right(model), k=2)), given, 7), given, 7)


def test_rows_that_draft_much_and_rows_that_draft_nothing_go_in_groups() -> None:
    """The fed positions, padding included, are at most 1.3 times the rows' own."""

    def sometimes(text: list[int]) -> int:
        return plain_greedy(model, text, 1)[-1]

    @dataclass(frozen=True)
    class Uneven(Chain):
        def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: None) -> Draft:
            return super().propose(context, np.where(context.text.rows % 3, 0, room), uniforms, state)

    model, given = toy_ar(1, VOCAB), prompts((30, 2, 5, 17, 3, 24, 9, 4), vocab=VOCAB)
    done = run(model, greedy(Uneven(sometimes, k=6)), given, 14)
    check_plain(model, done, given, 14)
    needed = sum(done.tokens_fed)
    alone = [run(model, greedy(Uneven(sometimes, k=6)), [prompt], 14) for prompt in given[:1]]
    assert alone[0].tokens_fed[0] == done.tokens_fed[0]
    assert needed < needed + done.padding <= 1.3 * needed


@pytest.mark.parametrize(("accept", "temperature"), list(product(["speculative", "match"], [0.0, 1.0])))
def test_a_checkpoint_with_a_limit_can_be_filled_to_it(accept: str, temperature: float) -> None:
    """Trees take more slots than positions, so slots may exceed the limit of positions."""
    model = replace(toy_ar(1, VOCAB), limit=12)
    done = run(model, speculation(Forest(), accept), prompts((4, 6), vocab=VOCAB), (8, 6), temperature=temperature)
    assert done.trace.lengths.tolist() == [12, 12]
    assert max(max(fed) for row in done.trace.fed for fed in row) <= 11
