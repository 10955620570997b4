"""Entry f: the kernels of a step on the GPU, each beside the version before it and its definition.

Shapes are LLaDA-8B's and Qwen3-8B's, in bfloat16. A time is that of the GPU alone: the calls are captured as a CUDA
graph and replayed, so that the host's launches do not count. `before_ms` is the version that the kernel replaced, with
the shapes that it launched; `apart` the largest difference from the definition, over its largest value.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_runs.report import Report
from pardec.bench.clock import settle
from pardec.models.caches.kv_cache import KVCache
from pardec.models.kernels import attention_triton
from pardec.models.kernels.attention import attend, attention_pattern
from pardec.models.kernels.matmul import add_matmul_into
from pardec.models.kernels.norm_triton import norm_triton
from pardec.models.kernels.ops import REFERENCE, triton_ops
from pardec.models.plan import Plan, Visible
from pardec.samplers.ops import confidence_triton
from pardec.samplers.ops.confidence import _define

_CALLS, _TIMES = 20, 5  # calls of a graph, and replays of which the fastest counts
Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """A kernel on one shape: what runs now, what ran before, and the definition."""

    kernel: str
    shape: str
    now: Run
    before: Run | None
    definition: Run


@dataclass(frozen=True)
class Sizes:
    """The sizes of a model, of its canvas and of its window."""

    width: int = 4096
    inner: int = 12288
    heads: int = 32
    dim: int = 128
    few_heads: int = 8  # key heads of Qwen3
    vocab: int = 126464
    canvas: int = 480
    window: int = 32
    rows: tuple[int, ...] = (1, 8, 32, 64, 256, 480)


DRY = Sizes(width=32, inner=48, heads=2, dim=16, few_heads=1, vocab=300, canvas=24, window=4, rows=(2, 66))


@torch.inference_mode()
def run(report: Report) -> None:
    device = torch.device("cpu" if report.dry else "cuda")
    for case in cases(DRY if report.dry else Sizes(), device):
        report.measure({"kernel": case.kernel, "shape": case.shape}, partial(measured, case, device), least=2.0)
    slower = [f"{row['kernel']} {row['shape']}" for row in report.rows if row.get("ms", 0) > row.get("before_ms", 1e9)]
    report.line(f"{len(report.rows)} kernels; slower than before: {', '.join(slower) or 'none'}")


def measured(case: Case, device: torch.device) -> dict[str, Any]:
    """Milliseconds of each version, and the difference from the definition."""
    figures: dict[str, Any] = {"ms": milliseconds(case.now, device)}
    if case.before is not None:
        figures["before_ms"] = milliseconds(case.before, device)
    figures["definition_ms"] = milliseconds(case.definition, device)
    return {**figures, "apart": apart(case.now(), case.definition())}


def milliseconds(run: Run, device: torch.device) -> float:
    """Milliseconds of one call on the device; on a CPU, of a single call."""
    run()
    settle(device)
    if device.type == "cpu":
        started = time.perf_counter()
        run()
        return 1e3 * (time.perf_counter() - started)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            run()
    seconds = []
    for _ in range(_TIMES):
        settle(device)
        started = time.perf_counter()
        graph.replay()
        settle(device)
        seconds.append(time.perf_counter() - started)
    return 1e3 * min(seconds) / _CALLS


def apart(found: Any, expected: Any) -> float:
    """The largest difference of floating-point results, over the largest value."""
    pairs = zip(*((each,) if isinstance(each, Tensor) else tuple(each) for each in (found, expected)), strict=False)
    gaps = [
        float((one.float() - other.float()).abs().max() / other.float().abs().max().clamp(min=1e-6))
        for one, other in pairs
        if other is not None and other.is_floating_point()
    ]
    return max(gaps)


def cases(sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """The cases, whose tensors are made one after the other."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int, spread: float = 1.0) -> Tensor:
        return (torch.randn(shape, generator=generator, device=device) * spread).to(dtype)

    ops = triton_ops(all_of_them=False, fused=True)
    fused = ops.fused
    assert fused is not None
    gain, eps = normal(sizes.width) + 1, 1e-5
    out_weight = normal(sizes.width, sizes.width, spread=0.02)

    for rows in sizes.rows:
        x, gate_up = normal(rows, sizes.width), normal(rows, 2 * sizes.inner)
        pytorch = partial(REFERENCE.norm, x, gain, eps)
        yield Case("norm", f"{rows} rows", partial(norm_triton, x, gain, eps), pytorch, pytorch)
        gate, up = gate_up.chunk(2, -1)
        gated = partial(ops.glu, gate_up, "silu")
        yield Case("SwiGLU", f"{rows} rows", gated, None, lambda gate=gate, up=up: F.silu(gate) * up)
        y = normal(rows, sizes.width)

        def added(x: Tensor = x, y: Tensor = y) -> tuple[Tensor, Tensor]:
            total = x + y
            return total, REFERENCE.norm(total, gain, eps)

        yield Case("residual sum, norm", f"{rows} rows", partial(fused.add_norm, x, y, gain, eps), None, added)
        h, summed = x.clone(), partial(torch.addmm, x, y, out_weight.t())  # which copies x first
        yield Case("residual sum in a matmul", f"{rows} rows", partial(_summed, h, x, y, out_weight), summed, summed)
    for queries in (sizes.window, sizes.canvas):
        yield from _rotary(sizes, queries, normal, device, dtype)
    for queries, length, kv in (
        (sizes.window, sizes.canvas, sizes.heads),
        (sizes.window, sizes.canvas, sizes.few_heads),
        (1, sizes.canvas, sizes.few_heads),
        (1, 8 * sizes.canvas, sizes.few_heads),
        (sizes.canvas, sizes.canvas, sizes.heads),
    ):
        yield from _attention(sizes, queries, length, kv, normal, device, dtype)
    for rows in (1, sizes.window, 8 * sizes.window):
        logits = normal(rows, sizes.vocab, spread=3.0)
        keys = torch.arange(rows, device=device)
        whole = partial(confidence_triton.statistics, logits)
        yield Case("confidence", f"{rows} rows", whole, partial(_by_row, whole), lambda x=logits: _define(x.float()))
        drawn = partial(confidence_triton.statistics, logits, 0.7, keys=keys)
        yield Case("confidence, draw", f"{rows} rows", drawn, None, lambda x=logits: _define(x.float() / 0.7))


def _rotary(
    sizes: Sizes, queries: int, normal: Callable[..., Tensor], device: torch.device, dtype: torch.dtype
) -> Iterator[Case]:
    qkv = normal(1, queries, 3 * sizes.heads, sizes.dim)
    angle = torch.arange(queries, device=device)[None, :, None, None] * torch.ones(sizes.dim, device=device)
    tables = angle.cos(), angle.sin()
    more = {"kv_heads": sizes.heads, "head_dim": sizes.dim, "dtype": dtype, "device": device}
    cache = KVCache(layers=1, batch=1, capacity=sizes.canvas, **more)
    order = torch.arange(queries, device=device)[None]
    slots = cache.slots(Plan(order, order, order, Visible.bidirectional(), order[:, -1] + 1, order))
    ops = triton_ops(all_of_them=False)
    for name, place in (("no cache", None), ("cache", slots)):
        calls = [partial(each.rotary_and_cache, qkv, *tables, sizes.heads, place, 0) for each in (ops, REFERENCE)]
        yield Case("rotary", f"{queries} queries, {name}", calls[0], calls[1], calls[1])


def _attention(
    sizes: Sizes,
    queries: int,
    length: int,
    kv: int,
    normal: Callable[..., Tensor],
    device: torch.device,
    dtype: torch.dtype,
) -> Iterator[Case]:
    """The last queries of a text, under the two masks that a captured forward has."""
    q, k, v = (
        normal(1, queries, sizes.heads, sizes.dim),
        normal(1, length, kv, sizes.dim),
        normal(1, length, kv, sizes.dim),
    )
    order = torch.arange(length - queries, length, device=device)[None]
    lengths = torch.tensor([length], device=device)
    for name, visible in (("bidirectional", Visible.bidirectional()), ("causal", Visible.causal())):
        plan = Plan(order, order, order, visible, lengths, order - (length - queries))
        plain = attention_pattern(plan, extent=length, dtype=dtype, device=device, reference=True)
        found = replace(
            plain,
            backend="triton",
            mask=None,
            causal=False,
            dead=None,
            positions=order,
            lengths=lengths,
            visible=visible,
        )
        now = partial(attention_triton.attend_triton, q, k, v, found)
        shape = f"{name}, {queries} of {length}, {sizes.heads} heads, {kv} key heads"
        yield Case("attention", shape, now, partial(_narrow, now), partial(attend, q, k, v, plain))


def _summed(h: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    """The sum in place; x is copied to h where the result is looked at, and not where it is timed."""
    if not h.is_cuda or not torch.cuda.is_current_stream_capturing():
        h.copy_(x)
    return add_matmul_into(h, y, weight)


def _by_row(run: Run) -> Any:
    """`run` with one program per row, as confidence ran before."""
    with patch.object(confidence_triton, "_PROGRAMS", 1):
        return run()


def _narrow(run: Run) -> Any:
    """`run` with the tiles that attention of heads of 128 had before, and no parts."""
    tile = attention_triton.Tile(32, 32)
    with (
        patch.object(attention_triton, "tile_of", lambda *_: tile),
        patch.object(attention_triton, "parts_of", lambda *_: 1),
    ):
        return run()
