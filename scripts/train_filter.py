"""Trains a filter for the sampler `learned` on a model's own traces of the package's tasks.

    python scripts/train_filter.py [--model tiny-dream] --out models/embedded/filters/tiny-dream

The model decodes problems of the train splits one token per forward, and once more in parallel, with `threshold`. Every
step of both decodes gives one example per row: the confidences of the active block and, at its open positions, whether
the argmax is the final token of decoding one at a time. The filter learns these by cross-entropy, half of each batch
from each decode, on one thread and from a seed. Its `tau` is the lowest of a few with which as many other problems of
the train splits are right as with `threshold:tau=0.9`, give or take a point. Last, held-out problems are decoded with
it, with `sequential` and with `threshold:tau=0.9`; `card.json` has their accuracies. `filter.safetensors` names the
model and the `tau`: by default it is used for no other model.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

import pardec
from pardec.samplers import registry
from pardec.samplers.masked.contracts import Canvas, Evidence, Logits
from pardec.samplers.ops.distribution import Distribution
from pardec.samplers.ops.learned_filters import WEIGHTS, Filter
from pardec.samplers.trace import UNCOMMITTED

TASKS = ("arithmetic", "lists", "records")
BLOCK, NEW = 32, 64
_POINT = 0.01  # a percentage point of accuracy; so few problems show no smaller difference
BATCH = 25  # problems decoded together
ALONE = "sequential+eos"
TOGETHER = ("threshold:tau=0.5+eos", "threshold:tau=0.9+eos")
TAUS = (0.5, 0.7, 0.8, 0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.998)


@dataclass
class Examples:
    """The recorded values of a block, [N, W] each."""

    confidences: Tensor  # 1 where nothing was open
    open: Tensor  # whether the position was open, and its final token is known
    final: Tensor  # whether its argmax was that token

    def __len__(self) -> int:
        return len(self.open)

    def at(self, index: Tensor) -> Examples:
        return Examples(self.confidences[index], self.open[index], self.final[index])

    @classmethod
    def joined(cls, parts: list[Examples]) -> Examples:
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in ("confidences", "open", "final")))


@dataclass
class Recorder(Logits):
    """A logits stage that changes nothing and records its inputs at each step."""

    steps: list[tuple[np.ndarray, np.ndarray, Tensor, Tensor, Tensor]] = field(default_factory=list)

    def logits(self, evidence: Evidence, canvas: Canvas, state: None) -> Distribution:
        ids, probability = evidence.distribution.greedy
        self.steps.append(
            (canvas.rows, canvas.block_start, ids.clone(), probability.clone(), evidence.eligible.clone())
        )
        return evidence.distribution

    def examples(self, ended: Tensor) -> Examples:
        """Every step of every row, compared with the final tokens `ended`, -1 where there is none."""
        found = []
        for rows, lo, ids, probability, open_ in self.steps:
            window = torch.from_numpy(lo[:, None] + np.arange(ids.shape[1])).clamp(max=ended.shape[1] - 1)
            token = ended[torch.from_numpy(rows)].gather(1, window)
            found.append((probability.masked_fill(~open_, 1.0), open_ & (token >= 0), (ids == token) & open_))
        return Examples(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def record(model: pardec.Model, split: str, count: int, seed: int) -> tuple[Examples, Examples]:
    """Records steps of `count` problems of each task, decoded one token per forward and in parallel."""
    alone, together = [], []
    for task in TASKS:
        problems = pardec.task(task).problems(split=split, n=count, seed=seed)
        for start in range(0, count, BATCH):
            prompts = [problem.prompt for problem in problems[start : start + BATCH]]
            ended, recorder = decode(model, prompts, ALONE)
            alone.append(recorder.examples(ended))
            together += [decode(model, prompts, spec)[1].examples(ended) for spec in TOGETHER]
    return Examples.joined(alone), Examples.joined(together)


def decode(model: pardec.Model, prompts: list[str], spec: str) -> tuple[Tensor, Recorder]:
    """The final canvases, -1 where nothing was committed, and the recorded steps."""
    recorder = Recorder()
    sampler = replace(registry.resolve(spec), logits=(recorder,))
    result = model.generate(prompts, sampler=sampler, max_new_tokens=NEW, block_length=BLOCK)
    return result.sequences.where(torch.from_numpy(result.trace.commit_step != UNCOMMITTED), -1), recorder


def train(kinds: tuple[Examples, ...], *, hidden: int, steps: int, batch: int, rate: float, seed: int) -> Filter:
    """AdamW with a cosine schedule."""
    torch.manual_seed(seed)
    drawn = torch.Generator().manual_seed(seed)
    made = Filter(BLOCK, hidden)
    optimizer = torch.optim.AdamW(made.parameters(), lr=rate, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        picked = [torch.randint(len(kind), (batch // len(kinds),), generator=drawn) for kind in kinds]
        seen = Examples.joined([kind.at(index) for kind, index in zip(kinds, picked, strict=True)])
        logits = made(seen.confidences)[seen.open]
        loss = binary_cross_entropy_with_logits(logits, seen.final[seen.open].float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return made.eval().requires_grad_(False)


def chosen_tau(model: pardec.Model, folder: Path, count: int, seed: int) -> tuple[float, list[dict[str, Any]]]:
    """The lowest tau as accurate as `threshold:tau=0.9`, to a percentage point, else the highest; figures of each."""
    problems = {task: pardec.task(task).problems(split="train", n=count, seed=seed) for task in TASKS}
    needed = sum(measured(model, task, "threshold:tau=0.9+eos", part)["exact"] for task, part in problems.items())
    tried = []
    for tau in TAUS:
        spec = f'learned:filter="{folder}",tau={tau}+eos'
        found = [measured(model, task, spec, part) for task, part in problems.items()]
        exact, forwards = (sum(row[key] for row in found) for key in ("exact", "forwards"))
        tried.append({"tau": tau, "exact": round(exact / len(TASKS), 4), "forwards": round(forwards / len(TASKS), 2)})
        if exact >= needed - len(TASKS) * _POINT:
            break
    return tried[-1]["tau"], tried


def judged(made: Filter, examples: Examples, tau: float) -> dict[str, float]:
    """The accuracy in separating final candidates from others, at open positions."""
    logits, final = made(examples.confidences)[examples.open], examples.final[examples.open].float()
    taken = logits.sigmoid() > tau
    right = (taken & final.bool()).sum().item()
    return {
        "cross_entropy": round(binary_cross_entropy_with_logits(logits, final).item(), 4),
        "share_final": round(final.mean().item(), 4),
        "precision": round(right / max(taken.sum().item(), 1), 4),
        "recall": round(right / final.sum().item(), 4),
    }


def measured(model: pardec.Model, task: str, spec: str, problems: list[Any]) -> dict[str, Any]:
    """Share of the problems answered exactly, and mean forwards up to the first end token."""
    made = pardec.task(task)
    scores, forwards = [], []
    for start in range(0, len(problems), BATCH):
        part = problems[start : start + BATCH]
        prompts = [problem.prompt for problem in part]
        result = model.generate(prompts, sampler=spec, max_new_tokens=NEW, block_length=BLOCK)
        assert result.text is not None
        scores += [made.score(problem, text) for problem, text in zip(part, result.text, strict=True)]
        for row, tokens in enumerate(result.tokens):
            first = result.prompts[row]
            forwards.append(int(result.trace.commit_step[row, first : first + len(tokens)].max()) + 1)
    exact = sum(score == 1 for score in scores) / len(problems)
    return {"exact": round(exact, 4), "forwards": round(statistics.mean(forwards), 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="tiny-dream")
    parser.add_argument("--problems", type=int, default=80, help="training problems per task")
    parser.add_argument("--heldout", type=int, default=100, help="held-out problems per task")
    parser.add_argument("--hidden", type=int, default=32)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    started = time.perf_counter()
    model = pardec.load(options.model, device="cpu", dtype="float32")
    kinds = record(model, "train", options.problems, options.seed)
    counts = [len(kind) for kind in kinds]
    print(f"{counts} steps recorded in {time.perf_counter() - started:.0f} s", flush=True)
    settings = {name: getattr(options, name) for name in ("hidden", "steps", "rate", "seed")}
    made = train(kinds, batch=options.batch_size, **settings)
    options.out.mkdir(parents=True, exist_ok=True)
    save_file(made.state_dict(), options.out / WEIGHTS, {"model": model.name})
    tau, tried = chosen_tau(model, options.out, options.problems, options.seed + 1)
    save_file(made.state_dict(), options.out / WEIGHTS, {"model": model.name, "tau": str(tau)})
    seconds = time.perf_counter() - started
    print(f"tau={tau} after {seconds:.0f} s: {tried}", flush=True)
    unseen = record(model, "heldout", options.heldout // 4, 7)
    rows: dict[str, Any] = {}
    for task in TASKS:
        problems = pardec.task(task).problems(split="heldout", n=options.heldout, seed=7)
        rows[task] = {
            name: measured(model, task, f"{spec}+eos", problems)
            for name, spec in (
                ("sequential", "sequential"),
                ("threshold:tau=0.9", "threshold:tau=0.9"),
                (f"learned:tau={tau}", f'learned:filter="{options.out}",tau={tau}'),
            )
        }
        print(task, rows[task], flush=True)
    card = {
        "name": options.out.name,
        "summary": f"A filter for the sampler `learned`, trained on {options.model}'s own traces.",
        "tau": tau,
        "block_length": BLOCK,
        "parameters": sum(weight.numel() for weight in made.parameters()),
        "recipe": {
            "script": "scripts/train_filter.py",
            "model": options.model,
            "data": f"train splits of {', '.join(TASKS)}, {options.problems} problems each",
            "examples": dict(zip((ALONE, " and ".join(TOGETHER)), counts, strict=True)),
            "tau": {"problems": f"train splits, {options.problems} each, seed {options.seed + 1}", "tried": tried},
            "optimizer": f"AdamW, learning rate {options.rate}, cosine schedule, batches of {options.batch_size}",
            "steps": options.steps,
            "seconds": round(seconds),
            "device": "cpu, one thread",
            "torch": torch.__version__,
            "seed": options.seed,
        },
        "heldout": {
            "problems": options.heldout,
            "seed": 7,
            "steps_alone": judged(made, unseen[0], tau),
            "steps_together": judged(made, unseen[1], tau),
        },
        "accuracy": rows,
    }
    (options.out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")
    print(card["heldout"])


if __name__ == "__main__":
    from until_done import errors_in_two_lines

    with errors_in_two_lines():
        main()
