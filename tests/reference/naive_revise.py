"""Revising methods written from their papers: one row, plain loops, no cache, every step from scratch.

WINO (https://arxiv.org/abs/2507.18578), ReMDM's late remasking (https://arxiv.org/abs/2503.00307), token editing
(https://arxiv.org/abs/2602.08676), all with a confidence threshold; Saber (https://arxiv.org/abs/2510.18165),
DMax (https://arxiv.org/abs/2604.08302).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from pardec.models.plan import Plan, Visible
from tests.reference.naive_masked import softmax


def distributions(model: Any, tokens: list[int], mask: int) -> np.ndarray:
    """Probabilities [L, V] of every position, without the mask id."""
    plan = Plan.full(torch.tensor([tokens]), model.visible())
    return _shifted(model.forward(plan).logits()[0], model.decoding_config.shift, mask)


def leave_one_out(model: Any, tokens: list[int], block: range, mask: int) -> dict[int, np.ndarray]:
    """The distribution at each block position, predicted from a mask that attends to everything but that position."""
    shift, length = model.decoding_config.shift, len(tokens)
    twins = list(block)
    places = list(range(length)) + [max(p - shift, 0) for p in twins]
    seen = np.zeros((len(places), len(places)), dtype=bool)
    seen[:length, :length] = True
    for row, p in enumerate(twins):
        seen[length + row, :] = True
        seen[length + row, p] = False
    fed = torch.tensor([tokens + [mask] * len(twins)])
    order, where = torch.arange(len(places))[None], torch.tensor([places])
    plan = Plan(fed, where, order, Visible.mask(torch.from_numpy(seen)[None]), torch.tensor([len(places)]), order)
    logits = model.forward(plan).logits()[0, length:].clone()
    logits[:, mask] = -torch.inf
    return {p: softmax(logits[row].double().numpy()) for row, p in enumerate(twins)}


def _shifted(logits: torch.Tensor, shift: int, mask: int) -> np.ndarray:
    rows = logits.double().clone()
    rows[:, mask] = -torch.inf
    return np.stack([softmax(rows[max(p - shift, 0)].numpy()) for p in range(len(rows))])


def wino(model: Any, canvas: list[int], prompt: int, size: int, mask: int, draft: float, verify: float) -> Any:
    tokens, when, nfe = list(canvas), {}, 0
    for lo in range(prompt, len(tokens), size):
        block, before = range(lo, min(lo + size, len(tokens))), 30
        while mask in tokens[block.start : block.stop]:
            distribution, check = distributions(model, tokens, mask), leave_one_out(model, tokens, block, mask)
            opened = [p for p in block if tokens[p] == mask]
            ranked = sorted(opened, key=lambda p: (-distribution[p].max(), p))
            most = min(max(int(0.7 * len(opened)), 5), 20)
            drafted = [p for p in ranked if distribution[p].max() >= draft][:most] or ranked[:1]
            doubted = [p for p in block if p in when and check[p][tokens[p]] < verify] if len(drafted) > 1 else []
            doubted.sort(key=lambda p: (check[p][tokens[p]], p))
            if len(doubted) >= before:
                doubted = doubted[: before - 1]
            for p in drafted:
                tokens[p], when[p] = int(distribution[p].argmax()), nfe
            for p in doubted:
                tokens[p] = mask
                del when[p]
            before, nfe = len(drafted), nfe + 1
    return tokens, when, nfe


def remdm(
    model: Any, canvas: list[int], prompt: int, size: int, mask: int, tau: float, at: float, rounds: int, count: int
) -> Any:
    tokens, when, score, nfe = list(canvas), {}, {}, 0
    for lo in range(prompt, len(tokens), size):
        block = range(lo, min(lo + size, len(tokens)))
        to_fill, left = tokens[block.start : block.stop].count(mask), rounds
        while mask in tokens[block.start : block.stop]:
            distribution = distributions(model, tokens, mask)
            ranked = sorted((p for p in block if tokens[p] == mask), key=lambda p: (-distribution[p].max(), p))
            for p in [p for p in ranked if distribution[p].max() >= tau] or ranked[:1]:
                tokens[p], when[p], score[p] = int(distribution[p].argmax()), nfe, distribution[p].max()
            ours = [p for p in block if p in when]
            if left and len(ours) >= at * to_fill:
                left -= 1
                for p in sorted(ours, key=lambda p: (score[p], p))[:count]:
                    tokens[p] = mask
                    del when[p]
            nfe += 1
    return tokens, when, nfe


def edit(model: Any, canvas: list[int], prompt: int, size: int, mask: int, tau: float, sure: float, post: int) -> Any:
    tokens, when, nfe = list(canvas), {}, 0

    def changes(distribution: np.ndarray, block: range) -> dict[int, int]:
        found = {p: int(distribution[p].argmax()) for p in block if p in when and distribution[p].max() > sure}
        return {p: token for p, token in found.items() if token != tokens[p]}

    for lo in range(prompt, len(tokens), size):
        block, looks = range(lo, min(lo + size, len(tokens))), 0
        filling = mask in tokens[block.start : block.stop]
        while filling:
            distribution = distributions(model, tokens, mask)
            edits = changes(distribution, block)
            ranked = sorted((p for p in block if tokens[p] == mask), key=lambda p: (-distribution[p].max(), p))
            for p in [p for p in ranked if distribution[p].max() >= tau] or ranked[:1]:
                tokens[p], when[p] = int(distribution[p].argmax()), nfe
            for p, token in edits.items():
                tokens[p], when[p] = token, nfe
            nfe += 1
            filling = mask in tokens[block.start : block.stop]
        while looks < post:
            edits = changes(distributions(model, tokens, mask), block)
            for p, token in edits.items():
                tokens[p], when[p] = token, nfe
            nfe, looks = nfe + 1, looks + 1
            if not edits:
                break
    return tokens, when, nfe


def saber(
    model: Any, canvas: list[int], prompt: int, size: int, mask: int, least: int, reference: bool, back: bool = True
) -> Any:
    """Saber's rule; without `back` nothing is masked again: `above_mean` alone."""
    tokens, when, nfe = list(canvas), {}, 0
    score: dict[int, float] = {}  # of every position that was ever committed, by the last time
    for lo in range(prompt, len(tokens), size):
        block = range(lo, min(lo + size, len(tokens)))
        before = dict.fromkeys(block, 0.0)
        while mask in tokens[block.start : block.stop]:
            distribution = distributions(model, tokens, mask)
            opened = [p for p in block if tokens[p] == mask]
            ranked = sorted(opened, key=lambda p: (-distribution[p].max(), p))
            mean = sum(score.values()) / len(score) if score else np.inf
            chosen = [p for p in opened if distribution[p].max() > mean]
            chosen = chosen if len(chosen) >= least else ranked[:least]
            now = {p: distribution[p].max() for p in block}
            if not reference:
                now |= {p: distribution[p][tokens[p]] for p in block if p in when}
            for p in chosen:
                tokens[p], when[p], score[p] = int(distribution[p].argmax()), nfe, distribution[p].max()
            if back and mask in tokens[block.start : block.stop]:
                count = min(max(least // 2, -(-len(chosen) // 8)), len(chosen) - 1)
                ours = sorted((p for p in block if p in when), key=lambda p: (now[p] - before[p], p))
                for p in ours[:count]:
                    tokens[p] = mask
                    del when[p]
            before, nfe = now, nfe + 1
    return tokens, when, nfe


def predicted(model: Any, tokens: list[int], soft: dict[int, torch.Tensor], mask: int) -> np.ndarray:
    """Probabilities [L, V]; the input rows [E] in `soft` replace their positions' embeddings."""
    first = model.decoder.embedding[0]  # what is fed where `soft` has the input, and taken away again
    ids = torch.tensor([[0 if p in soft else token for p, token in enumerate(tokens)]])
    rows = torch.stack([soft[p].float() - first if p in soft else 0 * first for p in range(len(tokens))])
    plan = replace(Plan.full(ids, model.visible()), soft=rows[None])
    return _shifted(model.forward(plan).logits()[0], model.decoding_config.shift, mask)


def mixture(token: torch.Tensor, mask: torch.Tensor, share: float) -> torch.Tensor:
    """DMax's input: both embeddings mixed by the token's probability, with the norm mixed in the same way."""
    both = share * token + (1 - share) * mask
    return both / both.norm() * (share * token.norm() + (1 - share) * mask.norm())


def dmax(model: Any, canvas: list[int], prompt: int, size: int, mask: int, tau: float, sure: float, post: int) -> Any:
    tokens, when, nfe = list(canvas), {}, 0
    table = model.decoder.embedding.double()

    for lo in range(prompt, len(tokens), size):
        block, soft, extra = range(lo, min(lo + size, len(tokens))), dict[int, torch.Tensor](), 0
        while True:
            distribution = predicted(model, tokens, soft, mask)
            best = {p: (int(distribution[p].argmax()), float(distribution[p].max())) for p in block}
            opened = [p for p in block if tokens[p] == mask]
            run: list[int] = []
            for p in opened:
                if best[p][1] < tau:
                    break
                run.append(p)
            changed = [p for p in block if p in when and tokens[p] != best[p][0]]
            for p in [*(run or opened[:1]), *changed]:
                tokens[p], when[p] = best[p][0], nfe
            nfe += 1
            known = [p for p in block if p in when]
            soft = {p: mixture(table[tokens[p]], table[mask], best[p][1]) for p in known}
            if mask in tokens[block.start : block.stop]:
                continue
            extra += not opened
            if all(best[p][1] >= sure for p in known) or (not opened and not changed) or extra == post:
                break
    return tokens, when, nfe
