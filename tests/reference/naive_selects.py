"""Adaptive rules written down from their papers: one row, one position at a time, plain Python, float64.

CreditDecoding https://arxiv.org/abs/2510.06133, LocalLeap https://arxiv.org/abs/2510.07081, entropy bound
https://arxiv.org/abs/2505.24857, KLASS https://arxiv.org/abs/2511.05664, hierarchical decoding
https://arxiv.org/abs/2510.08666. Every rule answers which of the open positions of a block are committed, from the
block's probabilities; a decoder around them keeps blocks and calls `new_block`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.reference.naive_masked import entropy_of, filtered, logits_of, softmax

Laws = dict[int, np.ndarray]  # open position of the block -> probabilities


def surest(laws: Laws) -> list[int]:
    """Open positions, the highest probability first; the lowest position first among equals."""
    return sorted(laws, key=lambda p: (-laws[p].max(), p))


def sequential(laws: Laws) -> list[int]:
    return surest(laws)[:1]


def threshold(tau: float) -> Callable[[Laws], list[int]]:
    return lambda laws: [p for p in laws if laws[p].max() >= tau] or surest(laws)[:1]


def localleap(base: Callable[[Laws], list[int]], tau: float, relaxed: float, radius: int) -> Callable[[Laws], Any]:
    """The published rule, anchors by threshold."""

    def rule(laws: Laws) -> list[int]:
        anchors = [p for p in laws if laws[p].max() >= tau]
        near = {p for p in laws for a in anchors if abs(p - a) <= radius}
        return [p for p in laws if laws[p].max() >= (relaxed if p in near else tau)] or base(laws)

    return rule


def entropy_bound(gamma: float) -> Callable[[Laws], list[int]]:
    def rule(laws: Laws) -> list[int]:
        entropy = {p: entropy_of(law) for p, law in laws.items()}
        chosen: list[int] = []
        for p in sorted(laws, key=lambda p: (entropy[p], p)):
            run = [entropy[q] for q in [*chosen, p]]
            if sum(run) - max(run) > gamma:
                break
            chosen.append(p)
        return chosen

    return rule


def hierarchy(high: float | None, low: float) -> Callable[[Laws], list[int]]:
    def rule(laws: Laws) -> list[int]:
        runs: list[list[int]] = []
        for p in sorted(laws):
            if runs and runs[-1][-1] == p - 1:
                runs[-1].append(p)
            else:
                runs.append([p])
        leads = [surest({p: laws[p] for p in run})[0] for run in runs]
        chosen = {p for p in leads if laws[p].max() > low}
        chosen |= {p for p in laws if high is not None and laws[p].max() > high}
        return sorted(chosen | set(surest(laws)[:1]))

    return rule


class Klass:
    """Keeps each position's last law and its divergences; `quotas` is what the block's schedule owes step by step."""

    def __init__(self, tau: float, kl: float, history: int, quotas: Callable[[int], list[int]] | None = None) -> None:
        self.tau, self.kl, self.history, self.quotas = tau, kl, history, quotas

    def new_block(self, count: int) -> None:
        self.laws: Laws = {}
        self.moved: dict[int, list[float]] = {}
        self.step, self.owed = -1, [] if self.quotas is None else self.quotas(count)

    def __call__(self, laws: Laws) -> list[int]:
        self.step += 1
        for p, law in laws.items():
            if p in self.laws:
                pairs = zip(law, self.laws[p], strict=True)
                kl = sum(x * math.log((x + 1e-12) / (y + 1e-12)) for x, y in pairs)
                self.moved.setdefault(p, []).append(kl)
        self.laws = dict(laws)
        still = [
            p
            for p, law in laws.items()
            if len(self.moved.get(p, [])) >= self.history
            and max(self.moved[p][-self.history :]) < self.kl
            and law.max() > self.tau
        ]
        count = self.owed[self.step] if self.step < len(self.owed) else 1
        return still or surest(laws)[: max(count, 1)]


class Credit:
    """The published order of operations, with the whole matrix; afterwards the rule it is put before."""

    def __init__(
        self, rule: Callable[[Laws], list[int]], alpha: float, beta: float, gamma: float, *, free: bool = False
    ) -> None:
        self.rule, self.alpha, self.beta, self.gamma, self.free = rule, alpha, beta, gamma, free

    def new_block(self, count: int) -> None:
        self.matrix: dict[int, np.ndarray] = {}
        self.count = count

    def fuse(self, laws: Laws) -> Laws:
        alpha, beta, gamma = self.alpha, self.beta, self.gamma
        if self.free:
            alpha = beta = 1 - len(laws) / self.count
            gamma = 1.0
        fused = {}
        for p, law in laws.items():
            credit = self.matrix.setdefault(p, np.zeros(len(law)))
            credit *= beta
            credit[int(law.argmax())] += law.max() ** gamma
            raised = law * (1 + credit) ** alpha
            fused[p] = raised / raised.sum()
        return fused


def decode(
    model: Any,
    canvas: list[int],
    start: int,
    rule: Any,
    *,
    block_length: int,
    absolute: bool = False,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cfg: float | None = None,
) -> tuple[list[int], list[int], int]:
    """Tokens, the forward that committed each position (-1 given) and the number of forwards.

    Candidates are argmaxes: with a temperature or a filter the rule only sees the distribution so shaped.
    """
    tokens, mask = list(canvas), model.facts.mask_id
    open_ = {p for p in range(start, len(tokens)) if tokens[p] == mask}
    given = [p not in open_ for p in range(len(tokens))]
    when = [-1 if known else -2 for known in given]
    origin, number, nfe = (0 if absolute else start), None, 0
    while open_:
        block = (min(open_) - origin) // block_length
        inside = sorted(p for p in open_ if (p - origin) // block_length == block)
        if block != number:
            number = block
            if hasattr(rule, "new_block"):
                rule.new_block(len(inside))
        logits = logits_of(model, tokens, given, cfg)
        shaped = temperature or top_k is not None or top_p is not None
        laws = {p: filtered(logits[p], temperature, top_k, top_p) if shaped else softmax(logits[p]) for p in inside}
        if isinstance(rule, Credit):
            laws = rule.fuse(laws)
            chosen = rule.rule(laws)
        else:
            chosen = rule(laws)
        for p in chosen:
            tokens[p], when[p] = int(laws[p].argmax()), nfe
            open_.remove(p)
        nfe += 1
    return tokens, when, nfe
