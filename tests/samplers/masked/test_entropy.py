"""`entropy`: minus the entropy of the distribution, before or after the filter."""

from __future__ import annotations

import pytest
import torch

from tests.samplers.eight_tokens import LAWS, TOKENS, proposal
from tests.samplers.loop_parity import orders_as_naive

NATS = [0.2535, 1.1125, 0.4014, 1.3799, 0.0670, 0.5875, 0.4315]


def test_scores_by_hand() -> None:
    found = proposal("entropy")
    assert found.tokens[0].tolist() == list(TOKENS)
    assert found.score[0, :7].tolist() == pytest.approx([-nats for nats in NATS], abs=1e-3)
    assert found.score[0, 7] == -torch.inf  # not eligible
    assert found.score.dtype == torch.float32


def test_the_filtered_score_is_of_what_is_drawn_from() -> None:
    """At temperature 0.5 probabilities are squared."""
    sharp = LAWS[:7, :4] ** 2 / (LAWS[:7, :4] ** 2).sum(-1, keepdim=True)
    found = proposal("entropy:of=filtered", temperature=0.5)
    assert found.score[0, :7].tolist() == pytest.approx((sharp * sharp.log()).sum(-1).tolist(), abs=1e-5)


test_the_order_is_that_of_the_naive_decoder = orders_as_naive("entropy")
