"""Dream's own sampler, and dKV-Cache on Dream without a cache or with its prompt alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from golden_specs import Call, Case, Reader

PROPOSERS = {"maskgit_plus": "confidence", "topk_margin": "margin", "entropy": "entropy"}


def dream_call(case: Case) -> Call:
    """The spec and the arguments of Dream's own sampler with the settings of a case."""
    p = case["params"]
    spec = f"{PROPOSERS[p['alg']]}:of=filtered+timesteps:steps={p['steps']},eps={p.get('eps', 1e-3)},reference=true"
    return spec, _arguments(case)


def _arguments(case: Case) -> dict[str, object]:
    p = case["params"]
    # Dream's generation settings of that time kept the 50 likeliest tokens by default.
    return {"block_length": p["max_new_tokens"], "top_k": p.get("top_k", 50), "top_p": p.get("top_p")}


def _dkv_prefill(case: Case) -> Call:
    spec, arguments = dream_call(case)
    return f"{spec}@prefix:before=1", arguments


@dataclass(frozen=True)
class Recorded:
    """Recorded uniforms in the order of sampling, one per masked position at each step."""

    of: Tensor  # [steps, positions] float64

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        steps, length = self.of.shape
        # The loop may ask for a step after the last one; the row's length stands for no position.
        at = torch.from_numpy(np.minimum(step, steps - 1))[:, None]
        return self.of[at, positions.clamp(max=length - 1)]


def _origin(case: Case) -> Call:
    p = case["params"]
    begin, end = len(case["prompt_ids"]), len(case["output_ids"])
    uniforms = torch.ones(len(case["uniforms"]), end, dtype=torch.float64)
    masked = list(range(begin, end))
    for number, (drawn, (positions, _)) in enumerate(zip(case["uniforms"], case["steps"], strict=True)):
        uniforms[number, masked] = torch.tensor(drawn, dtype=torch.float64)
        masked = [position for position in masked if position not in positions]
    spec = f"origin:steps={p['steps']},eps={p.get('eps', 1e-3)}"
    return spec, {**_arguments(case), "source": Recorded(uniforms)}


CALLS: dict[str, Reader] = {
    **{f"dream_{name}": dream_call for name in PROPOSERS},
    "dream_origin": _origin,
    "dkv_dream_none": dream_call,
    "dkv_dream_prefill": _dkv_prefill,
}
