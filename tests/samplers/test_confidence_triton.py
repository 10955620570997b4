"""The Triton kernel against the definition; without a GPU, test_attention_triton.py (models) runs this interpreted."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not INTERPRETED and DEVICE.type != "cuda", reason="needs a GPU or Triton's interpreter"),
]


def define(logits):
    """Each statistic by itself, in float64."""
    x = logits.double()
    law = x.softmax(-1)
    first = x.max(-1).values
    ids = (x == first[..., None]).int().argmax(-1)
    second = x.scatter(-1, ids[..., None], float("-inf")).max(-1).values
    entropy = -(law * law.clamp(min=1e-300).log()).sum(-1)
    return ids, first, second, (x - first[..., None]).exp().sum(-1), entropy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 5, 97, 4096, 5001])
def test_kernel_equals_the_definition(vocab, dtype):
    from pardec.samplers.kernels.confidence_triton import confidence

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
    from pardec.samplers.kernels.confidence_triton import confidence

    assert [value.shape for value in confidence(torch.empty(0, 4, 7, device=DEVICE))] == [(0, 4)] * 5
