"""Every benchmarked Triton version computes the same as its definition."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import torch
from pardec.bench import kernels
kernels.WINDOW, kernels.CANVAS = 4, 24
torch.set_num_threads(1)
for case in kernels.cases(torch.device("cpu"), torch.float32, width=256, vocab=301):
    if "triton" not in case.versions:
        continue
    furthest = kernels._largest_error(case.run("reference"), case.run("triton"))
    assert furthest < 1e-4, (case.name, case.shape, furthest)
    print(case.name)
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_the_cases_agree_under_the_interpreter() -> None:
    # Triton decides on its interpreter when it is imported, so it needs a process of its own.
    environment = os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", CODE], cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:4] == ["norm", "swiglu", "confidence", "rotary_and_cache"]
