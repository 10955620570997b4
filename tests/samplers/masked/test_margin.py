"""`margin`: the difference between the two highest probabilities, before or after the filter."""

from __future__ import annotations

import pytest
import torch

from tests.reference import naive_masked as naive
from tests.samplers.eight_tokens import LAWS, SURE, TOKENS, proposal
from tests.samplers.loop_parity import LENGTHS, NEW, compare
from tests.samplers.toys import prompts, toy


def test_scores_by_hand() -> None:
    """Three tokens share what the likeliest leaves: p - (1 - p) / 3."""
    found = proposal("margin")
    assert found.tokens[0].tolist() == list(TOKENS)
    assert found.score[0, :7].tolist() == pytest.approx([(4 * p - 1) / 3 for p in SURE[:7]], abs=1e-6)
    assert found.score[0, 7] == -torch.inf  # not eligible
    assert found.score.dtype == torch.float32


def test_the_filtered_score_is_of_what_is_drawn_from() -> None:
    """At a temperature of a half probabilities are squared."""
    sharp = (LAWS[:7, :4] ** 2 / (LAWS[:7, :4] ** 2).sum(-1, keepdim=True)).sort(-1).values
    found = proposal("margin:of=filtered", temperature=0.5)
    assert found.score[0, :7].tolist() == pytest.approx((sharp[:, 3] - sharp[:, 2]).tolist(), abs=1e-5)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("of", ["raw", "filtered"])
@pytest.mark.covers(1)
def test_the_order_is_that_of_the_naive_decoder(family: str, of: str) -> None:
    model, given = toy(family, seed=3, sharp=1.2), prompts(LENGTHS)
    distribution = {"temperature": 0.7, "top_k": 6} if of == "filtered" else {}
    for select, rule in {"sequential": naive.sequential, "fixed:steps=5": naive.fixed(5)}.items():
        compare(model, f"margin:of={of}+{select}", rule, given, NEW, **distribution)
