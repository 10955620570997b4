"""The chain: the distributions it samples from, and where rows end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers.speculative.length.fallback import Fallback
from pardec.samplers.speculative.length.unsure import Unsure
from pardec.samplers.speculative.shape.chain import Chain
from tests.samplers.ar_toys import g_test
from tests.samplers.fake_draft_model import FakeDraftModel, context, grown, nodes, uniforms, written


def naive(draft_model: FakeDraftModel, row: int, deep: int) -> tuple[int, ...]:
    tokens: list[int] = []
    for _ in range(deep):
        tokens.append(int(draft_model.logits(row, tokens).argmax()))
    return tuple(tokens)


def test_at_temperature_0_each_token_is_the_likeliest_after_the_ones_before() -> None:
    text = written([[1, 2], [3], [4, 0, 1]])
    draft = grown(Chain(), FakeDraftModel(text), [4, 0, 2])
    assert draft.sizes.tolist() == [5, 1, 3]
    assert draft.q is None
    for row, deep in enumerate((4, 0, 2)):
        path = naive(FakeDraftModel(text), row, deep)
        assert nodes(draft, row) == [path[: i + 1] for i in range(deep)]


def test_a_row_that_is_over_is_heard_no_more() -> None:
    draft_model = FakeDraftModel(written([[1, 2], [3], [4, 0, 1]]))
    grown(Chain(), draft_model, [4, 0, 2])
    assert draft_model.calls == [[[0], [-1], [0]], [[1], [-1], [1]], [[2], [-1], [-1]], [[3], [-1], [-1]]]


def test_q_is_the_distribution_after_each_parent_and_tokens_are_draws_from_it() -> None:
    rows = 3000
    text = written([[1, 2]] * rows)
    draft_model = FakeDraftModel(text)
    distribution = torch.from_numpy(draft_model.logits(0, [])).float().softmax(-1)
    draft = grown(Chain(), draft_model, [2] * rows, temperature=1.0)
    assert draft.q is not None
    torch.testing.assert_close(draft.q[7, 1], distribution)
    token = int(draft.tokens[7, 1])
    torch.testing.assert_close(draft.q[7, 2], torch.from_numpy(draft_model.logits(7, [token])).float().softmax(-1))
    seen = np.bincount(draft.tokens[:, 1].numpy(), minlength=6)
    assert g_test(seen, distribution.numpy().astype(float)) < 4
    pairs = np.bincount(draft.tokens[:, 1] * 6 + draft.tokens[:, 2], minlength=36)
    both = np.concatenate(
        [distribution[t] * torch.from_numpy(draft_model.logits(0, [t])).softmax(-1) for t in range(6)]
    )
    assert g_test(pairs, both) < 4  # the second draw is independent of the first


@pytest.mark.parametrize(("controller", "kept"), [(Unsure(0.6), 1), (Fallback(0.6), 0)])
def test_a_controller_ends_a_row_after_the_unsure_token_or_before_it(controller: Any, kept: int) -> None:
    text = written([[i] for i in range(6)])
    draft_model = FakeDraftModel(text)
    draft = grown(Chain(), draft_model, [5] * 6, length=controller)
    for row in range(6):
        sure = 0
        tokens: list[int] = []
        while sure < 5:
            distribution = torch.from_numpy(draft_model.logits(row, tokens)).softmax(-1)
            if float(distribution.max()) < 0.6:
                break
            tokens.append(int(distribution.argmax()))
            sure += 1
        assert int(draft.sizes[row]) - 1 == min(5, sure + kept), row
    assert len(set(draft.sizes.tolist())) > 1


def test_a_row_alone_draws_what_it_draws_in_a_batch() -> None:
    def drafted(prompts: list[list[int]], seed: int) -> list[int]:
        text = written(prompts)
        made = Chain().grow(
            FakeDraftModel(text), context(text, temperature=1.0), np.array([4] * len(text)), uniforms(text, seed), None
        )
        return made.tokens[-1].tolist()

    assert drafted([[0, 1], [2], [3, 4]], 5) == drafted([[3, 4]], 7)
