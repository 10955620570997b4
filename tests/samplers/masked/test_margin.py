"""`margin`: the difference between the two highest probabilities, before or after the filter."""

from __future__ import annotations

import pytest
import torch

from tests.samplers.eight_tokens import LAWS, SURE, TOKENS, proposal
from tests.samplers.loop_parity import orders_as_naive


def test_scores_by_hand() -> None:
    """Three tokens share the remaining probability: p - (1 - p) / 3."""
    found = proposal("margin")
    assert found.tokens[0].tolist() == list(TOKENS)
    assert found.score[0, :7].tolist() == pytest.approx([(4 * p - 1) / 3 for p in SURE[:7]], abs=1e-6)
    assert found.score[0, 7] == -torch.inf  # not eligible
    assert found.score.dtype == torch.float32


def test_the_filtered_score_is_of_what_is_drawn_from() -> None:
    """At temperature 0.5 probabilities are squared."""
    sharp = (LAWS[:7, :4] ** 2 / (LAWS[:7, :4] ** 2).sum(-1, keepdim=True)).sort(-1).values
    found = proposal("margin:of=filtered", temperature=0.5)
    assert found.score[0, :7].tolist() == pytest.approx((sharp[:, 3] - sharp[:, 2]).tolist(), abs=1e-5)


test_the_order_is_that_of_the_naive_decoder = orders_as_naive("margin")
