"""Entry c: seconds of a decoding step at the shapes of LLaDA-8B and Qwen3-8B, against other loops and a fair bound.

Weights are random, in bfloat16; rows never end early. `step_ms` is the time of a whole decode over its steps, the best
of `_TIMES` after one that is not counted. `median_ms` is the median of single steps, the GPU waited for after each: for
`dual` and `dkv` that is a step on the window of 32. Graphs hold `whole` steps, selection or verdict and commit
included, or forwards alone, of a masked model with the confidence; `step_counts` says how many steps were whole. The
tokens of `sequential` are read after the next step is launched; with `late` false they are read at once.
`matmuls_ms` is the time of the model's own matmuls alone, over all layers, with as many rows as such a step has, and
the head's: a bound that a step of these shapes cannot pass.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

import pardec
from gpu_runs.report import Report
from gpu_runs.shapes import CAUSAL, MASKED, eager_and_captured
from pardec.bench.clock import settle
from pardec.bench.decode import prepare
from pardec.bench.rivals import rivals
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.kernels.matmul import matmul
from pardec.requests.call import Call
from pardec.samplers.events import Step
from pardec.samplers.masked.contracts import Select
from pardec.samplers.masked.select.sequential import Sequential

_TIMES = 2
BATCHES = (1, 8)
WINDOW = 32


def cases(dry: bool) -> list[tuple[str, str, int, int, int]]:
    """(shape, sampler, batch, prompt, new tokens); without a cache a few steps suffice."""
    prompt, few, window = (24, 2, 8) if dry else (448, 8, WINDOW)
    found = []
    for batch in BATCHES:
        found.append((MASKED, "sequential@none", batch, prompt + window - few, few))
        found += [(MASKED, f"sequential@{cache}", batch, prompt, window) for cache in ("dual", "dkv")]
    for batch in BATCHES:
        found += [(CAUSAL, spec, batch, prompt, window) for spec in ("sequential", "lookup:k=7")]
    return found


def run(report: Report) -> None:
    for name in (MASKED, CAUSAL):
        for loaded, graphs in eager_and_captured(name, dry=report.dry):
            if not graphs:
                bounds(report, name, loaded)
            for _, spec, batch, prompt, new in [case for case in cases(report.dry) if case[0] == name]:
                names = {"model": name, "loop": "pardec", "sampler": spec, "batch": batch, "cuda_graphs": graphs}
                for whole in (True, False) if graphs else (False,):
                    measure = partial(timed, loaded, spec, batch, prompt, new, whole=whole)
                    report.measure({**names, "whole": whole}, measure)
                if graphs and batch == 1 and spec in ("sequential@none", "sequential@dual"):
                    with patch.object(Sequential, "commits", Select.commits):
                        measure = partial(timed, loaded, spec, batch, prompt, new)
                        report.measure({**names, "whole": True, "late": False}, measure)
                if not graphs and spec != "lookup:k=7":
                    beside(report, names, loaded, prepared(loaded, spec, batch, prompt, new))
    report.line(_line(report.rows))


def prepared(loaded: pardec.Model, spec: str, batch: int, prompt: int, new: int) -> Call:
    return prepare(loaded, spec, batch, prompt, new, new if loaded.family == "masked" else None)


def timed(loaded: pardec.Model, spec: str, batch: int, prompt: int, new: int, *, whole: bool = True) -> dict[str, Any]:
    """Milliseconds of a step of pardec's loop; without `whole` only its forwards are captured."""
    if isinstance(loaded.network.decoder, GraphRunner):
        loaded.network.decoder.whole_steps = whole
    call = prepared(loaded, spec, batch, prompt, new)
    single: list[float] = []
    tokens = [_steps(loaded, call, single)]
    decodes: list[float] = []
    for _ in range(_TIMES):
        settle(loaded.network.device)
        started = time.perf_counter()
        *_, last = loaded.run(call, steps=False)
        settle(loaded.network.device)
        decodes.append(time.perf_counter() - started)
        tokens.append(last.tokens)
    single.clear()
    tokens.append(_steps(loaded, call, single))
    steps = len(single) + 1
    figures: dict[str, Any] = {"steps": steps, "step_ms": 1e3 * min(decodes) / steps}
    figures |= {"median_ms": 1e3 * statistics.median(single), "tokens_per_second": batch * new / min(decodes)}
    stack = loaded.network.decoder
    if isinstance(stack, GraphRunner):
        figures |= {"forwards": dict(stack.counts), "step_counts": dict(stack.step_counts)}
    first, *later = tokens  # the first run captures graphs, and computes with other kernels until it has them
    figures["repeats"] = all((each == later[0]).all() for each in later)
    return {**figures, "first_equal": bool((first == later[0]).all())}


def _steps(loaded: pardec.Model, call: Call, seconds: list[float]) -> Any:
    """Decodes, and records the seconds of each step except the first, which follows the prompt."""
    tokens, before = None, 0.0
    for event in loaded.run(call):
        settle(loaded.network.device)
        now = time.perf_counter()
        if isinstance(event, Step):
            if event.number:
                seconds.append(now - before)
            before = now
        tokens = getattr(event, "tokens", tokens)
    return tokens


def beside(report: Report, names: dict[str, Any], loaded: pardec.Model, call: Call) -> None:
    """Measures the papers' plain loop and transformers' `generate` on the same weights."""
    others = rivals(loaded.language_model, call)
    steps = call.lengths[0] - call.prompts[0]
    for loop, decode in others.runs.items():
        if loop != "diffusers":
            report.measure({**names, "loop": loop}, partial(_other, decode, steps, call, loaded.network.device))


def _other(decode: Callable[[], Any], steps: int, call: Call, device: torch.device) -> dict[str, Any]:
    whole = []
    for _ in range(_TIMES + 1):
        settle(device)
        started = time.perf_counter()
        decode()
        settle(device)
        whole.append(time.perf_counter() - started)
    best = min(whole[1:])
    return {"steps": steps, "step_ms": 1e3 * best / steps, "tokens_per_second": len(call.lengths) * steps / best}


def bounds(report: Report, name: str, loaded: pardec.Model) -> None:
    """The time of all matmuls of a forward with this many rows, and the time of reading the weights once."""
    whole = (1, 8, WINDOW, 8 * WINDOW, 480, 8 * 480)
    for rows in (1, 8) if report.dry else whole:
        report.measure({"model": name, "loop": "matmuls alone", "rows": rows}, partial(matmuls, loaded, rows))


@torch.inference_mode()
def matmuls(loaded: pardec.Model, rows: int) -> dict[str, Any]:
    """Best of three runs over the weights of all layers, so that none of them lies in the GPU's cache."""
    stack, device, dtype = loaded.language_model.decoder, loaded.network.device, loaded.network.dtype
    weights = [
        weight
        for layer in stack.layers
        for weight in (layer.qkv_weight, layer.out_weight, layer.gate_up_weight, layer.down_weight)
    ]
    inputs = {width: torch.randn(rows, width, device=device).to(dtype) for width in {w.shape[1] for w in weights}}
    last = torch.randn(min(rows, 8 * WINDOW), stack.head.weight.shape[1], device=device).to(dtype)
    seconds = []
    for _ in range(4):
        settle(device)
        started = time.perf_counter()
        for weight in weights:
            matmul(inputs[weight.shape[1]], weight)
        matmul(last, stack.head.weight)
        settle(device)
        seconds.append(time.perf_counter() - started)
    best = min(seconds[1:])
    multiplications = rows * sum(weight.numel() for weight in weights) + len(last) * stack.head.weight.numel()
    size = sum(weight.numel() * weight.element_size() for weight in (*weights, stack.head.weight))
    return {"matmuls_ms": 1e3 * best, "tflops": 2e-12 * multiplications / best, "gb_per_second": 1e-9 * size / best}


def _how(row: dict[str, Any]) -> str:
    if not row["cuda_graphs"]:
        return ""
    return " graphs" if not row["whole"] else " whole steps" if row.get("late", True) else " whole steps, read at once"


def _line(rows: list[dict[str, Any]]) -> str:
    measured = [row for row in rows if "step_ms" in row]
    failed = [row for row in rows if "error" in row or "not_measured" in row]
    shown = [
        f"{row['model']} {row['sampler']}{_how(row)} {row['step_ms']:.1f}"
        for row in measured
        if row["loop"] == "pardec" and row["batch"] == 1
    ]
    return f"{len(measured)} loops timed, {len(failed)} not; ms per step at batch 1: {', '.join(shown)}"
