"""Schedules with a clock, written from their sources: one row, a forward at every step, committing or not.

Timesteps and origin: Dream (https://arxiv.org/abs/2508.15487). Confident decoding: Dimple
(https://arxiv.org/abs/2505.16990). Carry: Fast-dLLM's Dream without a cache (https://arxiv.org/abs/2505.22618).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.reference.naive_masked import logits_of, score_of, softmax

Uniform = Callable[[int, int, str], float]  # clock, position, purpose


@dataclass
class Moment:
    """The input of a rule at one step of a block."""

    score: dict[int, float]  # of the open positions
    step: int  # within the block
    steps: int  # of the block
    at_entry: int  # open when the block was entered
    draw: Callable[[int], float]  # position -> this step's uniform
    memory: dict[str, Any]  # the rule's own, new with each block

    def ranked(self) -> list[int]:
        return sorted(self.score, key=lambda p: (-self.score[p], p))

    def time(self, step: int, eps: float) -> float:
        return 1 - step * (1 - eps) / self.steps

    @property
    def last(self) -> bool:
        return self.step >= self.steps - 1


Rule = Callable[[Moment], list[int]]


def timesteps(eps: float = 1e-3, alg_temp: float = 0.0) -> Rule:
    def rule(now: Moment) -> list[int]:
        count = len(now.score)
        if not now.last:
            count = int(count * (1 - now.time(now.step + 1, eps) / now.time(now.step, eps)))
        if not alg_temp:
            return now.ranked()[:count]
        noisy = {p: score / alg_temp - np.log(-np.log(now.draw(p))) for p, score in now.score.items()}
        return sorted(noisy, key=lambda p: -noisy[p])[:count]

    return rule


def origin(eps: float = 1e-3) -> Rule:
    def rule(now: Moment) -> list[int]:
        chance = 1.0 if now.last else 1 - now.time(now.step + 1, eps) / now.time(now.step, eps)
        return [p for p in now.score if now.draw(p) < chance]

    return rule


def carry(tau: float) -> Rule:
    def rule(now: Moment) -> list[int]:
        quota = len(range(now.step, now.at_entry, now.steps)) if now.step < now.steps else 0
        candidates = now.ranked()[: quota + now.memory.get("carried", 0)]
        taken = [p for rank, p in enumerate(candidates) if rank == 0 or now.score[p] >= tau]
        now.memory["carried"] = len(candidates) - len(taken)
        return taken

    return rule


def confident(tau: float | None, eps: float = 1e-3, order: str = "score") -> Rule:
    def rule(now: Moment) -> list[int]:
        if now.last:
            return list(now.score)
        sure = [p for p in now.score if tau is not None and now.score[p] > tau]
        if sure:
            return sure
        if order == "left":
            return [min(now.score)]
        n = len(now.score)
        ratio = n / now.at_entry
        for later in range(now.step + 1, now.steps):
            count = int(n * (1 - now.time(later, eps) / ratio))
            if count >= 1:
                return now.ranked()[:count]
        return list(now.score)

    return rule


def decode(
    model: Any,
    canvas: list[int],
    start: int,
    rule: Rule,
    uniform: Uniform,
    *,
    steps: int | None,
    propose: str = "confidence",
    block_length: int,
    absolute: bool = False,
) -> tuple[list[int], list[int], int]:
    """Tokens, the forward that committed each position, and the number of forwards without idle ones."""
    tokens, open_ = list(canvas), [p for p in range(start, len(canvas)) if canvas[p] == model.decoding_config.mask_id]
    given = [p not in open_ for p in range(len(tokens))]
    when = [-1] * len(tokens)
    origin_ = 0 if absolute else start
    first, last = (start - origin_) // block_length, (len(tokens) - 1 - origin_) // block_length
    clock, busy = 0, 0
    for number in range(first, last + 1):
        block = [p for p in open_ if (p - origin_) // block_length == number]
        share = len(block) if steps is None else max(1, len(range(number - first, steps, last - first + 1)))
        step, at_entry, memory = 0, len(block), dict[str, Any]()
        while block:
            logits = logits_of(model, tokens, given, None)
            distributions = {p: softmax(logits[p]) for p in block}
            best = {p: int(distributions[p].argmax()) for p in block}
            score = {p: score_of(propose, distributions[p], best[p], 0.0) for p in block}
            now = clock
            moment = Moment(score, step, share, at_entry, lambda p, now=now: uniform(now, p, "transfer"), memory)
            chosen = rule(moment)
            for p in chosen:
                tokens[p], when[p] = best[p], busy
                block.remove(p)
            busy += bool(chosen)
            clock, step = clock + 1, step + 1
    return tokens, when, busy
