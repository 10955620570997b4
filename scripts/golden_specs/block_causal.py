"""Block-causal models and their authors' loops: LLaDA2, SDAR-MoE, Stable-DiffCoder, Fast-dLLM v2.

Compared are what each forward committed, the tokens up to the first end token, how many forwards commit, and logits.
From there pardec decodes as usual: it makes no forward that commits nothing, keeps the K/V of finished blocks
where a reference computes them again, and ends a row at its first end token where a reference continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import pardec
from golden_specs import TOLERANCE, Call, Case, Replay, load, relative
from pardec.models.caches.kv_cache import KVCache
from pardec.models.plan import Hidden, Plan
from pardec.samplers.rng import Keyed

Rows = list[tuple[list[int], Tensor]]  # per forward: the positions it was fed, and their logits


@contextmanager
def recording(model: pardec.Model, count: int) -> Iterator[Rows]:
    """The logits of the first `count` forwards."""
    network, rows = model.language_model, Rows()
    forward = network.decoder.forward

    def recorded(plan: Plan, cache: KVCache | None = None) -> Hidden:
        if len(rows) >= count:
            return forward(plan, cache)  # type: ignore[no-any-return]
        hidden: Hidden = forward(replace(plan, narrow=False), cache)
        rows.append((plan.positions[0].tolist(), hidden.logits(plan.positions)[0]))
        return hidden

    network.decoder.forward = recorded
    try:
        yield rows
    finally:
        del network.decoder.forward


@contextmanager
def drawing(uniforms: Tensor | None, case: Case) -> Iterator[None]:
    """Replaces sampling by recorded uniforms: one table per forward, over the block's rows or its open rows.

    Where none are recorded, or no more, the likeliest token is drawn.
    """
    block = case["params"].get("small_block_size") or case["params"].get("block_length")
    forwards: dict[int, int] = {}
    tables: list[Tensor] = []
    if uniforms is not None:
        tables = list(torch.split(uniforms, case["uniforms_rows"]) if "uniforms_rows" in case else uniforms)

    def uniform(
        self: Keyed, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0
    ) -> Tensor:
        given = "small_block_size" in case["params"] and not (positions % case["params"]["block_length"]).any()
        at = None if given else forwards.setdefault(int(step[0]), len(forwards))
        if at is None or at >= len(tables):  # a given token is the likeliest there
            return torch.full((len(positions), 1, width), 0.5, dtype=torch.float64)
        rows_of = torch.arange(len(positions)) if block is None else positions[:, 0] % block
        return tables[at][rows_of][:, None].double()

    with mock.patch.object(Keyed, "uniform", uniform):
        yield


def compare(
    case: Case, model: pardec.Model, tensors: dict[str, Tensor], call: Call, count: int, *, longer: bool = False
) -> str | None:
    """The first difference between the case and pardec's decode of `count` tokens; None if there is none.

    `longer`: pardec may continue where the reference ends.
    """
    spec, arguments = call
    wanted = case.get("step_logits_tensors", [])
    stops = arguments.get("stop_ids", [])
    draws = drawing(tensors[case["uniforms_tensor"]], case) if "uniforms_tensor" in case else drawing(None, case)
    with recording(model, 4 * len(wanted)) as rows, draws:
        every, sequence, reason = _decoded(model, case["prompt_ids"], spec, count, {"stop_ids": [], **arguments})
    end = len(case["prompt_ids"]) + count
    if arguments.get("stop_ids") and reason == "stop":  # tokens after an end token do not count
        first = len(case["prompt_ids"])
        end = first + len(_to_end(sequence[first:], arguments["stop_ids"])) + 1
        every = [[pair for pair in step if pair[0] < end] for step in every]
    golden = [[pair for pair in sorted(zip(*step, strict=True)) if pair[0] < end] for step in case["steps"]]
    ours, theirs = [step for step in every if step], [step for step in golden if step]
    for number, (found, expected) in enumerate(zip(ours, theirs, strict=False)):
        if found != expected:
            return f"forward {number}: committed {found}, expected {expected}"
    ended = bool(stops) and reason == "stop"
    fewer = len(ours) < len(theirs)
    if len(ours) != len(theirs) and not (ended if fewer else longer):
        return f"{len(ours)} forwards commit, expected {len(theirs)}"
    first = len(case["prompt_ids"])
    found, expected = sequence[first:], case["output_ids"][first:]
    if stops:
        found, expected = _to_end(found, stops), _to_end(expected, stops)
    if found[: len(expected)] != expected[: len(found)] or (not stops and len(found) < len(expected)):
        return f"sequence {found}, expected {expected}"
    busy = [number for number, step in enumerate(golden) if step], [number for number, step in enumerate(every) if step]
    for theirs_at, ours_at in zip(*busy, strict=False):
        name = wanted[theirs_at] if theirs_at < len(wanted) else None
        if name is None or ours_at >= len(rows):
            continue
        positions, logits = rows[ours_at]
        expected_rows = tensors[name]
        fed = case["forward_positions"][theirs_at] if case.get("forward_positions") else None
        if fed is None:  # the rows of the block being decoded
            fed = positions[-len(expected_rows) :]
        at = [positions.index(position) for position in fed if position in positions]
        kept = [number for number, position in enumerate(fed) if position in positions]
        if (error := relative(logits[at], expected_rows[kept])) > TOLERANCE:
            return f"forward {ours_at}: logits differ by {error:.1e}"
    return None


def _decoded(
    model: pardec.Model, prompt: list[int], spec: str, count: int, arguments: dict[str, Any]
) -> tuple[list[list[tuple[int, int]]], list[int], str]:
    """The cells that each forward changed, with their tokens; the sequence; and the finish reason."""
    steps: list[list[tuple[int, int]]] = []
    canvas: list[int] = []
    for event in model.stream(input_ids=[prompt], sampler=spec, max_new_tokens=count, **arguments):
        if isinstance(event, pardec.Started):
            canvas = np.where(event.open[0], -1, event.tokens[0]).tolist()
        elif isinstance(event, pardec.Step):
            now = np.where(event.open[0], -1, event.tokens[0]).tolist()
            changed = [at for at, token in enumerate(now) if token != canvas[at]]
            steps.append([(at, now[at]) for at in changed])
            canvas = now
        elif isinstance(event, pardec.Finished):
            return steps, event.tokens[0].tolist(), event.reasons[0]
    raise AssertionError("a stream ends with Finished")


def _to_end(ids: list[int], stops: list[int]) -> list[int]:
    """The ids up to the first end token."""
    return ids[: next((at for at, token in enumerate(ids) if token in stops), len(ids))]


def whole_blocks(case: Case, block: int) -> int:
    """Tokens up to the end of the last block, which the references decode although they return fewer tokens."""
    first, count = len(case["prompt_ids"]), case["params"]["gen_length"]
    return -(-(first + count) // block) * block - first


def _replay(read: Callable[[Case], tuple[Call, int]]) -> Replay:
    def replay(case: Case, folder: Path, tensors: dict[str, Tensor]) -> str | None:
        call, count = read(case)
        model = load(folder / case.get("checkpoint", "checkpoint"), case["params"]["block_length"])
        return compare(case, model, tensors, call, count)

    return replay


def _llada2(case: Case) -> tuple[Call, int]:
    p = case["params"]
    steps = min(p["steps"], p["gen_length"] // p["minimal_topk"])
    spec = f"quota:tau={min(p['threshold'], 1)},steps={steps}+eos@block"
    return (spec, {"stop_ids": [p["eos_id"]]}), whole_blocks(case, p["block_length"])


def _filters(case: Case) -> tuple[str, dict[str, Any]]:
    """The proposer and the arguments of a case that samples."""
    p = case["params"]
    if p.get("draw") == "argmax" or not p["temperature"]:
        return "", {}
    return "confidence:of=filtered+", {name: p[name] for name in ("temperature", "top_k", "top_p") if p.get(name)}


def _llada21(case: Case) -> tuple[Call, int]:
    p = case["params"]
    propose, sampling = _filters(case)
    edit = f"edit:tau={p['editing_threshold']},post={p['max_post_steps']}{',of=filtered' if sampling else ''}"
    spec = f"{propose}quota:tau={p['threshold']},least={p['num_to_transfer']}+{edit}+eos@block"
    return (spec, {"stop_ids": [p["eos_id"]], **sampling}), whole_blocks(case, p["block_length"])


def _pipeline(case: Case) -> tuple[Call, int]:
    """Arguments for diffusers' pipeline, which runs one more forward on a complete block than `max_post_steps`."""
    p = case["params"]
    tau = p["editing_threshold"]
    edit = f"+edit:tau={tau},post={p['max_post_steps'] + 1},steps={p['num_inference_steps']}" if tau else ""
    spec = f"quota:tau={p['threshold']},steps={p['num_inference_steps']}{edit}+eos@block"
    return (spec, {"stop_ids": [p["eos_id"]]}), whole_blocks(case, p["block_length"])


def _sdar(case: Case) -> tuple[Call, int]:
    p = case["params"]
    tau = p["confidence_threshold"] if case["method"].endswith("dynamic") else "none"
    order, sampling = _filters(case)
    if case["method"].endswith("sequential"):
        order = "leftmost+"
    stops = {"stop_ids": p["stop_ids"]} if p["stop_ids"] else {}
    select = f"quota:tau={tau},steps={p['denoising_steps']}"
    if case["method"].endswith("bounded"):
        order, select = "", f"entropy_bound:gamma={p['eb_threshold']},whole=true"
        sampling = {name: p[name] for name in ("temperature", "top_k", "top_p") if p[name]}
    return (f"{order}{select}{'+eos' if stops else ''}@block", {**stops, **sampling}), whole_blocks(
        case, p["block_length"]
    )


def _stable_diffcoder(case: Case) -> tuple[Call, int]:
    p = case["params"]
    block, first = p["block_length"], len(case["prompt_ids"])
    each = p["steps"] // (p["gen_length"] // block)
    blocks = -(-(first + p["gen_length"]) // block) - first // block
    select = f"fixed:steps={each * blocks}" if p["threshold"] is None else f"threshold:tau={p['threshold']}"
    stops = {"stop_ids": [p["eos_id"]]} if p["eos_id"] is not None else {}
    sampling = {"temperature": p["temperature"]} if p["temperature"] else {}
    return (f"{select}{'+eos' if stops else ''}@block", {**stops, **sampling}), p["gen_length"]


def _fast_dllm_v2(case: Case) -> tuple[Call, int]:
    """Adds the token that the reference appends after its last block."""
    p = case["params"]
    block, first = p["block_length"], len(case["prompt_ids"])
    propose, sampling = _filters(case)
    cache = f"subblock:size={p['small_block_size']},reuse={str(p['use_block_cache']).lower()}"
    end = (first // block + p["max_new_tokens"] // block) * block
    spec = f"{propose}threshold:tau={p['threshold']}+eos@{cache}"
    return (spec, {"stop_ids": [p["stop_id"]], **sampling}), end + 1 - first


_STRATEGIES = ("low_confidence_static", "low_confidence_dynamic", "sequential", "entropy_bounded")
REPLAYS: dict[str, Replay] = {
    "diffusers_llada2": _replay(_pipeline),
    **{f"sdar_{kind}": _replay(_sdar) for kind in _STRATEGIES},
    "stable_diffcoder_generate": _replay(_stable_diffcoder),
    "fast_dllm_v2_batch_sample": _replay(_fast_dllm_v2),
    "fast_dllm_v2_generate": _replay(_fast_dllm_v2),
    "llada2_generate": _replay(_llada2),
    "llada21_generate": _replay(_llada21),
}
