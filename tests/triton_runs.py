"""Where the tests of kernels in Triton run: on a GPU, or under Triton's interpreter."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = torch.device("cuda" if torch.cuda.is_available() and not INTERPRETED else "cpu")
WHERE_TRITON_RUNS = [
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed"),
    pytest.mark.skipif(not INTERPRETED and DEVICE.type != "cuda", reason="needs a GPU or Triton's interpreter"),
]
