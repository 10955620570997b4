"""Rules that read attention, written from their papers: one row, one position at a time, plain Python, float64.

DAWN https://arxiv.org/abs/2602.06953, DAPD https://arxiv.org/abs/2603.12996, d2Cache https://arxiv.org/abs/2509.23094.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from tests.reference.naive_attention import Eager
from tests.reference.naive_masked import softmax


@dataclass
class View:
    """One step of one row: the probabilities of all positions, and the attention of every layer [L, L]."""

    open: list[int]  # of the block
    known: list[int]  # before the block's end
    p: dict[int, float]
    maps: list[np.ndarray]
    entered: bool


def decode(
    model: Any, canvas: list[int], start: int, rule: Callable[[View], list[int]], block_length: int
) -> tuple[list[int], list[int], int]:
    """Tokens, the forward that committed each position (-1 given) and the number of forwards; no cache."""
    tokens, mask, shift = list(canvas), model.decoding_config.mask_id, model.decoding_config.shift
    open_ = {p for p in range(start, len(tokens)) if tokens[p] == mask}
    when, nfe, last = [-2 if p in open_ else -1 for p in range(len(tokens))], 0, None
    while open_:
        block = (min(open_) - start) // block_length
        end = min(start + (block + 1) * block_length, len(tokens))
        logits, maps = Eager(model, len(tokens)).forward(tokens, range(len(tokens)))
        distributions = {p: _distribution(logits[max(p - shift, 0)].numpy(), mask) for p in range(len(tokens))}
        view = View(
            sorted(p for p in open_ if p < end),
            [p for p in range(end) if p not in open_],
            {p: float(each.max()) for p, each in distributions.items()},
            [each.numpy() for each in maps],
            block != last,
        )
        chosen = rule(view) or [max(view.open, key=lambda p: (view.p[p], -p))]
        for p in chosen:
            tokens[p], when[p] = int(distributions[p].argmax()), nfe
            open_.remove(p)
        nfe, last = nfe + 1, block
    return tokens, when, nfe


def _distribution(logits: np.ndarray, mask: int) -> np.ndarray:
    logits = logits.copy()
    logits[mask] = -np.inf
    return softmax(logits)


def independent(ranked: Iterable[int], conflict: Callable[[int, int], bool]) -> list[int]:
    taken: list[int] = []
    for p in ranked:
        if not any(conflict(p, other) for other in taken):
            taken.append(p)
    return taken


def dawn(
    *, low: float, induce: float, high: float, edge: float, sink: float, layers: int
) -> Callable[[View], list[int]]:
    def rule(view: View) -> list[int]:
        attention = np.mean(view.maps[-layers:], axis=0)
        sinks = {j for j in range(len(attention)) if attention[:, j].mean() > sink}

        def depends(i: int, j: int) -> bool:
            return i != j and j not in sinks and attention[i, j] >= edge

        anchors = [j for j in view.known if view.p[j] >= high]
        sure = {i for i in view.open if view.p[i] >= high}
        induced = {i for i in view.open if view.p[i] >= induce and any(depends(i, j) for j in anchors)}
        rest = [
            i
            for i in view.open
            if view.p[i] >= low and i not in sure | induced and not any(depends(i, j) for j in sure & induced)
        ]
        ranked = sorted(rest, key=lambda i: (-view.p[i], i))
        return sorted(sure | induced | set(independent(ranked, lambda i, j: depends(i, j) or depends(j, i))))

    return rule


class Dapd:
    """DAPD's rule, which uses the number of masks at the start of a block."""

    def __init__(self, *, first: float, last: float, switch: float, tau: float, layers: int) -> None:
        self.first, self.last, self.switch, self.tau, self.layers = first, last, switch, tau, layers

    def __call__(self, view: View) -> list[int]:
        if view.entered:
            self.masks = len(view.open)
        part = len(view.open) / self.masks
        if part < self.switch:
            return [i for i in view.open if view.p[i] > self.tau]
        attention = np.mean(view.maps[-self.layers :], axis=0)
        mutual = {(i, j): (attention[i, j] + attention[j, i]) / 2 for i in view.open for j in view.open if i != j}
        degree = {i: sum(mutual[i, j] for j in view.open if j != i) for i in view.open}
        ranked = sorted(view.open, key=lambda i: (-degree[i] * view.p[i], i))
        least = self.first + (self.last - self.first) * (1 - part)
        return independent(ranked, lambda i, j: mutual[i, j] > least)


def density(known: list[bool], sigma: float, i: int) -> float:
    """The share of known positions around position i of a row, weighted by a Gaussian up to where it is 0."""
    far = math.ceil(40 * sigma)
    total = near = 0.0
    for j in range(i - far, i + far + 1):
        weight = math.exp(-((i - j) ** 2) / (2 * sigma**2))
        total += weight
        near += weight * (j < 0 or known[min(j, len(known) - 1)])
    return near / total


@dataclass
class DualAdaptive:
    """d2Cache with a rule that selects which of the computed masks of the block are committed."""

    k: int
    rollout: float
    sigma: float
    fill: int

    def decode(
        self, model: Any, canvas: list[int], start: int, block_length: int
    ) -> tuple[list[int], list[int], list[list[int]]]:
        """Tokens, the forward that committed each position, and each forward's positions; most confident first."""
        tokens, mask, shift = list(canvas), model.decoding_config.mask_id, model.decoding_config.shift
        size = len(tokens)
        open_ = {p for p in range(start, size) if tokens[p] == mask}
        when, fed = [-2 if p in open_ else -1 for p in range(size)], list[list[int]]()
        eager, p_last = Eager(model, size), dict[int, float]()
        changed: set[int] = set()
        weight = np.zeros(size)
        while open_:
            block = (min(open_) - start) // block_length
            end = min(start + (block + 1) * block_length, size)
            queried, masks = set(range(size)), set(open_)
            if fed:
                masks = self.masks(open_, p_last, size, start, end, block_length)
                queried = self.queried({max(p - shift, 0) for p in masks} | changed, weight)
            fed.append(sorted(queried))
            logits, maps = eager.forward(tokens, fed[-1])
            distributions = {
                p: _distribution(logits[max(p - shift, 0)].numpy(), mask) for p in open_ if max(p - shift, 0) in queried
            }
            inside = [p for p in masks if p < end and p in distributions]
            for p, each in distributions.items():
                if p >= end or p in inside:
                    p_last[p] = float(each.max())
            weight = self.importance([each.numpy() for each in maps], fed[-1], size)
            best = max(inside, key=lambda p: (p_last[p], -p))
            tokens[best], when[best] = int(distributions[best].argmax()), len(fed) - 1
            open_.remove(best)
            changed = {best}
        return tokens, when, fed

    def masks(
        self, open_: set[int], p_last: dict[int, float], size: int, start: int, end: int, block_length: int
    ) -> set[int]:
        known = [p not in open_ for p in range(size)]
        inside = [p for p in open_ if p < end]
        reach = end
        while len([p for p in open_ if p < reach]) < self.k and reach < size:
            reach += block_length
        ranked = sorted(
            (p for p in open_ if p < reach),
            key=lambda p: (p not in inside, -p_last[p] * density(known, self.sigma, p), p),
        )
        return set(ranked[: self.k])

    def queried(self, first: set[int], weight: np.ndarray) -> set[int]:
        others = sorted((p for p in range(len(weight)) if p not in first), key=lambda p: (-weight[p], p))
        total, sum_, chosen = sum(weight[p] for p in others), 0.0, set[int]()
        for number, p in enumerate(others):
            sum_ += weight[p]
            if number and sum_ > self.rollout * total:
                break
            chosen.add(p)
        some = sorted(first | chosen)
        for left, right in pairwise(some):
            if right - left <= self.fill:
                chosen |= set(range(left, right))
        return first | chosen

    @staticmethod
    def importance(maps: list[np.ndarray], queried: list[int], size: int) -> np.ndarray:
        product = np.eye(size)
        for attention in maps:
            layer = np.eye(size)
            layer[queried] = attention
            layer += np.eye(size)
            product = (layer / layer.sum(1, keepdims=True)) @ product
        return product.sum(0)
