"""Every Triton kernel compiles for GPUs with its wrapper's launch arguments, on a machine without a GPU.

The interpreter says whether a kernel is right, and takes what the compiler refuses. The compiler needs no GPU: here a
launch ends with its machine code. Tensors are on the device "meta": they have types, strides and places and no numbers,
so that shapes are those of real models, and a wrapper that reads one on the host fails.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.files import cache_dir
from pardec.models.kernels import choice
from pardec.models.kernels.attention import attend, attention_pattern
from pardec.models.kernels.ops import triton_ops
from pardec.models.plan import Plan, Visible
from pardec.samplers.ops.confidence import confidence
from pardec.samplers.ops.neighbourhood import mass_within, neighbour_sums
from pardec.samplers.rng import Keyed as Source
from pardec.samplers.speculative.contracts import Draft, RoundUniforms
from pardec.samplers.speculative.ops.verification import judge
from tests.grids import thinned
from tests.models.toys import model

triton = pytest.importorskip("triton")
tl = pytest.importorskip("triton.language")
pytestmark = [
    pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="this process interprets the kernels"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "build" / "triton"
META = torch.device("meta")
SHARED = {90: 227 << 10, 80: 99 << 10}  # bytes that a program may have; 99 KiB are those of the smallest sm_8x
ARCHES = pytest.mark.parametrize("arch", [90, pytest.param(80, marks=pytest.mark.slow)], ids="sm_{}".format)
SPILLED = 64  # bytes of registers a thread that may go through memory
FULL, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
VOCAB, WIDTH = 126464, 4096  # LLaDA-8B's


class Launch(NamedTuple):
    """The result of one launch."""

    kernel: str  # module:function
    compiled: Any
    grid: tuple[int, ...]
    registers: int
    spilled: int  # bytes


@dataclass(frozen=True, slots=True)
class Pointer:
    """A fake tensor of a launch: its offset matters, in memory whose start has every alignment."""

    dtype: torch.dtype
    place: int

    def data_ptr(self) -> int:
        return self.place


def launched(run: Callable[[], object], arch: int, *, names: set[str] | None = None) -> list[Launch]:
    """The launches of `run`, compiled for sm_`arch` but not run; kernels compiled before are not repeated.

    Triton keeps machine code in build/triton from one session to the next, by a hash of all that it is made of; the
    assembler's report lies beside it. Where there are `names`, the kernels' are added to them and nothing is compiled.
    """
    from triton.backends.compiler import GPUTarget
    from triton.runtime import jit

    written()  # else those that `run` imports would take the patched `interpreted` for theirs
    found: list[Launch] = []
    real = jit.JITFunction.run

    def compile_only(kernel: Any, *args: Any, grid: tuple[int, ...], warmup: bool, **options: Any) -> None:
        assert not options.get("WIDE"), "compiled as the interpreter needs it"
        assert all(arg.device == META for arg in args if isinstance(arg, Tensor))
        name = f"{kernel.fn.__module__}:{kernel.fn.__name__}"
        if names is not None:
            names.add(name)
            return
        held = [
            Pointer(arg.dtype, arg.storage_offset() * arg.itemsize) if isinstance(arg, Tensor) else arg for arg in args
        ]
        with contextlib.redirect_stdout(io.StringIO()) as log:
            compiled = real(kernel, *held, grid=grid, warmup=True, **options)
        if compiled not in [launch.compiled for launch in found]:
            kept = KEPT / f"{compiled.hash}.log"
            if said := log.getvalue():
                cache_dir.write(kept, said.encode())
            found.append(Launch(name, compiled, tuple(grid), *figures(said or kept.read_text())))

    device = object()  # a new one, for which nothing has been compiled
    active = SimpleNamespace(
        get_current_device=lambda: device,
        get_current_stream=lambda device: 0,
        get_current_target=lambda: GPUTarget("cuda", arch, 32),
    )
    KEPT.mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_CACHE_DIR", str(KEPT))
        patch.setenv("TRITON_DUMP_PTXAS_LOG", "1")
        patch.setenv(choice.VARIABLE, "triton")
        patch.setattr(choice, "interpreted", lambda: True)  # Triton may be forced on other devices than CUDA
        patch.setattr(jit, "driver", SimpleNamespace(active=active))
        patch.setattr(jit.JITFunction, "run", compile_only)
        run()
    return found


def figures(log: str) -> tuple[int, int]:
    """Registers per thread and spilled bytes, from the assembler's report."""
    registers = [int(number) for number in re.findall(r"Used (\d+) registers", log)]
    stored = [int(number) for number in re.findall(r"(\d+) bytes spill stores", log)]
    assert registers, f"the assembler says nothing of registers:\n{log}"
    return max(registers), max(stored)


def check(launch: Launch, arch: int, *, spilled: int = SPILLED) -> None:
    """Asserts that a GPU could run the launch."""
    warps, shared = launch.compiled.metadata.num_warps, launch.compiled.metadata.shared
    assert launch.compiled.asm["cubin"][:4] == b"\x7fELF"
    assert warps <= 32, f"{warps} warps a program"
    assert shared <= SHARED[arch], f"{shared} bytes of shared memory"
    assert 32 * warps * launch.registers <= 1 << 16, f"{launch.registers} registers in {warps} warps"
    assert launch.spilled <= spilled, f"{launch.spilled} bytes spilled beside {launch.registers} registers"
    assert launch.grid[0] < 1 << 31, f"a grid of {launch.grid}"
    assert all(size < 1 << 16 for size in launch.grid[1:]), f"a grid of {launch.grid}"


@cache
def written() -> dict[str, Any]:
    """Every kernel that is launched from the host, by module and name; kernels called by other kernels are left out."""
    found = {}
    for file in sorted(file for floor in ("models", "samplers") for file in (ROOT / floor).rglob("*_triton.py")):
        name = ".".join(("pardec", *file.relative_to(ROOT).with_suffix("").parts))
        found |= {f"{name}:{each.fn.__name__}": each.fn for each in jitted(import_module(name))}
    called = {name for function in found.values() for name in function.__code__.co_names}
    return {name: function for name, function in found.items() if function.__name__ not in called}


def jitted(module: Any) -> list[Any]:
    return [
        each
        for each in vars(module).values()
        if getattr(getattr(each, "fn", None), "__module__", "") == module.__name__
    ]


def empty(*shape: int, dtype: torch.dtype = FULL) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def ints(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=META)


def attention(
    kind: str,
    dtype: torch.dtype = BRAIN,
    *,
    dim: int = 128,
    queries: int = 32,
    slots: int = 512,
    heads: int = 32,
    kv: int = 32,
    batch: int = 2,
    apart: bool = False,
) -> None:
    """Queries over a cache; `apart`: its rows are not the plan's."""
    order, lengths = ints(batch, queries), ints(batch)
    visible = {
        "bidirectional": Visible.bidirectional,
        "causal": Visible.causal,
        "blocks": lambda: Visible.segments(32),
        "segments": lambda: Visible.segments(ids=ints(batch, slots)),
        "tree": lambda: Visible.tree(ints(queries), lengths),
        "trees": lambda: Visible.tree(ints(batch, queries), lengths),
        "mask": lambda: Visible.mask(empty(batch, queries, slots, dtype=torch.bool)),
    }[kind]()
    plan = Plan(order, order, order, visible, lengths, order, rows=ints(batch) if apart else None)
    pattern = attention_pattern(plan, extent=slots, dtype=dtype, device=META)
    fused = empty(batch, queries, heads + 2 * kv, dim, dtype=dtype)
    k, v = empty(2, batch + 1, slots + 1, kv, dim, dtype=dtype).unbind(0)
    out = attend(fused[:, :, :heads], k, v, pattern)
    assert out.shape == (batch, queries, heads, dim)


def statistics(
    dtype: torch.dtype, *, vocab: int = VOCAB, count: int = 32, temperature: float = 1.0, raised: int = 0
) -> None:
    tokens, by = (ints(count, raised), empty(count, raised)) if raised else (None, None)
    confidence(empty(count, vocab, dtype=dtype), temperature=temperature, tokens=tokens, by=by)


def draws(dtype: torch.dtype, *, vocab: int = VOCAB, count: int = 32, temperature: float = 1.0) -> None:
    from pardec.samplers.ops.confidence_triton import statistics as with_draws

    with_draws(empty(count, vocab, dtype=dtype), temperature, keys=ints(count))


def norms(dtype: torch.dtype, width: int) -> None:
    x, gain = empty(32, width, dtype=dtype), empty(width, dtype=dtype)
    triton_ops(all_of_them=True).norm(x, gain, 1e-5)


def sums(dtype: torch.dtype, width: int) -> None:
    from pardec.models.kernels.norm_triton import add_norm_triton

    add_norm_triton(empty(480, width, dtype=dtype), empty(480, width, dtype=dtype), empty(width, dtype=dtype), 1e-5)


def gate(dtype: torch.dtype, width: int) -> None:
    triton_ops(all_of_them=True).glu(empty(32, 2 * width, dtype=dtype), "silu")


def turn(dtype: torch.dtype, dim: int, *, queries: int = 32, turned: int | None = None) -> None:
    angle = empty(1, queries, 1, turned or dim)
    cache = KVCache(layers=1, batch=2, capacity=512, kv_heads=8, head_dim=dim, dtype=dtype, device=META)
    order = ints(2, queries)
    qkv = empty(2, queries, 48, dim, dtype=dtype)
    for slots in (cache.slots(Plan(order, order, order, Visible.causal(), ints(2), order)), None):
        triton_ops(all_of_them=True).rotary_and_cache(qkv, angle, angle, 32, slots, 0)
    fused = triton_ops(all_of_them=True, fused=True).fused
    gain = empty(dim, dtype=dtype)
    fused.norm_rotary(qkv, angle, angle, 32, slots, 0, (gain, gain, 1e-5))


def chain(nodes: int, *, vocab: int = VOCAB, laws: bool = False, points: bool = False) -> None:
    q = empty(2, nodes, vocab) if laws else None
    point = empty(2, nodes, dtype=torch.bool) if points else None
    draft = Draft(ints(2, nodes), np.array([nodes, 1]), np.array([7, 9]), q=q, is_point_mass=point)
    order = np.arange(2)
    judge(draft, empty(2, nodes, vocab), RoundUniforms(Source((1, 2)), order, order, META))


def neighbours(dtype: torch.dtype, k: int, *, vocab: int = 16384, ids: int = 3) -> None:
    nearest = ints(vocab, k, dtype=torch.int32)
    neighbour_sums(empty(4, vocab, dtype=dtype), ints(4, ids), nearest)
    mass_within(empty(4, vocab, dtype=dtype), ints(4), nearest, empty(4, dtype=dtype))


def stack(dtype: torch.dtype) -> None:
    """A prompt and then one token, with the plans, caches and tables of a real forward."""
    decoder = model(width=128, heads=4, kv_heads=2, head_dim=64, layers=1).decoder.to(device=META, dtype=dtype)
    held = decoder.new_cache(2, 600)
    for start, stop in ((0, 40), (40, 41)):
        order, lengths = ints(2, stop - start), ints(2)
        plan = Plan(
            order, order, order, Visible.causal(), lengths, order[:, :1], uniform=stop, span=(start, stop), narrow=True
        )
        decoder.forward(plan, held).logits()


def cases() -> dict[str, Callable[[], object]]:
    """Shapes of real models, and sizes of 1, which Triton compiles differently."""
    found: dict[str, Callable[[], object]] = {}

    def add(run: Callable[..., None], *args: Any, **options: Any) -> None:
        parts = [run.__name__, *args, *(f"{name}={value}" for name, value in options.items())]
        found[" ".join(str(part).removeprefix("torch.") for part in parts)] = partial(run, *args, **options)

    for kind in ("bidirectional", "causal", "blocks", "mask", "tree"):
        for dim in (64, 128):
            add(attention, kind, dim=dim)
        add(attention, kind, FULL, dim=64)
        add(attention, kind, queries=1, slots=4096, kv=8, apart=True)
    for kind in ("bidirectional", "tree"):
        add(attention, kind, HALF)
        add(attention, kind, slots=4096, kv=8)
        add(attention, kind, FULL)
    for kind in ("bidirectional", "causal"):
        add(attention, kind, queries=480)  # the wide tiles of prompts
    add(attention, "causal", queries=32, kv=8)
    add(attention, "segments")
    add(attention, "trees", dim=24)
    add(attention, "trees", HALF, queries=16, slots=3000, dim=64, kv=8)  # in parts, of two queries per block
    add(attention, "blocks", dim=80, queries=512)
    add(attention, "bidirectional", FULL, queries=1, slots=4096, kv=8)
    add(attention, "causal", queries=1, slots=1, batch=1, heads=1, kv=1)
    for dtype in (FULL, HALF, BRAIN):
        add(statistics, dtype)
        add(norms, dtype, 48)
        add(norms, dtype, WIDTH)
        add(gate, dtype, 12288)
        add(turn, dtype, 128)
        add(turn, dtype, 24, turned=12)
        add(stack, dtype)
    add(sums, BRAIN, WIDTH)
    add(statistics, BRAIN, vocab=97, count=1)
    add(statistics, BRAIN, temperature=0.7)
    add(statistics, BRAIN, temperature=0.7, raised=3)
    add(statistics, FULL, vocab=1, raised=1)
    add(draws, BRAIN, temperature=0.7)
    add(draws, FULL, vocab=97, count=1)
    add(norms, BRAIN, 1)
    add(gate, BRAIN, 1)
    add(turn, BRAIN, 64, queries=1)
    add(chain, 1)
    add(chain, 6)
    add(chain, 6, laws=True)
    add(chain, 33, laws=True, points=True)
    add(chain, 6, vocab=97, laws=True)
    for dtype in (FULL, torch.float64):
        add(neighbours, dtype, 1, ids=1)
        add(neighbours, dtype, 100)
        add(neighbours, dtype, 2000)
    return found


CASES = cases()


def forced(case: str) -> bool:
    """Whether only PARDEC_KERNELS=triton runs it: trees in float32, where the walk up leaves too few registers."""
    return case.startswith(("attention tree float32", "attention trees float32"))


def seldom(case: str) -> bool:
    """Whether a case is slow, because others cover its parts: another dim of the same kind, another dtype."""
    if case in ("chain 1", "chain 6 vocab=97 laws=True", "stack float32", "statistics float32", "norms float32 48"):
        return True
    if case in (
        "chain 6",
        "chain 6 laws=True",
        "statistics bfloat16 vocab=97 count=1",
        "draws float32 vocab=97 count=1",
    ):
        return True
    if case.startswith("attention"):
        _, kind, *rest = case.split()
        return (
            (kind in ("bidirectional", "causal", "blocks", "tree") and rest == ["dim=128"])
            or (kind == "tree" and rest in (["float16"], ["float32"]))
            or rest == ["dim=64"]
            or rest == ["float32", "dim=64"]
            or (kind == "tree" and rest == ["slots=4096", "kv=8"])
            or (kind in ("blocks", "bidirectional", "mask") and rest[-1] == "apart=True")
            or (kind == "bidirectional" and rest in (["float16"], ["float32"], ["slots=4096", "kv=8"]))
            or (kind == "causal" and rest == ["queries=480"])
        )
    types = [f"{kind} {half}" for kind in ("norms", "gate", "turn", "stack") for half in ("float16", "bfloat16 ")]
    types += ["statistics float16", "statistics bfloat16 temperature=0.7", "neighbours float64 1 "]
    types += ["neighbours float64 2000", "neighbours float32 2000", "neighbours float32 100"]
    return case.startswith(tuple(types)) and not case.endswith((" 1", "raised=3"))


QUICK = [case for case in CASES if not seldom(case)]


@ARCHES
@pytest.mark.parametrize("case", thinned(((case,) for case in CASES), lambda case: not seldom(case)))
def test_what_a_wrapper_launches_compiles_and_fits(case: str, arch: int) -> None:
    found = launched(CASES[case], arch)
    assert found, "nothing was launched"
    for launch in found:
        check(launch, arch, spilled=1 << 14 if forced(case) else SPILLED)


def test_every_kernel_is_launched_by_some_case() -> None:
    names = set[str]()
    for case in QUICK:
        launched(CASES[case], 90, names=names)
    assert names == written().keys()


@triton.jit
def _mistyped(x_ptr, out_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)
    x = tl.load(x_ptr + at)
    if SIZE > 1:
        x = x[:, None] + at  # another shape, which a compiler does not take after a branch
    tl.store(out_ptr + at, x)


@triton.jit
def _product(x_ptr, y_ptr, SIZE: tl.constexpr):
    at = tl.arange(0, SIZE)[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    x, y = tl.load(x_ptr + at), tl.load(y_ptr + at)
    tl.store(y_ptr + at, tl.dot(x, y).to(x.dtype))


def test_a_kernel_that_does_not_compile_is_noticed() -> None:
    x = empty(16)
    with pytest.raises(triton.CompilationError):
        launched(lambda: _mistyped[(1,)](x, x, SIZE=16), 90)


def test_a_kernel_that_does_not_fit_is_noticed() -> None:
    x = empty(512, 512, dtype=BRAIN)
    (small,) = launched(lambda: _product[(1,)](x, x, SIZE=32), 90)
    check(small, 90)
    with pytest.raises(AssertionError, match="a grid of"):
        check(small._replace(grid=(1, 1 << 16)), 90)
    (wide,) = launched(lambda: _product[(1,)](x, x, SIZE=256, num_warps=8), 90)
    with pytest.raises(AssertionError, match="of shared memory"):
        check(wide, 90)
    with pytest.raises(AssertionError, match="bytes spilled"):
        check(wide._replace(compiled=small.compiled), 90)


def test_a_tensor_on_another_device_is_noticed() -> None:
    with pytest.raises(AssertionError):
        launched(lambda: _mistyped[(1,)](empty(1), torch.empty(1), SIZE=1), 90)
