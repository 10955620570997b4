"""`smoothing`: the vectors added to inputs, compared with an independent decoder on embeddings; special cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan
from pardec.samplers.registry import resolve
from tests.samplers.toys import BLOCK, MASK, fill, fill_alone, prompts, same, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)


def naive(model: Any, canvas: list[int], prompt: int, weights: tuple[float, float, float]) -> tuple[list[int], int]:
    """One row, sequential commits: input = embedding + w * expected embedding at the open positions of the block."""
    first, growth, most = weights
    tokens, nfe, table = list(canvas), 0, model.decoder.embed.weight
    for lo in range(prompt, len(tokens), BLOCK):
        block, expected = range(lo, min(lo + BLOCK, len(tokens))), {}
        while any(tokens[p] == MASK for p in block):
            soft = torch.zeros(1, len(tokens), model.width)
            for p in block:
                if tokens[p] == MASK and p in expected:
                    soft[0, p] = min(first + growth * nfe, most) * expected[p]
            plan = Plan.full(torch.tensor([tokens]), model.visible())
            plan = Plan(**{**{f: getattr(plan, f) for f in plan.__slots__}, "soft": soft})
            rows = model.forward(plan).logits()[0].clone()
            rows[:, MASK] = -torch.inf
            distribution = {
                p: rows[max(p - model.decoding_config.shift, 0)].softmax(-1) for p in block if tokens[p] == MASK
            }
            expected = {p: sum(distribution[p][v] * table[v] for v in range(len(table))) for p in distribution}
            best = max(distribution, key=lambda p: (float(distribution[p].max()), -p))
            tokens[best] = int(distribution[best].argmax())
            nfe += 1
    return tokens, nfe


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_it_follows_its_formula(family: str) -> None:
    changed = False
    for seed in range(3):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        most = (2.0, 0.8, 1.0)[seed]  # never reached, reached after 3 forwards and after 5
        got = fill(model, f"sequential+smoothing:weight=0.5,growth=0.1,most={most}", given, NEW)
        plain = fill(model, "sequential", given, NEW)
        changed |= bool((got.tokens != plain.tokens).any())
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            tokens, nfe = naive(model, [*prompt, *[MASK] * new], len(prompt), (0.5, 0.1, most))
            assert got.tokens[row, : len(tokens)].tolist() == tokens
            assert got.nfe[row] == nfe
    assert changed, "smoothing changed nothing: the test shows nothing"


def test_no_weight_is_no_smoothing() -> None:
    model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
    one = fill(model, "smoothing:weight=0,growth=0+threshold:tau=0.4@dual", given, NEW)
    other = fill(model, "threshold:tau=0.4@dual", given, NEW)
    assert all(same(one, row, other, row) for row in range(3))


@pytest.mark.parametrize("spec", ["smoothing:weight=-1", "smoothing:growth=-0.1", "smoothing:most=-1"])
def test_bad_numbers_are_refused(spec: str) -> None:
    with pytest.raises(SpecError):
        resolve(spec)


def test_smoothing_adds_nothing_where_the_forward_before_predicted_nothing() -> None:
    """A causal prefix's first forward of a block predicts one position, whatever the other rows are."""
    model, given = toy("nemotron", sharp=1.2), prompts(LENGTHS)
    spec = "smoothing:weight=0.6,most=1+threshold:tau=0.4@causal"
    fill_alone(model, spec, given, NEW)
