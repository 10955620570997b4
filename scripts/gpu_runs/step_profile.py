"""Entry d: the launches of a step, and how long the GPU works and waits in it."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import pardec
from gpu_runs.report import Report
from gpu_runs.shapes import CAUSAL, MASKED, eager_and_captured
from gpu_runs.steps import prepared
from pardec.bench.clock import settle
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.samplers.events import Step

SKIPPED, PROFILED = 6, 4  # steps: before the profile, and in it
CASES = ((MASKED, "sequential@none"), (MASKED, "sequential@dual"), (MASKED, "sequential@dkv"))
CASES += ((CAUSAL, "sequential"), (CAUSAL, "lookup:k=7"))


def run(report: Report) -> None:
    size = (24, 12) if report.dry else (448, 32)
    for name in (MASKED, CAUSAL):
        for loaded, graphs in eager_and_captured(name, dry=report.dry):
            for spec in [spec for shape, spec in CASES if shape == name]:
                names = {"model": name, "sampler": spec, "batch": 1, "cuda_graphs": graphs}
                report.measure(names, partial(profiled, loaded, spec, *size), least=3)
    shown = [f"{row['sampler']} {row['busy']:.0%}" for row in report.rows if row.get("busy") is not None]
    counted = [f"{row['sampler']} {row['launches']:.0f}" for row in report.rows if "launches" in row]
    report.line(f"GPU busy: {', '.join(shown) or 'no GPU'}; launches a step: {', '.join(counted)}")


def profiled(loaded: pardec.Model, spec: str, prompt: int, new: int) -> dict[str, Any]:
    """Figures of one step, the mean over a few in the middle of a decode of `new` tokens.

    `launches` are calls that start work on the GPU (on a CPU: operations of PyTorch); in `waits` the host waits for it;
    `busy` is the share of the time in which at least one kernel runs; `longest_gap_ms` is the longest time without one.
    """
    device = loaded.network.device
    cuda = device.type == "cuda"
    for _ in range(2 if isinstance(loaded.network.decoder, GraphRunner) else 1):  # captures and compiled kernels
        *_, _ = loaded.run(prepared(loaded, spec, 1, prompt, new), steps=False)
    activities = [ProfilerActivity.CPU, *[ProfilerActivity.CUDA][: int(cuda)]]
    steps, profiler, seconds = 0, profile(activities=activities), 0.0
    running = False
    for event in loaded.run(prepared(loaded, spec, 1, prompt, new)):
        if not isinstance(event, Step):
            continue
        if event.number == SKIPPED:
            settle(device)
            profiler.start()
            running, started = True, time.perf_counter()
        elif running:
            steps += 1
            if steps == PROFILED:
                settle(device)
                seconds = time.perf_counter() - started
                profiler.stop()
                running = False
    if running:  # a decode that ended sooner
        settle(device)
        seconds = time.perf_counter() - started
        profiler.stop()
    if not steps:
        raise RuntimeError(f"the decode ended within {SKIPPED} steps")
    return figures([_event(event) for event in profiler.events() or ()], steps, seconds, cuda=cuda)


def _event(event: Any) -> tuple[str, bool, float, float]:
    """The event's name, whether it ran on the GPU, and when it began and ended, in microseconds."""
    on_gpu = event.device_type == torch.autograd.DeviceType.CUDA
    return event.name, on_gpu, event.time_range.start, event.time_range.end


def figures(events: list[tuple[str, bool, float, float]], steps: int, seconds: float, *, cuda: bool) -> dict[str, Any]:
    """The figures of `profiled` from events (name, on the GPU, start and end in microseconds)."""
    kernels = sorted((start, end, name) for name, on_gpu, start, end in events if on_gpu)
    host = [name for name, on_gpu, *_ in events if not on_gpu]
    started = [name for name in host if name.startswith(("cudaLaunchKernel", "cuLaunchKernel", "cudaGraphLaunch"))]
    waits = [name for name in host if "Synchronize" in name]
    copies = [name for name in host if name.startswith("cudaMemcpy")]
    busy, longest, reached = 0.0, 0.0, kernels[0][0] if kernels else 0.0
    for start, end, _ in kernels:
        longest = max(longest, start - reached)
        busy += max(end - max(start, reached), 0.0)
        reached = max(reached, end)
    by_name: dict[str, float] = {}
    for start, end, name in kernels:
        by_name[name[:60]] = by_name.get(name[:60], 0.0) + end - start
    most = sorted(by_name.items(), key=lambda pair: -pair[1])[:6]
    return {
        "steps": steps,
        "step_ms": 1e3 * seconds / steps,
        "launches": (len(started) if cuda else len([name for name in host if name.startswith("aten::")])) / steps,
        "kernels": len(kernels) / steps,
        "waits": len(waits) / steps,
        "copies": len(copies) / steps,
        "busy": busy / 1e6 / seconds if cuda else None,
        "longest_gap_ms": longest / 1e3 if cuda else None,
        "most_ms": {name: duration / 1e3 / steps for name, duration in most},
    }
