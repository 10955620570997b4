"""Times the sampling decision of a step with and without `credit`, without the forward, on one CPU thread.

    python benchmarks/credit.py [--vocab 126464] [--positions 32] [--pairs 40] [--out benchmarks/credit.json]

A decision takes the raw logits of the active block to the mask of positions to commit (`MaskedLoop.decide`), for one
row whose positions are all masked. Both samplers get the same logits, which drift from step to step: the likeliest
token of a position changes, and credit accumulates on several tokens. Nothing is committed between decisions, so that
every position stays masked, which is the most work. The two samplers alternate in which goes first.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.environment import processor
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.samplers import registry
from pardec.samplers.masked.canvas import Update
from pardec.samplers.masked.contracts import Evidence, QuerySpec, Request
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.rng import Keyed

BASE, WITH = "threshold:tau=0.9", "credit+threshold:tau=0.9"
STATE_LIMIT_BYTES = 1_000_000


class Row:
    """One row of masked positions without a model: the logits are passed in."""

    def __init__(self, spec: str, vocab: int, positions: int) -> None:
        decoding_config = DecodingConfig(vocab - 1, (vocab - 2,), vocab - 3, None, 0, "bidirectional", None)
        placement: dict[str, Any] = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
        model = LanguageModel(
            torch.nn.Module(),
            decoding_config,
            {},
            None,
            "none",
            family="none",
            vocab_size=vocab,
            layers=0,
            width=0,
            **placement,
        )
        row = torch.full((positions,), vocab - 1)
        self.loop = MaskedLoop(model, registry.resolve(spec), Request((row,), (0,), positions, Keyed((0,))))
        self.queries = QuerySpec(np.zeros(1, dtype=np.int64), np.full(1, positions))

    @torch.inference_mode()
    def decide(self, logits: Tensor) -> float:
        """Seconds of one decision, after which nothing is committed."""
        canvas = self.loop.canvas
        started = time.perf_counter()
        evidence = Evidence(DenseDistribution(logits), canvas.window, canvas.eligible, self.loop.request)
        chosen = self.loop.decide(evidence, self.queries).chosen
        seconds = time.perf_counter() - started
        canvas.commit(Update(torch.zeros_like(chosen.which), chosen.tokens, chosen.scores))
        return seconds

    @property
    def state_bytes(self) -> int:
        """Bytes of the state of the logits stages."""
        states = [self.loop.state(stage) for stage in self.loop.sampler.logits]
        values = [value for state in states for value in vars(state).values()]
        return sum(value.nbytes for value in values)


def drifting(vocab: int, positions: int, steps: int) -> list[Tensor]:
    """Raw logits [1, W, V] of every step; three tokens per position are likely and alternate as the likeliest."""
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(1, positions, vocab, generator=generator)
    rivals = torch.randint(vocab - 3, (1, positions, 3), generator=generator)
    result = []
    for _ in range(steps):
        lead = 14 + 2 * torch.randn(1, positions, 3, generator=generator)
        logits = noise.scatter(-1, rivals, lead)
        logits[..., vocab - 1] = -torch.inf
        result.append(logits)
    return result


def measure(vocab: int, positions: int, pairs: int) -> dict[str, float]:
    """Median milliseconds per decision, over `pairs` blocks that both samplers decide."""
    steps = drifting(vocab, positions, 8)
    times: dict[str, list[float]] = {BASE: [], WITH: []}
    state_bytes = 0
    for pair in range(pairs + 2):
        block = {spec: Row(spec, vocab, positions) for spec in times}
        for number, logits in enumerate(steps):
            order = list(times) if (pair + number) % 2 else list(times)[::-1]
            for spec in order:
                seconds = block[spec].decide(logits)
                if pair >= 2:  # the first two blocks warm up
                    times[spec].append(1e3 * seconds)
        state_bytes = block[WITH].state_bytes
    base, credit = (statistics.median(values) for values in times.values())
    ratios = sorted(one / other for one, other in zip(times[WITH], times[BASE], strict=True))
    return {
        "threshold_ms": base,
        "credit_ms": credit,
        "ratio": credit / base,
        "ratio_of_pairs_median": statistics.median(ratios),
        "ratio_of_pairs_p90": ratios[int(0.9 * len(ratios))],
        "decisions": len(ratios),
        "credit_state_bytes": state_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--vocab", type=int, default=126_464)
    parser.add_argument("--positions", type=int, default=32)
    parser.add_argument("--pairs", type=int, default=40, help="measured pairs of eight decisions per sampler")
    parser.add_argument("--most", type=float, default=1.1, help="exit with 1 if the ratio is larger")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = measure(options.vocab, options.positions, options.pairs)
    print(
        f"{options.positions} positions, vocabulary {options.vocab}: {BASE} {figures['threshold_ms']:.2f} ms, "
        f"{WITH} {figures['credit_ms']:.2f} ms per decision, {100 * (figures['ratio'] - 1):+.1f}% "
        f"(median of the pairs {100 * (figures['ratio_of_pairs_median'] - 1):+.1f}%); "
        f"state {figures['credit_state_bytes']} bytes per row"
    )
    if options.out:
        command = shlex.join(["python", "benchmarks/credit.py", *sys.argv[1:]])
        machine = {"processor": processor(), "torch": torch.__version__, "threads": 1}
        case = {"vocab": options.vocab, "positions": options.positions}
        options.out.write_text(json.dumps({"command": command, "machine": machine, **case, **figures}, indent=1) + "\n")
    return int(figures["ratio"] > options.most or figures["credit_state_bytes"] > STATE_LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
