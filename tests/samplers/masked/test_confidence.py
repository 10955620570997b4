"""`confidence`: the probability of the candidate, before or after the filter that it was sampled with."""

from __future__ import annotations

import pytest
import torch

from tests.samplers.eight_tokens import LAWS, SURE, TOKENS, proposal
from tests.samplers.loop_parity import orders_as_naive


def test_scores_by_hand() -> None:
    found = proposal("confidence")
    assert found.tokens[0].tolist() == list(TOKENS)
    assert found.score[0, :7].tolist() == pytest.approx(SURE[:7], abs=1e-6)
    assert found.score[0, 7] == -torch.inf  # not eligible
    assert found.score.dtype == torch.float32


def test_the_raw_score_is_blind_to_the_temperature_and_the_filtered_one_is_not() -> None:
    """At temperature 0.5 the filtered score squares the probabilities; the raw score ignores the temperature."""
    raw, filtered = (proposal(f"confidence:of={of}", temperature=0.5) for of in ("raw", "filtered"))
    assert torch.equal(raw.tokens, filtered.tokens)
    sharp = LAWS[:, :4] ** 2 / (LAWS[:, :4] ** 2).sum(-1, keepdim=True)
    for place in range(7):
        token = int(raw.tokens[0, place])
        assert raw.score[0, place].item() == pytest.approx(float(LAWS[place, token]), abs=1e-6)
        assert filtered.score[0, place].item() == pytest.approx(float(sharp[place, token]), abs=1e-6)


test_the_order_is_that_of_the_naive_decoder = orders_as_naive("confidence")
