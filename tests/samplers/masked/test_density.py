"""`density`: the probability times the share of known tokens around a position; by hand and against a naive rule."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.ops.confidence import certainty_density
from tests.reference import naive_dependence as naive
from tests.samplers.dependence_parity import MODELS, model_of
from tests.samplers.eight_tokens import LAWS, proposal
from tests.samplers.toys import prompts, request, run, table


@pytest.mark.parametrize("sigma", [0.3, 1.0, 10.0])
def test_densities_are_the_definition(sigma: float) -> None:
    known = torch.tensor([[True, False, False, True, False], [False, False, True, False, False]])
    total = torch.tensor([5, 3])
    got = certainty_density(known, total, sigma)
    for row, size in enumerate(total.tolist()):
        expected = [naive.density(known[row, :size].tolist(), sigma, i) for i in range(size)]
        assert got[row, :size].tolist() == pytest.approx(expected, abs=1e-6)


def test_the_order_by_hand() -> None:
    """With equal probabilities, known tokens on the left only weigh more than known tokens between two masks."""
    flat = table(torch.full((6, 9), 1 / 9))
    mask = 8
    got = run(flat, "density:sigma=1", request([[0, mask, mask, mask, mask, mask]], [1], block_length=5))
    assert got.trace.commit_step[0].tolist() == [-1, 0, 1, 2, 3, 4]
    # At 1, 2 and 4 it is .355, .301 and .242; then 2 has .543 and 4 .247.
    got = run(flat, "density:sigma=1", request([[0, mask, mask, 0, mask]], [1], block_length=4))
    assert got.trace.commit_step[0].tolist() == [-1, 0, 1, -1, 2]
    known = torch.tensor([[True, False, False, True, False]])
    assert certainty_density(known, torch.tensor([5]), 1.0)[0, [1, 2, 4]].tolist() == pytest.approx(
        [0.355, 0.301, 0.242], abs=1e-3
    )


def test_a_drawn_token_counts_with_its_own_probability_before_the_temperature() -> None:
    greedy, drawn = proposal("density"), proposal("density", temperature=2.0)
    own, most = (LAWS.gather(1, found.tokens[0, :, None])[:7, 0] for found in (drawn, greedy))
    assert (own < most).any()
    assert drawn.score[0, :7].tolist() == pytest.approx((greedy.score[0, :7] * own / most).tolist(), rel=1e-5)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("sigma", [1.0, 10.0])
@pytest.mark.covers(1)
def test_the_order_is_that_of_the_naive_rule(name: str, sigma: float) -> None:
    model, start, size = model_of(name), 5, 17
    mask = model.decoding_config.mask_id
    assert mask is not None
    (prompt,) = prompts((start,), vocab=min(100, model.vocab_size))
    canvas = [*prompt, *[mask] * (size - start)]
    got = run(model, f"density:sigma={sigma}", request([canvas], [start], block_length=size))
    known = [token != mask for token in canvas]

    def rule(view: naive.View) -> list[int]:
        best = max(view.open, key=lambda p: (view.p[p] * naive.density(known, sigma, p), -p))
        known[best] = True
        return [best]

    tokens, when, _ = naive.decode(model, canvas, start, rule, size)
    assert got.trace.commit_step[0].tolist() == when
    assert got.tokens[0].tolist() == tokens
