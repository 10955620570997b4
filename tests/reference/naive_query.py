"""Decoding without some of the masks, from the papers: masks are deleted, and a full forward computes the rest.

One row, no cache, plain Python. `rule` names the masks after a block that stay, when the block begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers.rng import Keyed

Rule = Callable[[int, int, int], set[int]]  # the block's begin and end, the row's end -> positions that stay


def suffix(window: int, tail: int) -> Rule:
    """https://arxiv.org/abs/2601.17917"""

    def rule(begin: int, end: int, total: int) -> set[int]:
        behind = list(range(end, total))
        return set(behind[:window]) | (set(behind[-tail:]) if tail else set())

    return rule


def dpad(k: float, scale: float, window: int, seed: int) -> Rule:
    """https://arxiv.org/abs/2508.14148"""

    def rule(begin: int, end: int, total: int) -> set[int]:
        source = Keyed((seed,))
        stays = set()
        for position in range(end, min(end + window, total)):
            x = (position - end) * k / window
            density = math.exp(-x * x / 2) / math.sqrt(2 * math.pi)
            u = source.uniform(np.array([0]), np.array([begin]), torch.tensor([[position]]), "suffix")
            if float(u) < scale * density:
                stays.add(position)
        return stays

    return rule


def predict(model: LanguageModel, tokens: list[int], positions: list[int]) -> dict[int, tuple[int, float]]:
    """The predicted token and its probability at each of `positions`, from a forward of these positions only."""
    order = torch.tensor([positions])
    slots = torch.arange(len(positions))[None]
    own = torch.tensor([[tokens[p] for p in positions]])
    lengths = torch.tensor([len(positions)])
    plan = Plan(own, order, slots, Visible.bidirectional(), lengths, slots)
    logits = model.forward(plan, None).logits()[0].double()
    logits[:, model.decoding_config.mask_id] = -torch.inf
    best = logits.softmax(-1).max(-1)
    row = dict(zip(positions, zip(best.indices.tolist(), best.values.tolist(), strict=True), strict=True))
    shift = model.decoding_config.shift
    return {p: row[max(p - shift, 0)] for p in positions if max(p - shift, 0) in row}


def decode(
    model: LanguageModel, tokens: list[int], prompt: int, size: int, tau: float, rule: Rule
) -> tuple[list[int], list[int], list[list[int]]]:
    """Tokens, the step that committed each (-1 for given ones), and the positions of every forward; by threshold."""
    mask, total = model.decoding_config.mask_id, len(tokens)
    tokens, when, fed = list(tokens), [-2 if token == mask else -1 for token in tokens], []
    for begin in range(prompt, total, size):
        end = min(begin + size, total)
        stays = rule(begin, end, total)
        while any(tokens[p] == mask for p in range(begin, end)):
            positions = [p for p in range(total) if p < end or tokens[p] != mask or p in stays]
            row = predict(model, tokens, positions)
            masks = [p for p in range(begin, end) if tokens[p] == mask]
            surest = max(masks, key=lambda p: (row[p][1], -p))
            for p in masks:
                if p == surest or row[p][1] >= tau:
                    tokens[p], when[p] = row[p][0], len(fed)
            fed.append(positions)
    return tokens, when, fed
