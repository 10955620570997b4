"""dKV-Cache on LLaDA and Dream."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from golden_specs import Call, Case, Reader
from golden_specs.dream import dream_call

SETTLE = {"un": "next", "un_right": "both", "right": "self"}


def _decode(case: Case) -> Call:
    p = case["params"]
    cache = f"@dkv:refresh={p['cache_reloading_step']},full=2" if p["enable_cache"] else ""
    return f"fixed:steps={p['steps']},reference=true{cache}", {"block_length": p["block_length"]}


@dataclass(frozen=True)
class Order:
    """Numbers that descend in a recorded order of positions."""

    of: Tensor  # [positions] float64

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        return self.of[positions.clamp(max=len(self.of) - 1)]


def _greedy(case: Case) -> Call:
    p = case["params"]
    order = torch.tensor([position for block in case["denoising_order"] for position in block])
    falling = torch.ones(len(case["output_ids"]), dtype=torch.float64)
    falling[order] = 1 - (1 + torch.arange(len(order), dtype=torch.float64)) / (len(order) + 1)
    cache = f"@dkv_greedy:refresh={p['cache_reloading_step']},window={p['window_size']}" if p["enable_cache"] else ""
    return f"random+fixed:steps={p['steps']}{cache}", {"block_length": p["block_length"], "source": Order(falling)}


def _dream(case: Case) -> Call:
    p = case["params"]
    keep = "keep" if p["cache_type"] == "pd" else "refresh"
    settle = SETTLE[p["shift_type"]]
    cache = f"dkv:refresh={p['cache_steps']},full=1,settle={settle},prompt={keep},reference=true"
    spec, arguments = dream_call(case)
    return f"{spec}@{cache}", arguments


CALLS: dict[str, Reader] = {
    "dkv_decode": _decode,
    "dkv_greedy": _greedy,
    "dkv_dream_decoded": _dream,
    "dkv_dream_pd": _dream,
}
