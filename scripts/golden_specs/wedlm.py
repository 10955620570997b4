"""WeDLM's engine and its Hugging Face copy, and logits of rows in the order in which they are fed.

The engine's masks run past the end of a request: pardec decodes one window more, and is compared up to its end.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from golden_specs import TOLERANCE, Case, Replay, load, relative
from golden_specs.block_causal import compare
from pardec.models.plan import Plan, Visible


def _decode(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    p = case["params"]
    tau = "none" if p["entropy_threshold"] is None else p["entropy_threshold"]
    sampling = {name: p[name] for name in ("temperature", "top_k", "top_p") if p[name]}
    arguments = {"block_length": p["window"], **(sampling if p["temperature"] else {})}
    stops = {"stop_ids": p["stop_ids"]} if p["stop_ids"] else {}
    spec = f"wedlm:tau={tau},distance={p['pos_penalty']}{'+eos' if stops else ''}@window"
    model = load(folder / case.get("checkpoint", "checkpoint"))
    count = p["max_new_tokens"] + 2 * p["window"]
    return compare(case, model, tensors, (spec, {**arguments, **stops}), count, longer=True)


def _blocks(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    p = case["params"]
    spec = f"threshold:tau={p['confidence_threshold']}" if p["confidence_threshold"] else "sequential"
    model = load(folder / case.get("checkpoint", "checkpoint"))
    return compare(case, model, tensors, (spec, {"block_length": p["block_length"]}), p["max_new_tokens"])


def _logits(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
    model = load(folder / case.get("checkpoint", "checkpoint")).language_model
    tokens, positions = torch.tensor([case["input_ids"]]), torch.tensor([case["positions"]])
    rank = torch.empty_like(positions).scatter_(1, positions, torch.arange(positions.shape[1])[None])
    plan = Plan(tokens, positions, positions, Visible.segments(ids=rank), torch.tensor([tokens.shape[1]]), positions)
    cache = model.new_cache(1, tokens.shape[1])
    error = relative(model.forward(plan, cache).logits(positions)[0], tensors[case["logits_tensor"]])
    return f"logits differ by {error:.1e}" if error > TOLERANCE else None


REPLAYS: dict[str, Replay] = {
    "wedlm_decode": _decode,
    "wedlm_hf_generate": _blocks,
    "wedlm/forward_logits": _logits,
}
