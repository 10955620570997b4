"""Entry h: tokens per second of rollouts, eight answers to each prompt, many rows at once."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch

import pardec
from gpu_runs.report import Report
from pardec.bench.clock import settle

CASES = (("tiny-llama", "sequential"), ("tiny-dream", "threshold:tau=0.9"))
ROWS, ANSWERS = (8, 128), 8
NEW = 48


def run(report: Report) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    for name, spec in CASES:
        model = pardec.load(name, device=device, cuda_graphs="auto")
        for rows in ROWS[:1] if report.dry else ROWS:
            names = {"model": name, "sampler": spec, "rows": rows}
            report.measure(names, partial(figures, model, spec, rows, 1 if report.dry else 3))
    done = [f"{row['model']} {row['rows']} rows {row['tokens_s']:.0f}" for row in report.rows if "tokens_s" in row]
    report.line(f"tokens per second of rollouts: {', '.join(done)}")


def figures(model: pardec.Model, spec: str, rows: int, times: int = 3) -> dict[str, Any]:
    """Tokens per second of `rows` answers with log-probabilities and rewards: the best of `times` warm runs."""
    problems = pardec.task("arithmetic").problems("train", rows // ANSWERS, 7)
    prompts = [str(problem.prompt) for problem in problems]

    def decode() -> tuple[float, int]:
        started = time.perf_counter()
        found = model.rollouts(prompts, n=ANSWERS, sampler=spec, max_new_tokens=NEW, seed=7, reward=length)
        settle(model.network.device)
        return time.perf_counter() - started, sum(map(len, found.result.tokens))

    decode()
    seconds, tokens = min(decode() for _ in range(times))
    return {"tokens": tokens, "seconds": round(seconds, 4), "tokens_s": round(tokens / seconds, 1)}


def length(prompt: str, text: str) -> float:
    """A reward that costs nothing: the length of the answer."""
    return float(len(text))
