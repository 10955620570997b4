"""Layers whose sums, norms and rotations run in Triton, and the kernels as operations of torch.compile.

On a GPU if there is one, else under the interpreter: `test_attention_triton` starts that process.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.kernels import ops as ops_module
from pardec.models.kernels.ops import REFERENCE, triton_ops
from pardec.models.layers.rope import Rope, default_frequencies
from pardec.models.plan import Plan, Visible
from tests.grids import fewer_where
from tests.models.kernels.test_kernels_triton import close, random
from tests.models.toys import ids, model
from tests.triton_runs import DEVICE, INTERPRETED, WHERE_TRITON_RUNS

pytestmark = WHERE_TRITON_RUNS

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
BRAIN = torch.bfloat16


@fewer_where(INTERPRETED)
@DTYPES
@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 24), (0, 8), (2, 1000)], ids=str)
def test_residual_sum_with_its_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    from pardec.models.kernels.norm_triton import add_norm_triton

    h, x = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    gain = torch.rand(shape[-1], device=DEVICE).to(dtype) + 0.5
    total, normed = add_norm_triton(h, x, gain, 1e-5)
    if h.numel():
        close(total, h + x)
        close(normed, F.rms_norm((h + x).float(), shape[-1:], gain.float(), 1e-5).to(dtype))


@fewer_where(INTERPRETED)
@pytest.mark.parametrize(("rows", "bias", "cached"), [(3, False, True), (3, True, True), (17, False, False)])
def test_a_layer_in_few_operations(rows: int, bias: bool, cached: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows and many, with a cache and without, all queries and some; taps keep the states of their layer."""
    decoder = model(layers=2 if cached else 1, kv_heads=2, out_bias=bias, qkv_bias=bias, qk_norm=bias).decoder.to(
        DEVICE
    )
    state = {name: value.bfloat16() for name, value in decoder.state_dict().items()}
    plan = Plan.full(ids(2, rows), Visible.bidirectional(), torch.full((2,), rows))
    plans = replace(plan, hidden=(-1, 0)), replace(plan, want=torch.tensor([[0, 2]] * 2), narrow=True)
    found: dict[str, list[Tensor]] = {}
    for name in ("triton", "reference"):
        monkeypatch.setenv("PARDEC_KERNELS", name)
        decoder = decoder.to(BRAIN if name == "triton" else torch.float32)
        decoder.load_state_dict(state)
        found[name] = []
        with torch.inference_mode():
            for asked in plans[: 1 if rows > 3 else 2]:
                cache = decoder.new_cache(2, rows) if cached else None
                fused = decoder._pass(asked, cache, DEVICE, decoder.embed.weight.dtype, None, None).ops.fused
                assert (fused is not None) == (name == "triton")
                hidden = decoder.forward(asked, cache)
                found[name] += [hidden.logits(), *hidden.taps.values()]
    for out, expected in zip(found["triton"], found["reference"], strict=True):
        # The interpreter cuts bfloat16 off, where a GPU rounds.
        assert (out.float() - expected.float()).norm() < 0.05 * expected.float().norm()


@fewer_where(INTERPRETED)
@DTYPES
@pytest.mark.parametrize(("dim", "turned"), [(16, 16), (24, 12)])
def test_heads_are_normed_before_they_are_turned(dim: int, turned: int, dtype: torch.dtype) -> None:
    """Queries and keys with gains of their own, values as they are; with a cache and without."""
    ops = triton_ops(all_of_them=False, fused=True)
    qkv, gains = random(2, 3, 9, dim, dtype=dtype), [random(dim, dtype=dtype, seed=seed) + 1 for seed in (1, 2)]
    cos, sin = Rope(default_frequencies(1e4, turned))._angles(torch.tensor([[0, 5, 9], [7, 1, 30]], device=DEVICE))
    q, k, v = qkv.split([5, 2, 2], 2)
    q, k = (F.rms_norm(x, (dim,), gain.contiguous(), 1e-5) for x, gain in zip((q, k), gains, strict=True))
    expected = REFERENCE.rotary_and_cache(torch.cat((q, k, v), 2), cos, sin, 5, None, 0)
    cache = KVCache(layers=1, batch=2, capacity=4, kv_heads=2, head_dim=dim, dtype=dtype, device=DEVICE)
    order = torch.arange(3, device=DEVICE).repeat(2, 1)
    slots = cache.slots(Plan(order, order, order, Visible.causal(), order[:, -1] + 1, order))
    for place in (None, slots):
        found = ops.fused.norm_rotary(qkv, cos, sin, 5, place, 0, (*gains, 1e-5))
        close(found[0], expected[0])
        close(found[1][:, :3], expected[1])
        assert torch.equal(found[2][:, :3], v)


def operations() -> list[tuple[Any, tuple[Any, ...]]]:
    """Each operation of PyTorch, with arguments."""
    from pardec.models.kernels import torch_ops
    from pardec.samplers.ops.confidence_triton import statistics_op

    x, gain = torch.randn(3, 16), torch.ones(16)
    qkv, cos, sin = torch.randn(1, 3, 4, 8), torch.randn(1, 3, 1, 8), torch.randn(1, 3, 1, 8)
    q, (k, v) = torch.randn(1, 3, 2, 16), torch.randn(2, 1, 6, 1, 16)
    order, lengths = torch.arange(3)[None], torch.tensor([3])
    cached = torch.zeros(1, 9, 1, 8), torch.zeros(1, 9, 1, 8), torch.tensor([2, 4, 5])
    found = [
        (torch_ops.rotary, (qkv, cos, sin, 2, torch.ones(8), torch.ones(8), 1e-5)),
        (torch_ops.rotary_into_cache, (qkv, cos, sin, 2, *cached, None, None, 0.0)),
        (torch_ops.swiglu, (x,)),
        (torch_ops.add_norm, (x, x + 1, gain, 1e-5)),
        (torch_ops.attention, (q, k, v, order, lengths, None, None, None, None, None, 1, 3, 1)),
        (statistics_op, (torch.randn(2, 9), 0.7, None, None, torch.tensor([4, 5]))),
    ]
    return [(op, tuple(a.to(DEVICE) if isinstance(a, Tensor) else a for a in given)) for op, given in found]


@pytest.mark.parametrize("index", range(6))
def test_operations_hold_what_torch_compile_asks_of_them(index: int) -> None:
    operation, arguments = operations()[index]
    torch.library.opcheck(operation, arguments)


def test_a_compiled_layer_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels stand in the graph as operations, between those that are fused."""
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    ops = triton_ops(all_of_them=False, fused=True)
    fused = ops.fused
    cache = KVCache(layers=1, batch=1, capacity=4, kv_heads=1, head_dim=8, device=DEVICE)
    order = torch.arange(3, device=DEVICE)[None]
    slots = cache.slots(Plan(order, order, order, Visible.causal(), torch.tensor([3], device=DEVICE), order))
    slots.flat  # noqa: B018
    cos, sin = torch.randn(2, 1, 3, 1, 8, device=DEVICE).unbind(0)
    gain, qkv_weight = torch.ones(16).bfloat16().to(DEVICE), (torch.randn(32, 16) / 4).bfloat16().to(DEVICE)

    def run(h: Tensor) -> tuple[Tensor, ...]:
        qkv = F.linear(ops.norm(h * 2, gain, 1e-5), qkv_weight).view(1, 3, 4, 8).float()
        q, k, v = ops.rotary_and_cache(qkv, cos, sin, 2, slots, 0)
        h, normed = fused.add_norm(h, q.flatten(2)[0].bfloat16(), gain, 1e-5)
        return normed + 1, k.clone(), v.clone(), ops.glu(h, "silu")

    graphs: list[Any] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    h = torch.randn(3, 16).bfloat16().to(DEVICE)
    with torch.no_grad():
        expected = run(h)
        found = torch.compile(run, backend=backend, fullgraph=True)(h)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    named = {str(node.target) for node in graphs[0].graph.nodes if "pardec" in str(node.target)}
    assert len(graphs) == 1
    assert len(named) == 3


def test_definitions_are_what_others_run() -> None:
    assert REFERENCE.fused is None
    assert ops_module.C.fused is None
    assert os.environ.get("TRITON_INTERPRET") == "1" or DEVICE.type == "cuda"
