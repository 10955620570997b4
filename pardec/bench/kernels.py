"""Times each kernel's definition, its Triton and C versions, and the time of moving its bytes.

Triton's versions are timed on CUDA only, since the interpreter says nothing of their speed; those in C where the
engine would choose them. A matmul's definition is PyTorch's, over the same matrix row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.kernels.attention import AttentionPattern, attend, attention_pattern
from pardec.models.kernels.choice import Backend, runs_in_c
from pardec.models.kernels.cpu import library, panels
from pardec.models.kernels.cpu.panels import Panels
from pardec.models.kernels.ops import REFERENCE, C, Ops, triton_ops
from pardec.models.plan import Plan, Visible
from pardec.samplers.ops.confidence import _define

from .floor import bandwidth, best

WINDOW, CANVAS = 32, 512
Run = Callable[[Backend], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """A kernel on one shape, and the least bytes that it has to move."""

    name: str
    shape: str
    run: Run
    moved: int
    versions: tuple[Backend, ...] = ("triton",)  # besides the definition


def bench(device: torch.device, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """One row per kernel: LLaDA-8B's shapes on a GPU, smaller ones on a CPU; seconds are the best of a few trials."""
    wide = device.type == "cuda"
    with torch.inference_mode():
        available: dict[Backend, bool] = {"triton": wide and _has_triton(), "c": runs_in_c(device, dtype)}
    for case in cases(device, dtype, width=4096 if wide else 512, vocab=126464 if wide else 32000):
        speed = bandwidth(device, max(case.moved, 1 << 16))
        with torch.inference_mode():
            reference = best(partial(case.run, "reference"), device)
            others = [backend for backend in case.versions if available[backend]]
            fast = {backend: best(partial(case.run, backend), device) for backend in others}
            errors = [_largest_error(case.run("reference"), case.run(backend)) for backend in others]
        yield {
            "kernel": case.name,
            "shape": case.shape,
            "dtype": str(dtype).removeprefix("torch."),
            "reference_s": reference,
            "triton_s": fast.get("triton"),
            "c_s": fast.get("c"),
            "furthest": max(errors, default=None),
            "floor_s": case.moved / speed,
            "moved_bytes": case.moved,
        }


def cases(device: torch.device, dtype: torch.dtype, *, width: int, vocab: int) -> list[Case]:
    """A window of 32 queries over a canvas of 512, of a stack of `width` with heads of width 64 or 128."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    dim = 128 if width >= 1024 else 64
    heads, size = width // dim, torch.empty((), dtype=dtype).element_size()
    x, gain = normal(WINDOW, width), normal(width)
    gate_up = normal(WINDOW, 6 * width)
    logits = torch.randn(WINDOW, vocab, generator=generator, device=device)
    both: tuple[Backend, ...] = ("triton", "c")
    cases = [
        _matmul(x, normal(6 * width, width)),
        Case("norm", f"{WINDOW} x {width}", lambda kind: _ops(kind).norm(x, gain, 1e-5), 2 * x.nbytes, both),
        Case("swiglu", f"{WINDOW} x 2 x {3 * width}", partial(_swiglu, gate_up), gate_up.nbytes * 3 // 2, both),
        Case("confidence", f"{WINDOW} x {vocab}", partial(_confidence, logits), logits.nbytes),
        _rotary(normal(1, WINDOW, 3 * heads, dim), heads, dim),
    ]
    kv = heads * dim * size
    for kind, kv_heads in (("bidirectional", heads), ("causal", heads), ("tree", heads), ("bidirectional", heads // 4)):
        q, k, v = normal(1, WINDOW, heads, dim), normal(1, CANVAS, kv_heads, dim), normal(1, CANVAS, kv_heads, dim)
        run = partial(_attention, q, k, v, _plan(kind, device))
        shape = f"{WINDOW} queries of {CANVAS}, {heads} heads of {dim}, {kv_heads} KV heads"
        versions: tuple[Backend, ...] = both if kind == "bidirectional" else ("triton",)
        cases.append(Case(f"attention, {kind}", shape, run, 2 * WINDOW * kv + k.nbytes + v.nbytes, versions))
    return cases


def _matmul(x: Tensor, matrix: Tensor) -> Case:
    rows, columns = matrix.shape
    packed: list[Panels] = []

    def run(backend: Backend) -> Tensor:
        if backend != "c":
            return F.linear(x, matrix)
        if not packed:
            packed.append(panels.empty(rows, columns, matrix.dtype))
            packed[0].fill(matrix)
        return packed[0].matmul(x)

    by_pytorch = matrix.dtype == torch.bfloat16 and library.has_tiles()
    versions: tuple[Backend, ...] = () if by_pytorch else ("c",)
    moved = x.nbytes + matrix.nbytes + len(x) * rows * x.element_size()
    return Case("matmul", f"{len(x)} x {columns}, {rows} x {columns}", run, moved, versions)


def _ops(backend: Backend) -> Ops:
    return triton_ops(all_of_them=True) if backend == "triton" else C if backend == "c" else REFERENCE


def _swiglu(gate_up: Tensor, backend: Backend) -> Tensor:
    return _ops(backend).glu(gate_up.clone(), "silu")


def _confidence(logits: Tensor, backend: Backend) -> Any:
    if backend == "triton":
        from pardec.samplers.ops.confidence_triton import confidence

        return confidence(logits)
    return tuple(_define(logits))


def _rotary(qkv: Tensor, heads: int, dim: int) -> Case:
    plan = _plan("bidirectional", qkv.device)
    cache = KVCache(
        layers=1, batch=1, capacity=CANVAS, kv_heads=heads, head_dim=dim, dtype=qkv.dtype, device=qkv.device
    )
    angle = torch.arange(WINDOW, device=qkv.device)[None, :, None, None] * torch.ones(dim, device=qkv.device)
    cos, sin, slots = angle.cos(), angle.sin(), cache.slots(plan)

    def run(backend: Backend) -> Tensor:
        return _ops(backend).rotary_and_cache(qkv, cos, sin, heads, slots, 0)[0]

    return Case("rotary_and_cache", f"{WINDOW} x {3 * heads} heads of {dim}", run, 2 * qkv.nbytes, ("triton", "c"))


def _plan(kind: str, device: torch.device) -> Plan:
    """The last 32 positions of a canvas of 512."""
    order = torch.arange(CANVAS - WINDOW, CANVAS, device=device)[None]
    parents = torch.arange(-1, WINDOW - 1, device=device)
    visible = {
        "bidirectional": Visible.bidirectional(),
        "causal": Visible.causal(),
        "tree": Visible.tree(parents, torch.tensor([CANVAS - WINDOW], device=device)),
    }[kind]
    lengths = torch.tensor([CANVAS], device=device)
    want = torch.arange(WINDOW, device=device)[None]
    return Plan(order, order, order, visible, lengths, want, uniform=CANVAS, span=(CANVAS - WINDOW, CANVAS))


def _attention(q: Tensor, k: Tensor, v: Tensor, plan: Plan, backend: Backend) -> Tensor:
    return attend(q, k, v, _pattern(plan, q.dtype, backend))


def _pattern(plan: Plan, dtype: torch.dtype, backend: Backend) -> AttentionPattern:
    pattern = attention_pattern(plan, extent=CANVAS, dtype=dtype, device=plan.tokens.device, reference=True)
    if backend != "triton":
        return replace(pattern, backend=backend)
    index = torch.arange(plan.width, device=plan.positions.device)
    return replace(
        pattern,
        backend="triton",
        mask=None,
        causal=False,
        dead=None,
        positions=plan.positions,
        lengths=plan.lengths,
        visible=plan.visible,
        nodes=index.expand(plan.positions.shape) if plan.visible.kind == "tree" else None,
    )


def _largest_error(one: Any, other: Any) -> float:
    """The largest difference between the results of two runs."""
    ones, others = ((result,) if isinstance(result, Tensor) else tuple(result) for result in (one, other))
    return max(float((a.float() - b.float()).abs().max()) for a, b in zip(ones, others, strict=True))


def _has_triton() -> bool:
    from importlib.util import find_spec

    return find_spec("triton") is not None
