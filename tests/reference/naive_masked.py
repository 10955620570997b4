"""Masked decoding written from the papers' formulas: one row, one position at a time, no cache, float64.

Sampling loop, fixed schedule, random order: LLaDA (https://arxiv.org/abs/2502.09992). Threshold and factor: Fast-dLLM
(https://arxiv.org/abs/2505.22618). Margin: https://arxiv.org/abs/2502.06768. Entropy: Dream
(https://arxiv.org/abs/2508.15487) and dParallel (https://arxiv.org/abs/2509.26488).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from pardec.models.plan import Plan

Uniform = Callable[[int, int, str, int], Any]  # step, position, purpose, width -> float, or [width] where width > 0


@dataclass
class BlockView:
    """The input of a select: scores and entropies of the open positions, and the schedule's progress."""

    score: dict[int, float]
    entropy: dict[int, float]
    block: int  # number of the active block, counted from the first that holds generated positions
    blocks: int
    at_entry: int  # open positions when the block was entered
    step: int  # step within the block
    uniform: Uniform

    def ranked(self) -> list[int]:
        return sorted(self.score, key=lambda p: (-self.score[p], p))


def sequential(view: BlockView) -> list[int]:
    return view.ranked()[:1]


def threshold(tau: float) -> Callable[[BlockView], list[int]]:
    return lambda view: [p for p in view.ranked() if view.score[p] >= tau] or view.ranked()[:1]


def entropy_threshold(tau: float) -> Callable[[BlockView], list[int]]:
    return lambda view: [p for p in view.ranked() if view.entropy[p] <= tau] or view.ranked()[:1]


def factor(f: float, reference: bool = False) -> Callable[[BlockView], list[int]]:
    def select(view: BlockView) -> list[int]:
        ranked = view.ranked()
        count = 1
        while count < len(ranked) and view.score[ranked[count]] >= 1 - f / (count + 2):
            count += 1
        if reference and count == len(ranked) - 1:  # the loop broke at its last index and counts it
            count += 1
        return ranked[:count]

    return select


def fixed(steps: int | None = None, order: str = "confidence") -> Callable[[BlockView], list[int]]:
    def select(view: BlockView) -> list[int]:
        share = view.at_entry
        if steps is not None:
            share = max(1, len(range(view.block, steps, view.blocks)))  # dealt out in turn, block by block
        quota = len(range(view.step, view.at_entry, share))
        ranked = view.ranked()
        if order == "random":
            ranked = sorted(view.score, key=lambda p: -view.uniform(0, p, "order", 0))
        return ranked[: max(1, quota)]

    return select


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def filtered(logits: np.ndarray, temperature: float, top_k: int | None, top_p: float | None) -> np.ndarray:
    """Temperature, then the smallest set of mass >= top_p, then the top_k largest."""
    distribution = softmax(logits / (temperature or 1.0))
    if top_k is None and top_p is None:
        return distribution
    order = sorted(range(len(distribution)), key=lambda v: -distribution[v])
    if top_p is not None:
        kept = [v for at, v in enumerate(order) if sum(distribution[u] for u in order[:at]) < top_p]
        distribution = np.where(np.isin(np.arange(len(distribution)), kept), distribution, 0) / distribution[kept].sum()
    if top_k is not None:
        distribution = np.where(np.isin(np.arange(len(distribution)), order[:top_k]), distribution, 0)
    return distribution / distribution.sum()


def entropy_of(distribution: np.ndarray) -> float:
    return float(-sum(p * np.log(p) for p in distribution if p > 0))


def score_of(propose: str, distribution: np.ndarray, token: int, number: float) -> float:
    if propose == "random":
        return number
    if propose == "entropy":
        return -entropy_of(distribution)
    if propose == "margin":
        return float(np.sort(distribution)[-1] - np.sort(distribution)[-2])
    return float(distribution[token])


def logits_of(model: Any, tokens: list[int], given: list[bool], cfg: float | None) -> np.ndarray:
    """Aligned logits [L, V] float64: row p predicts position p, and the mask id is excluded."""

    def forward(row: list[int]) -> np.ndarray:
        raw = model.forward(Plan.full(torch.tensor([row]), model.visible())).logits()[0].double().numpy()
        return raw[[max(p - model.decoding_config.shift, 0) for p in range(len(row))]]

    out = forward(tokens)
    if cfg is not None:
        blind = forward([model.decoding_config.mask_id if known else t for t, known in zip(tokens, given, strict=True)])
        out = blind + cfg * (out - blind)
    out[:, model.decoding_config.mask_id] = -np.inf
    return out


def decode(
    model: Any,
    canvas: list[int],
    start: int,
    select: Callable[[BlockView], list[int]],
    uniform: Uniform,
    *,
    propose: str = "confidence",
    of: str = "raw",
    block_length: int,
    absolute: bool = False,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    cfg: float | None = None,
    eos: tuple[int, ...] | None = None,
) -> tuple[list[int], list[int], int]:
    """Tokens, the forward that committed each position (-1 given, -2 never) and the number of forwards."""
    tokens, mask, decoding_config = list(canvas), model.decoding_config.mask_id, model.decoding_config
    open_ = {p for p in range(start, len(tokens)) if tokens[p] == mask}
    given = [p not in open_ for p in range(len(tokens))]
    when = [-1 if known else -2 for known in given]
    origin = 0 if absolute else start
    first, last = (start - origin) // block_length, (len(tokens) - 1 - origin) // block_length
    nfe, entered, at_entry, number = 0, 0, 0, -1
    while open_:
        if (min(open_) - origin) // block_length != number:
            number = (min(open_) - origin) // block_length
            lo = origin + number * block_length
            entered, at_entry = nfe, sum(lo <= p < lo + block_length for p in open_)
        inside = sorted(p for p in open_ if p < lo + block_length)
        logits = logits_of(model, tokens, given, cfg)
        view = BlockView({}, {}, number - first, last - first + 1, at_entry, nfe - entered, uniform)
        chosen = {}
        for p in inside:
            distribution, shaped = softmax(logits[p]), filtered(logits[p], temperature, top_k, top_p)
            chosen[p] = int(logits[p].argmax())
            if temperature:
                noise = -np.log(-np.log(np.asarray(uniform(nfe, p, "token", len(distribution)))))
                chosen[p] = int(np.where(shaped > 0, np.log(np.maximum(shaped, 1e-300)) + noise, -np.inf).argmax())
            measured = distribution if of == "raw" else shaped
            view.entropy[p] = entropy_of(distribution)
            view.score[p] = score_of(propose, measured, chosen[p], uniform(0, p, "order", 0))
        for p in select(view):
            tokens[p], when[p] = chosen[p], nfe
            open_.remove(p)
        nfe += 1
        ends = [p for p in range(start, len(tokens)) if eos and when[p] >= 0 and tokens[p] in eos]
        if ends and min(ends) < min(open_, default=len(tokens)):
            for p in open_:
                tokens[p] = decoding_config.pad_id
            break
    return tokens, when, nfe
