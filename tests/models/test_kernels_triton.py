"""The small kernels in Triton against their definitions: on a GPU where there is one, under the interpreter elsewhere.

`test_attention_triton` starts the process in which they are interpreted.
"""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch
from torch import Tensor

from pardec.models.kernels.norm import add_norm, norm
from pardec.models.kernels.rotary import turn_and_store
from pardec.models.kernels.swiglu import gated
from pardec.models.rope import Rope, default_frequencies

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not INTERPRETED and DEVICE.type != "cuda", reason="no GPU, and not interpreted"),
]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Every other number of a longer row is poison, so that strides have to be minded."""
    held = torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(seed))
    held[..., shape[-1] :] = float("nan")
    return held.to(dtype)[..., : shape[-1]].to(DEVICE)


def close(found: Tensor, expected: Tensor) -> None:
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error <= TOLERANCE[expected.dtype], error


@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 24), (2, 0, 8), (4, 96), (2, 1000)], ids=str)
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, h = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    weight = torch.rand(shape[-1], device=DEVICE).to(dtype) + 0.5
    found = norm(x, weight, 1e-5, "triton")
    assert (found.shape, found.dtype) == (x.shape, dtype)
    if not x.numel():
        return
    wide = x.float()
    close(found, (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.float()).to(dtype))
    total, normed = add_norm(h, x, weight, 1e-5, "triton")
    close(total, h + x)  # the interpreter cuts what a GPU rounds
    close(normed, norm(h + x, weight, 1e-5))


@DTYPES
@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 34), (0, 8), (2, 4200)], ids=str)
def test_gate(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    both = random(*shape, dtype=dtype)
    before = both.clone()
    found = gated(both, "triton")
    assert found.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.equal(both, before)
    if found.numel():
        close(found, torch.nn.functional.silu(both[..., : shape[-1] // 2]) * both[..., shape[-1] // 2 :])


@DTYPES
@pytest.mark.parametrize(
    ("batch", "queries", "heads", "kv", "dim", "turned"),
    [(1, 1, 1, 1, 4, 4), (2, 3, 4, 2, 24, 24), (3, 5, 2, 1, 20, 12)],
    ids=str,
)
def test_turn_and_store(
    batch: int, queries: int, heads: int, kv: int, dim: int, turned: int, dtype: torch.dtype
) -> None:
    fused = random(batch, queries, heads + 2 * kv, dim, dtype=dtype)
    positions = torch.randint(0, 40, (batch, queries), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    slots = 41
    cos, sin = Rope(default_frequencies(1e4, turned))._angles(positions)
    where = (
        torch.arange(batch, device=DEVICE)[:, None] * slots + torch.arange(queries, device=DEVICE) * 7 + 2
    ).flatten()
    for shared in (False, True):
        c, s = (cos[:1], sin[:1]) if shared else (cos, sin)
        kept = [torch.full((batch, slots, kv, dim), 7.0, dtype=dtype, device=DEVICE) for _ in range(4)]
        expected = turn_and_store(fused, c, s, kept[0], kept[1], where, heads)
        found = turn_and_store(fused, c, s, kept[2], kept[3], where, heads, "triton")
        close(found, expected)
        close(kept[2], kept[0])
        assert torch.equal(kept[3], kept[1])
        untouched = torch.ones(batch * slots, dtype=torch.bool, device=DEVICE)
        untouched[where] = False
        assert (kept[2].flatten(0, 1)[untouched] == 7).all()
