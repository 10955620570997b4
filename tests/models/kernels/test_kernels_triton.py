"""The small Triton kernels compared with their definitions: on a GPU if there is one, else under the interpreter.

`test_attention_triton` starts the process in which they are interpreted.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.kernels.ops import REFERENCE, triton_ops
from pardec.models.layers.rope import Rope, default_frequencies
from pardec.models.plan import Plan, Visible
from tests.grids import fewer_where
from tests.triton_runs import DEVICE, INTERPRETED, WHERE_TRITON_RUNS

pytestmark = WHERE_TRITON_RUNS

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Random numbers in the first half of longer rows whose second half is NaN, so that wrong strides are detected."""
    held = torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(seed))
    held[..., shape[-1] :] = float("nan")
    return held.to(dtype)[..., : shape[-1]].to(DEVICE)


def close(found: Tensor, expected: Tensor, times: float = 1) -> None:
    error = (found.float() - expected.float()).abs().max() / expected.float().abs().max()
    assert error <= times * TOLERANCE[expected.dtype], error


@fewer_where(INTERPRETED)
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 24), (2, 0, 8), (4, 96), (2, 1000)], ids=str)
def test_norms(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = random(*shape, dtype=dtype)
    weight = torch.rand(shape[-1], device=DEVICE).to(dtype) + 0.5
    found = triton_ops(all_of_them=True).norm(x, weight, 1e-5)
    assert (found.shape, found.dtype) == (x.shape, dtype)
    if not x.numel():
        return
    wide = x.float()
    close(found, (wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.float()).to(dtype))


@fewer_where(INTERPRETED)
@DTYPES
@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 34), (0, 8), (2, 4200)], ids=str)
def test_gate(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    both = random(*shape, dtype=dtype)
    before = both.clone()
    found = triton_ops(all_of_them=True).glu(both, "silu")
    assert found.shape == (*shape[:-1], shape[-1] // 2)
    assert torch.equal(both, before)
    if found.numel():
        close(found, torch.nn.functional.silu(both[..., : shape[-1] // 2]) * both[..., shape[-1] // 2 :])


@fewer_where(INTERPRETED)
@DTYPES
@pytest.mark.parametrize(
    ("batch", "queries", "heads", "kv", "dim", "turned"),
    [(1, 1, 1, 1, 4, 4), (2, 3, 4, 2, 24, 24), (3, 5, 2, 1, 20, 12)],
    ids=str,
)
def test_rotary_and_cache(
    batch: int, queries: int, heads: int, kv: int, dim: int, turned: int, dtype: torch.dtype
) -> None:
    qkv = random(batch, queries, heads + 2 * kv, dim, dtype=dtype)
    positions = torch.randint(0, 40, (batch, queries), generator=torch.Generator().manual_seed(3)).to(DEVICE)
    cos, sin = Rope(default_frequencies(1e4, turned))._angles(positions)
    at = (torch.arange(queries, device=DEVICE) * 7 + 2).expand(batch, -1)
    plan = Plan(at, at, at, Visible.causal(), torch.full((batch,), 40, device=DEVICE), at)
    untouched = [slot for slot in range(41) if slot not in at[0].tolist()]
    for shared in (False, True):
        c, s = (cos[:1], sin[:1]) if shared else (cos, sin)
        results = []
        for ops in (REFERENCE, triton_ops(all_of_them=True)):
            cache = KVCache(layers=2, batch=batch, capacity=40, kv_heads=kv, head_dim=dim, dtype=dtype, device=DEVICE)
            for tensor in (*cache.k, *cache.v):
                tensor.fill_(7)
            q, k, v = ops.rotary_and_cache(qkv, c, s, heads, cache.slots(plan), 1)
            assert (k.data_ptr(), v.data_ptr()) == (cache.k[1].data_ptr(), cache.v[1].data_ptr())
            assert all((tensor == 7).all() for tensor in (cache.k[0], cache.v[0]))
            results.append((q, k, v))
        (q, k, v), (expected_q, expected_k, expected_v) = results[1], results[0]
        close(q, expected_q)
        close(k, expected_k)
        assert torch.equal(v, expected_v)
        assert (k[:, untouched] == 7).all()


@DTYPES
@pytest.mark.parametrize("turned", [8, 4])
def test_rotary_without_a_cache(turned: int, dtype: torch.dtype) -> None:
    """Queries and keys are turned by one kernel, and values stay where they are."""
    qkv = random(2, 3, 9, 8, dtype=dtype)  # five heads, two key heads
    cos, sin = Rope(default_frequencies(1e4, turned))._angles(torch.tensor([[0, 5, 9], [7, 1, 30]], device=DEVICE))
    for c, s in ((cos, sin), (cos[:1], sin[:1])):
        q, k, v = triton_ops(all_of_them=True).rotary_and_cache(qkv, c, s, 5, None, 0)
        expected = REFERENCE.rotary_and_cache(qkv, c, s, 5, None, 0)
        close(q, expected[0])
        close(k, expected[1])
        assert v.data_ptr() == expected[2].data_ptr()
        assert torch.equal(v, expected[2])


@DTYPES
def test_other_activations_take_the_definition(dtype: torch.dtype) -> None:
    ops, gate_up = triton_ops(all_of_them=True), random(3, 8, dtype=dtype)
    assert torch.equal(ops.glu(gate_up.clone(), "gelu_tanh"), REFERENCE.glu(gate_up.clone(), "gelu_tanh"))
