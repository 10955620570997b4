"""Times a decision with `credit` against one without, forward excluded, in pairs, on one thread of a CPU.

    python benchmarks/credit.py [--vocab 126464] [--positions 32] [--pairs 40] [--out benchmarks/credit.json]

A decision is what the loop does from the raw logits of the active block to the mask of what is committed
(`MaskedLoop.decide`), for one row whose positions are all open. Both samplers see the same logits: a sequence that
drifts from step to step, so that positions change their mind and credit gathers in several pairs. Between decisions
nothing is committed, which keeps every position open: the most work there is. The two take turns at going first.
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
from pardec.samplers.masked.canvas import Writing
from pardec.samplers.masked.contracts import Evidence, QuerySpec, Request
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.rng import Keyed

BASE, WITH = "threshold:tau=0.9", "credit+threshold:tau=0.9"
STATE_LIMIT_BYTES = 1_000_000


class Bare:
    """One row of open positions that no model looks at: logits are handed in."""

    def __init__(self, spec: str, vocab: int, positions: int) -> None:
        decoding_config = DecodingConfig(vocab - 1, (vocab - 2,), vocab - 3, None, 0, "bidirectional", None)
        where: dict[str, Any] = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
        model = LanguageModel(
            torch.nn.Module(),
            decoding_config,
            {},
            None,
            "bare",
            family="bare",
            vocab_size=vocab,
            layers=0,
            width=0,
            **where,
        )
        row = torch.full((positions,), vocab - 1)
        self.loop = MaskedLoop(model, registry.resolve(spec), Request((row,), (0,), positions, Keyed((0,))))
        self.ask = QuerySpec(np.zeros(1, dtype=np.int64), np.full(1, positions))

    @torch.inference_mode()
    def decide(self, logits: Tensor) -> float:
        """Seconds of one decision; nothing is committed then."""
        canvas = self.loop.canvas
        started = time.perf_counter()
        evidence = Evidence(DenseDistribution(logits), canvas.window, canvas.eligible, self.loop.request)
        chosen = self.loop.decide(evidence, self.ask).chosen
        seconds = time.perf_counter() - started
        canvas.commit(Writing(torch.zeros_like(chosen.which), chosen.tokens, chosen.scores))
        return seconds

    @property
    def state_bytes(self) -> int:
        """What the logits stages remember."""
        held = [self.loop.state(stage) for stage in self.loop.sampler.logits]
        values = [value for state in held for value in vars(state).values()]
        return sum(value.nbytes for value in values)


def drifting(vocab: int, positions: int, steps: int) -> list[Tensor]:
    """Raw logits [1, W, V] of every step: three rivals a position stand out, and their lead changes hands."""
    drawn = torch.Generator().manual_seed(0)
    noise = torch.randn(1, positions, vocab, generator=drawn)
    rivals = torch.randint(vocab - 3, (1, positions, 3), generator=drawn)
    found = []
    for _ in range(steps):
        lead = 14 + 2 * torch.randn(1, positions, 3, generator=drawn)
        logits = noise.scatter(-1, rivals, lead)
        logits[..., vocab - 1] = -torch.inf
        found.append(logits)
    return found


def measure(vocab: int, positions: int, pairs: int) -> dict[str, float]:
    """Medians over `pairs` blocks, each decided by both samplers; milliseconds a decision."""
    steps = drifting(vocab, positions, 8)
    times: dict[str, list[float]] = {BASE: [], WITH: []}
    state_bytes = 0
    for pair in range(pairs + 2):
        block = {spec: Bare(spec, vocab, positions) for spec in times}
        for number, logits in enumerate(steps):
            order = list(times) if (pair + number) % 2 else list(times)[::-1]
            for spec in order:
                seconds = block[spec].decide(logits)
                if pair >= 2:  # the first two blocks warm up
                    times[spec].append(1e3 * seconds)
        state_bytes = block[WITH].state_bytes
    base, credit = (statistics.median(found) for found in times.values())
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
    parser.add_argument("--pairs", type=int, default=40, help="blocks of eight decisions by each sampler")
    parser.add_argument("--most", type=float, default=1.1, help="exit with 1 above this ratio")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = measure(options.vocab, options.positions, options.pairs)
    print(
        f"{options.positions} positions, vocabulary {options.vocab}: {BASE} {found['threshold_ms']:.2f} ms, "
        f"{WITH} {found['credit_ms']:.2f} ms a decision, {100 * (found['ratio'] - 1):+.1f}% "
        f"(pair by pair {100 * (found['ratio_of_pairs_median'] - 1):+.1f}%); "
        f"state {found['credit_state_bytes']} bytes a row"
    )
    if options.out:
        command = shlex.join(["python", "benchmarks/credit.py", *sys.argv[1:]])
        machine = {"processor": processor(), "torch": torch.__version__, "threads": 1}
        case = {"vocab": options.vocab, "positions": options.positions}
        options.out.write_text(json.dumps({"command": command, "machine": machine, **case, **found}, indent=1) + "\n")
    return int(found["ratio"] > options.most or found["credit_state_bytes"] > STATE_LIMIT_BYTES)


if __name__ == "__main__":
    sys.exit(main())
