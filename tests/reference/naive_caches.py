"""The positions that caches compute, written from the papers: one row, sets of positions, one forward at a time.

Vicinity: dInfer (https://arxiv.org/abs/2510.08666). Delayed caches: dKV-Cache (https://arxiv.org/abs/2505.15781).
Block: SDAR (https://arxiv.org/abs/2510.06303).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pardec.models.plan import Plan


@dataclass
class Row:
    """The state of one row before a forward."""

    prompt: int
    total: int
    shift: int
    when: dict[int, int] = field(default_factory=dict)  # generated position -> forward that committed it
    lo: int = 0
    hi: int = 0
    end: int = 0
    before: int | None = None  # where the block began that was active before this one
    number: int = 0  # of the forward
    within: int = 0  # of the forward, in its block
    coming: list[int] = field(default_factory=list)  # what this forward commits, in order, where that is known

    @property
    def masks(self) -> list[int]:
        return [p for p in range(self.prompt, self.end) if p not in self.when]

    @property
    def fresh(self) -> list[int]:
        return [p for p, forward in self.when.items() if forward == self.number - 1]

    def predicting(self, p: int) -> int:
        return max(p - self.shift, 0)


Rule = Callable[[Row], set[int]]


def vicinity(before: int, after: int, warmup: int, refresh: int) -> Rule:
    def queried(row: Row) -> set[int]:
        if row.number < warmup or row.within == 0 or (refresh and row.number % refresh == 0):
            return set(range(row.end))
        return {p for p in range(row.end) if row.lo - before <= p < row.hi + after}

    return queried


def dkv(refresh: int, full: int, settle: str, prompt: str) -> Rule:
    def queried(row: Row) -> set[int]:
        if row.within < full or (refresh and row.within % refresh == 0):
            first = row.prompt - row.shift if prompt == "keep" else 0
            return set(range(first, row.end))
        positions = {row.predicting(p) for p in row.masks} | set(row.fresh)
        if settle != "self":
            positions |= {row.predicting(p) for p in row.fresh}
        if settle == "both":
            positions |= set(row.masks)
        return positions

    return queried


def dkv_published(refresh: int, full: int, settle: str, prompt: str) -> Rule:
    """The sets of Dream's published loops: a token is reused two forwards after the one that committed it."""

    def queried(row: Row) -> set[int]:
        if row.within < full or (refresh and row.within % refresh == 0):
            return set(range(row.prompt - 1 if prompt == "keep" else 0, row.end))
        if row.within == 1:
            return set(range(row.prompt - 1, row.end))
        old = [p < row.prompt or row.when.get(p, row.number) < row.number - 1 for p in range(row.total)]
        reused = old if settle == "self" else [*old[1:], old[0]]
        if settle == "both":
            reused = [one and two for one, two in zip(old, reused, strict=True)]
            reused[-1] = reused[-2]
        return {p for p in range(row.end) if not reused[p]}

    return queried


def dkv_greedy(refresh: int, window: int) -> Rule:
    def queried(row: Row) -> set[int]:
        if row.within == 0 or (refresh and row.within % refresh == 0):
            return set(range(row.end))
        near: list[int] = []
        for p in row.coming:
            free = [q for q in row.masks if q not in row.coming and q not in near]
            near += sorted(free, key=lambda q: (abs(q - p), q))[:window]
        return {*row.fresh, *row.coming, *near}

    return queried


def block() -> Rule:
    def queried(row: Row) -> set[int]:
        if row.within == 0:
            return set(range(0 if row.before is None else row.before, row.hi))
        return set(range(row.lo, row.hi))

    return queried


def decode(
    model: Any, prompt: list[int], new: int, rule: Rule, *, size: int, count: int = 1, order: list[int] | None = None
) -> tuple[list[int], dict[int, int], list[tuple[int, ...]]]:
    """Commits `count` tokens per forward, most confident first or in `order`; tokens, commit forwards, positions.

    Every forward computes the rule's positions and those that predict the wanted ones; the first one all visible ones.
    """
    decoding_config = model.decoding_config
    causal = decoding_config.attention == "block-causal"
    tokens = [*prompt, *[decoding_config.mask_id] * new]
    row = Row(len(prompt), len(tokens), decoding_config.shift)
    origin = 0 if causal else row.prompt
    cache, fed = model.new_cache(1, row.total), []
    while masks := [p for p in range(row.prompt, row.total) if p not in row.when]:
        lo = origin + (masks[0] - origin) // size * size
        if row.number == 0 or lo != row.lo:
            row.before, row.within = (None if row.number == 0 else row.lo), 0
            row.lo, row.hi = lo, min(lo + size, row.total)
            row.end = row.hi if causal else row.total
        wanted = [p for p in masks if p < row.hi]
        if order is not None:
            wanted = row.coming = sorted(wanted, key=order.index)[:count]
        queried = set(range(row.end)) if row.number == 0 else rule(row) | {row.predicting(p) for p in wanted}
        logits = _forward(model, tokens, sorted(queried), [row.predicting(p) for p in wanted], row.end, cache)
        fed.append(tuple(sorted(queried)))
        sure, ids = logits.softmax(-1).max(-1)
        for at in sorted(range(len(wanted)), key=lambda at: -float(sure[at]))[:count]:
            tokens[wanted[at]], row.when[wanted[at]] = int(ids[at]), row.number
        row.number, row.within = row.number + 1, row.within + 1
    return tokens, row.when, fed


def _forward(model: Any, tokens: list[int], queried: list[int], rows: list[int], end: int, cache: Any) -> torch.Tensor:
    """Logits [rows, V]; positions that are not computed keep the K/V of their last computation."""
    at = torch.tensor([queried])
    plan = Plan(
        tokens=torch.tensor([[tokens[p] for p in queried]]),
        positions=at,
        slots=at,
        visible=model.visible(),
        lengths=torch.tensor([end]),
        want=torch.tensor([[queried.index(row) for row in rows]]),
    )
    return (
        model.forward(plan, cache).logits()[0].index_fill(1, torch.tensor([model.decoding_config.mask_id]), -torch.inf)
    )
