"""Sums over neighbours against loops, as defined and in Triton; test_attention_triton.py (models) interprets it."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

from pardec.samplers.ops.neighbourhood import mass_within, neighbour_sums

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
HAS = importlib.util.find_spec("triton") is not None and (INTERPRETED or DEVICE.type == "cuda")
KERNELS = ["reference", pytest.param("triton", marks=pytest.mark.skipif(not HAS, reason="no GPU, and not interpreted"))]
SHAPES = [(1, 2, 1), (3, 17, 5), (2, 40, 40), (2, 1100, 1050), (2, 5, 0)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("rows", "vocab", "k"), SHAPES)
@pytest.mark.parametrize("kernels", KERNELS)
def test_sums_over_neighbours(kernels, rows, vocab, k, dtype, monkeypatch):
    monkeypatch.setenv("PARDEC_KERNELS", kernels)
    drawn = torch.Generator().manual_seed(vocab)
    held = torch.full((rows, vocab + 3), float("nan"), dtype=dtype)  # rows lie apart, poison between them
    held[:, :vocab] = torch.rand(rows, vocab, generator=drawn).softmax(-1)
    distribution = held[:, :vocab]
    table = torch.stack([torch.randperm(vocab, generator=drawn) for _ in range(vocab)]).int()
    nearest = table[:, :k]  # a part of a wider table
    ids = torch.randint(0, vocab, (rows, 3), generator=drawn)
    found = neighbour_sums(distribution.to(DEVICE), ids.to(DEVICE), nearest.to(DEVICE)).cpu()
    expected = [[distribution[row, table[token, :k].long()].sum() for token in ids[row]] for row in range(rows)]
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch.tensor(expected, dtype=dtype))
    whole = float(distribution[0].sum())
    for limit in (-1.0, 0.0, 0.3, whole * 1.001):
        mass, fits = mass_within(
            distribution.to(DEVICE),
            ids[:, 0].to(DEVICE),
            nearest.to(DEVICE),
            torch.full((rows,), limit).to(dtype).to(DEVICE),
        )
        for row in range(rows):
            each = distribution[row, table[ids[row, 0], :k].long()].double()
            sums = [0.0, *each.cumsum(0).tolist()]
            allowed = [total for total in sums if total <= limit]
            assert mass[row].item() == pytest.approx(max(allowed, default=0.0), rel=1e-4, abs=1e-6)
            assert bool(fits[row]) == (len(allowed) > 1)
