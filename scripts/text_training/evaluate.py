"""Exact-match accuracy by plain decoding loops over full forwards; rows leave the batch when they finish."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from pardec.tasks import Problem
from text_training.data import BLOCK, EOS, MASK
from text_training.drills import task_or_drill
from text_training.networks import SHIFT, is_masked, logits_of

SEED = 7


def _decode(
    prompts: list[list[int]],
    new: int,
    step: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    fill: int,
) -> tuple[list[list[int]], list[int]]:
    """Generated ids and forwards per row. Prompts of one length run together; a row stops at its first end token."""
    out: list[list[int]] = [[] for _ in prompts]
    used = [0] * len(prompts)
    for length in sorted({len(p) for p in prompts}):
        rows = torch.tensor([i for i, p in enumerate(prompts) if len(p) == length])
        canvas = torch.tensor([prompts[i] + [fill] * new for i in rows.tolist()])
        open_ = torch.zeros_like(canvas, dtype=torch.bool)
        open_[:, length:] = True
        while len(rows):
            canvas, open_ = step(canvas, open_)
            ended = ((canvas == EOS) & ~open_)[:, length:]
            whole = open_[:, length:].long().cumsum(1) == 0
            done = (ended & whole).any(1) | ~open_.any(1)
            for i, row, finished in zip(rows.tolist(), canvas[:, length:].tolist(), done.tolist(), strict=True):
                used[i] += 1
                if finished:
                    out[i] = row[: row.index(EOS)] if EOS in row else row
            rows, canvas, open_ = rows[~done], canvas[~done], open_[~done]
    return out, used


def causal_step(model: nn.Module) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Greedy: the first open position takes its most likely token."""

    def step(canvas: Tensor, open_: Tensor) -> tuple[Tensor, Tensor]:
        at = open_.long().argmax(1)
        rows = torch.arange(len(canvas))
        width = int(at.max())
        canvas[rows, at] = logits_of(model, canvas[:, :width], False)[rows, at - 1].argmax(-1)
        open_[rows, at] = False
        return canvas, open_

    return step


def masked_step(
    model: nn.Module, shift: int, tau: float, region: int
) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Commits the block's most confident open token, and all of at least `tau` (2 switches that off)."""

    def step(canvas: Tensor, open_: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits_of(model, canvas, True).float()
        logits[..., MASK] = -torch.inf
        score, token = logits.softmax(-1).max(-1)
        score, token = score.roll(shift, 1), token.roll(shift, 1)
        first = canvas.shape[1] - region
        at = torch.arange(canvas.shape[1])
        block = torch.div(at - first, BLOCK, rounding_mode="floor")
        active = torch.where(open_, block, region).min(1).values
        eligible = open_ & (block == active[:, None])
        score = score.masked_fill(~eligible, -1.0)
        pick = eligible & (score >= tau)
        pick[torch.arange(len(canvas)), score.argmax(1)] = True
        return torch.where(pick, token, canvas), open_ & ~pick

    return step


@torch.inference_mode()
def accuracy(
    model: nn.Module, name: str, tokenizer: Tokenizer, counts: dict[str, int], sampler: str
) -> dict[str, float]:
    """Exact-match share per task, and `<task>_nfe`, the mean number of forwards up to the end token.

    sampler: greedy (causal), sequential, or threshold (0.9).
    """
    result: dict[str, float] = {}
    for kind, count in counts.items():
        made = task_or_drill(kind)
        if is_masked(name):
            step = masked_step(model, SHIFT[name], 0.9 if sampler == "threshold" else 2.0, made.tokens)
        else:
            step = causal_step(model)
        problems: list[Problem] = made.problems("heldout", count, SEED)
        prompts = [e.ids for e in tokenizer.encode_batch([p.prompt for p in problems])]
        with torch.autocast("cpu", torch.bfloat16):
            rows, used = _decode(prompts, made.tokens, step, MASK if is_masked(name) else EOS)
        texts = [tokenizer.decode(row, skip_special_tokens=False) for row in rows]
        right = [made.score(p, text) for p, text in zip(problems, texts, strict=True)]
        result[kind] = round(sum(right) / len(right), 4)
        result[f"{kind}_nfe"] = round(sum(used) / len(used), 2)
    return result


def measure(
    model: nn.Module, name: str, tokenizer: Tokenizer, kinds: Iterable[str], count: int, final: bool
) -> tuple[dict[str, dict[str, Any]], dict[str, float]]:
    """The measurements of the card, accuracies per sampler, and the shares for the log and the curve.

    In between, a masked model's slow `sequential` is asked for the first of `kinds` only.
    """
    everything = dict.fromkeys(kinds, count)
    first = next(iter(everything))
    plan = {"greedy": everything}
    if is_masked(name):
        plan = {"threshold": everything, "sequential": everything if final else {first: count}}
    found: dict[str, dict[str, Any]] = {}
    for sampler, counts in plan.items():
        found[sampler] = {**accuracy(model, name, tokenizer, counts, sampler), "problems": counts}
    shares = {kind: found["threshold" if is_masked(name) else "greedy"][kind] for kind in everything}
    if is_masked(name):
        shares[f"sequential_{first}"] = found["sequential"][first]
    return found, shares
