"""The Triton kernel against the definition: on a GPU where there is one, under Triton's interpreter elsewhere."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from pardec.models.kernels.attention import attend
from pardec.models.kernels.sight import look, seen
from pardec.models.plan import Visible, moved
from tests.models.toys import ask, ids

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
RUNS = INTERPRETED or DEVICE.type == "cuda"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.mark.skipif(RUNS, reason="this process runs the kernels itself")
def test_the_kernels_agree_with_their_definition_under_the_interpreter():
    # Triton decides on its interpreter when it is imported, so it needs a process of its own.
    here = Path(__file__)
    stack = here.with_name("test_decoder.py")
    again = [here, here.with_name("test_kernels_triton.py"), here.parents[1] / "samplers" / "test_confidence_triton.py"]
    again += [f"{stack}::test_a_tree_draft_equals_its_branches_as_chains"]
    again += [f"{stack}::test_a_row_alone_gives_what_it_gives_in_a_ragged_batch"]
    environment = os.environ | {"TRITON_INTERPRET": "1", "PARDEC_KERNELS": "triton", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, again)]
    done = subprocess.run(command, cwd=here.parents[2], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.skipif(not RUNS, reason="runs in the process that the test above starts")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("batch", "queries", "slots", "heads", "kv_heads", "dim"),
    [(2, 5, 13, 2, 1, 24), (1, 33, 70, 2, 2, 32), (2, 1, 40, 3, 3, 80)],
    ids=str,
)
def test_kernel_equals_the_definition(batch, queries, slots, heads, kv_heads, dim, dtype, monkeypatch):
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
    for visible in (
        Visible.bidirectional(),
        Visible.causal(),
        Visible.segments(4),
        Visible.segments(ids=torch.randint(0, 4, (batch, slots)).sort(-1).values),
        Visible.tree(torch.arange(-1, queries - 1), bases),
        Visible.mask(torch.rand(batch, queries, slots) < 0.5),
    ):
        plan = ask(ids(batch, queries), positions, visible, lengths, rows=rows)
        expected = attend(q, k, v, look(plan, extent=slots, dtype=dtype, device=q.device, plain=True))
        held = (positions >= 0) & seen(plan, slots).any(-1)
        there = moved(plan, DEVICE)
        sight = look(there, extent=slots, dtype=dtype, device=DEVICE)
        assert sight.backend == "triton"
        out = attend(q.to(DEVICE), k.to(DEVICE), v.to(DEVICE), sight).cpu()
        assert out.isfinite().all(), visible.kind
        assert (out - expected)[held].abs().max() <= TOLERANCE[dtype] * expected[held].abs().max(), visible.kind
