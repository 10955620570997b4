"""The Triton kernel compared with the definition: on a GPU if there is one, else under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from itertools import product
from math import ceil
from pathlib import Path

import pytest
import torch

from pardec.models.kernels.attention import attend, attention_pattern, visible_slots
from pardec.models.plan import Plan, Visible, plan_on
from tests.grids import thinned
from tests.models.toys import ask, ids, model, poisoned

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
RUNS = INTERPRETED or DEVICE.type == "cuda"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}
HALVES = (torch.bfloat16, torch.float16)
# Batch, queries, slots, heads, kv, dim; the last has the wide tiles of prompts.
SHAPES = [(2, 5, 13, 2, 1, 24), (1, 33, 70, 1, 1, 32), (2, 1, 40, 3, 3, 80), (1, 140, 150, 2, 1, 16)]


def met(shape: tuple[int, ...], dtype: torch.dtype) -> bool:
    """Whether a case runs: all on a GPU; one shape per dtype under the interpreter, which is slow."""
    dtypes = (torch.float32, *HALVES, torch.bfloat16)
    return DEVICE.type == "cuda" or (shape, dtype) in zip(SHAPES, dtypes, strict=True)


@pytest.mark.skipif(RUNS, reason="this process runs the kernels itself")
def test_the_kernels_agree_with_their_definition_under_the_interpreter():
    # Triton decides on its interpreter when it is imported, so it needs a process of its own.
    here = Path(__file__)
    ops = here.parents[2] / "samplers" / "ops"
    again = [here, *(here.with_name(f"test_{name}_triton.py") for name in ("kernels", "layers"))]
    again += [ops / f"test_{name}_triton.py" for name in ("confidence", "verdict", "neighbourhood")]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PARDEC_KERNELS": "triton", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, again)]
    done = subprocess.run(command, cwd=here.parents[3], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(not RUNS, reason="runs in the process that the test above starts")
@pytest.mark.parametrize(("shape", "dtype"), thinned(product(SHAPES, TOLERANCE), met))
def test_kernel_equals_the_definition(shape, dtype, monkeypatch):
    from pardec.models.kernels.attention_triton import attend_triton

    batch, queries, slots, heads, kv_heads, dim = shape
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    torch.manual_seed(queries)
    stored = batch + 1
    k, v = (
        torch.randn(2, stored, slots + 1, kv_heads, dim + 1).to(dtype)[..., :dim].unbind(0)
    )  # rows are not contiguous
    q = torch.randn(batch, heads, queries, dim).to(dtype).transpose(1, 2)
    lengths = torch.randint(slots // 2, slots + 1, (batch,))
    rows = torch.randperm(stored)[:batch]
    for row in range(batch):
        k[rows[row], lengths[row] :] = v[rows[row], lengths[row] :] = float("nan")
    positions = torch.stack([torch.randperm(slots)[:queries] for _ in range(batch)])
    if queries > 1:
        positions[-1, -1] = -1
    bases = (lengths - queries).clamp(min=0)
    kinds = (
        Visible.bidirectional(),
        Visible.causal(),
        Visible.segments(4),
        Visible.segments(ids=torch.randint(0, 4, (batch, slots)).sort(-1).values),
        Visible.tree(torch.arange(-1, queries - 1), bases),
        Visible.tree(parents(batch, queries), bases),
        Visible.mask(torch.rand(batch, queries, slots) < 0.5),
    )
    if INTERPRETED and queries in (1, 33):
        kinds = kinds[queries == 33 :: 2]  # the smallest has all, and the largest all that have wide tiles
    for visible in kinds:
        if queries == 140 and visible.kind in ("tree", "mask"):
            continue  # these have no wide tiles
        plan = ask(ids(batch, queries), positions, visible, lengths, rows=rows)
        expected = attend(q, k, v, attention_pattern(plan, extent=slots, dtype=dtype, device=q.device, reference=True))
        held = (positions >= 0) & visible_slots(plan, slots).any(-1)
        there = plan_on(plan, DEVICE)
        pattern = attention_pattern(there, extent=slots, dtype=dtype, device=DEVICE)
        assert pattern.backend == "triton"
        assert pattern.allowed is None or visible.kind in ("mask", "segments")  # no dense mask for a tree
        out = attend(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), pattern).cpu()
        near(out, expected, held, visible.kind)
        if visible.kind in ("bidirectional", "segments"):
            continue
        near(
            attend_triton(*(x.to(DEVICE) for x in (q, k, v)), pattern, parts=1 if queries == 33 else 3).cpu(),
            expected,
            held,
            visible.kind,
        )
        if queries > 1:  # the last layer asks for a few queries only
            picked = torch.stack([torch.randperm(queries)[:2] for _ in range(batch)])
            index = torch.arange(batch)[:, None]
            out = attend(q[index, picked].to(DEVICE), k.to(DEVICE), v.to(DEVICE), pattern.narrowed(picked.to(DEVICE)))
            near(out.cpu(), expected[index, picked], held[index, picked], visible.kind)


def parents(batch: int, nodes: int) -> torch.Tensor:
    """[B, T]: parents, each any earlier node or none."""
    drawn = torch.rand(batch, nodes) * (torch.arange(nodes) + 1)
    return drawn.long().clamp(max=torch.arange(nodes)) - 1


def near(out: torch.Tensor, expected: torch.Tensor, held: torch.Tensor, what: str) -> None:
    assert out.isfinite().all(), what
    if held.any():
        gap = (out - expected)[held].abs().max()
        assert gap <= TOLERANCE[expected.dtype] * expected[held].abs().max(), what


@pytest.mark.skipif(not RUNS, reason="runs in the process that the test above starts")
def test_a_row_alone_adds_up_what_it_adds_up_in_a_batch_of_longer_ones(monkeypatch):
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    from pardec.models.kernels.attention_triton import parts_of

    assert parts_of(4, 1) > 1
    torch.manual_seed(0)
    slots, lengths = 120, torch.tensor([110, 40, 77])
    k, v = torch.randn(2, 3, slots, 1, 16, device=DEVICE).unbind(0)
    q = torch.randn(3, 2, 2, 16, device=DEVICE)
    positions = torch.stack((lengths - 2, lengths - 1), 1)

    def run(rows: list[int], extent: int) -> torch.Tensor:
        plan = ask(ids(len(rows), 2), positions[rows], Visible.causal(), lengths[rows], rows=torch.tensor(rows))
        pattern = attention_pattern(plan_on(plan, DEVICE), extent=extent, dtype=q.dtype, device=DEVICE)
        return attend(q[rows], k, v, pattern)

    together = run([0, 1, 2], slots)
    for row, length in enumerate(lengths.tolist()):
        assert torch.equal(run([row], length)[0], together[row])


@pytest.mark.skipif(not RUNS, reason="runs in the process that the test above starts")
def test_a_decoder_gives_what_it_gives_without_triton(monkeypatch):
    lengths = torch.tensor([7, 3])
    found = {}
    for name in ("triton", "reference"):
        monkeypatch.setenv("PARDEC_KERNELS", name)
        toy = model("block-causal", block=4, layers=1 if INTERPRETED else 2)
        plan = Plan.full(ids(2, 7), toy.visible(), lengths)
        caches = (poisoned(toy.new_cache(2, 9)), None)[: 1 if INTERPRETED else 2]
        found[name] = [toy.forward(plan, cache).logits() for cache in caches]
    for out, expected in zip(found["triton"], found["reference"], strict=True):
        for row, length in enumerate(lengths.tolist()):
            torch.testing.assert_close(out[row, :length], expected[row, :length], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(("queries", "heads", "kv"), [(32, 32, 32), (33, 32, 32), (32, 32, 8), (1, 32, 8), (1, 32, 32)])
def test_a_small_window_has_two_waves_of_programs(queries, heads, kv, monkeypatch):
    """For 132 processors, at 480 slots: as many programs that have slots, or one for every 16 slots of a head."""
    from pardec.models.kernels import attention_triton as kernels

    monkeypatch.setattr(kernels, "architecture", lambda: 90)
    stacked = queries * heads // kv
    tile = kernels.tile_of(stacked, 128, kernels._BIDIRECTIONAL, torch.bfloat16)
    blocks = -(-stacked // tile.queries)
    parts = kernels.parts_of(stacked, blocks * kv)
    width = ceil(480 / parts / 16) * 16
    assert width == 16 or blocks * kv * ceil(480 / width) >= 2 * 132


def test_prompts_have_wide_tiles_and_no_parts(monkeypatch):
    from pardec.models.kernels import attention_triton as kernels

    monkeypatch.setattr(kernels, "architecture", lambda: 90)
    sizes = [kernels.tile_of(480, 128, kind, torch.bfloat16)[:2] for kind in range(3)]
    assert sizes == [(128, 128), (128, 64), (128, 64)]
    assert kernels.parts_of(480, 32) == 1
