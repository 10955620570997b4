"""The Triton kernel against the definition; without a GPU, test_attention_triton.py (models) runs this interpreted."""

from __future__ import annotations

import importlib.util
import os

import numpy as np
import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not INTERPRETED and DEVICE.type != "cuda", reason="needs a GPU or Triton's interpreter"),
]


def define(logits):
    """Each statistic computed separately, in float64."""
    x = logits.double()
    distribution = x.softmax(-1)
    first = x.max(-1).values
    ids = (x == first[..., None]).int().argmax(-1)
    second = x.scatter(-1, ids[..., None], float("-inf")).max(-1).values
    entropy = -(distribution * distribution.clamp(min=1e-300).log()).sum(-1)
    return ids, first, second, (x - first[..., None]).exp().sum(-1), entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 5, 97, 4096, 5001])
def test_kernel_equals_the_definition(vocab, dtype):
    from pardec.samplers.ops.confidence_triton import confidence

    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(2, vocab, 3, generator=generator) * 5).to(dtype).transpose(1, 2)  # not contiguous
    if vocab > 2:
        logits[0, 0, vocab - 1] = logits[0, 0].max()  # a tie
        logits[1, 1, 0] = float("-inf")  # a token that is ruled out
        logits[1, 2, : vocab - 1] = float("-inf")  # a token that is certain
    found = [value.cpu() for value in confidence(logits.to(DEVICE))]
    expected = define(logits)
    assert torch.equal(found[0], expected[0])
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_no_rows_give_no_rows():
    from pardec.samplers.ops.confidence_triton import confidence

    assert [value.shape for value in confidence(torch.empty(0, 4, 7, device=DEVICE))] == [(0, 4)] * 5


def boosted(count: int, vocab: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Three tokens [N, 3] of each row and their boosts: one of 0, one token twice."""
    tokens = torch.randint(0, vocab, (count, 3), generator=generator)
    tokens[0, 1] = tokens[0, 0]
    by = torch.rand(count, 3, generator=generator) * 4
    by[:, 2] = 0
    return tokens, by


def near(found, expected) -> None:
    assert torch.equal(found[0].cpu(), expected[0])
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("vocab", [3, 97, 4500])
def test_temperature_and_raised_logits_are_folded_in(vocab, temperature, monkeypatch):
    from pardec.samplers.ops.confidence import confidence

    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(4, 2 * vocab, generator=generator)[:, :vocab]  # rows lie apart
    tokens, by = boosted(4, vocab, generator)
    by[1, 0] = float("-inf")  # ruled out
    changed = logits.double().scatter_add(-1, tokens, by.double()) / temperature
    found = confidence(logits.to(DEVICE), temperature=temperature, tokens=tokens.to(DEVICE), by=by.to(DEVICE))
    near(found, define(changed))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_law_over_a_temperature_keeps_no_logits_and_says_the_same(temperature, monkeypatch):
    from pardec.samplers.ops.distribution import DenseDistribution

    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 3, 50, generator=generator)
    tokens, by = boosted(6, 50, generator)
    base = DenseDistribution(logits).boosted(tokens.view(2, 3, 3), by.view(2, 3, 3))
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    plain = base.scaled(temperature)
    places = np.arange(6)

    def noise(some: np.ndarray) -> torch.Tensor:
        return (torch.arange(50)[None] * 7 % 50 + torch.from_numpy(some)[:, None] + 1).double() / 60

    expected, drawn = plain.confidence, plain.draw(places, noise)
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    distribution = DenseDistribution(logits.to(DEVICE)).boosted(
        tokens.view(2, 3, 3).to(DEVICE), by.view(2, 3, 3).to(DEVICE)
    )
    distribution = distribution.scaled(temperature)
    near(distribution.confidence, [each.double() if each.is_floating_point() else each for each in expected])
    assert torch.equal(distribution.draw(places, lambda some: noise(some).to(DEVICE)).cpu(), drawn)
    assert torch.allclose(distribution.greedy[1].cpu(), plain.greedy[1])
    torch.testing.assert_close(  # a GPU divides by the temperature with another rounding
        distribution.logits_of(distribution.greedy[0][..., None]).cpu(),
        plain.logits_of(plain.greedy[0][..., None]),
        rtol=3e-7 if DEVICE.type == "cuda" else 0,
        atol=0,
    )
    assert temperature == 1 or "rows" not in vars(distribution)
