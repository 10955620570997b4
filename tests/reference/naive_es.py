"""ES-dLLM (https://arxiv.org/abs/2603.10088) from the paper: one row, float64, K/V in a table."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pardec.models.model import LanguageModel

from .naive_spa import Row


class SkippingRow(Row):
    """One text, the states after the layers that skip, and the last states of every position."""

    def __init__(self, model: LanguageModel, length: int, skips: dict[int, float], alpha: float) -> None:
        super().__init__(model, length, [1.0] * model.layers, 1)
        self.skips, self.alpha = skips, alpha
        self.after = {layer: torch.zeros(length, self.width, dtype=torch.float64) for layer in skips}
        self.final = torch.zeros(length, self.width, dtype=torch.float64)

    def forward(self, tokens: list[int], positions: list[int], rank: dict[int, float] | None, least: int) -> Tensor:
        """Logits [Q, V] at `positions`; all go through all layers where `rank` is None."""
        going = list(positions)
        h = self.decoder.embed.weight.double()[torch.tensor(tokens)[torch.tensor(going)]]
        self.computed = []
        for index, layer in enumerate(self.decoder.layers):
            at = torch.tensor(going)
            self.computed.append(going)
            h = h + self.change(layer, index, h, self.norm(h, layer.attn_norm), at)
            if index in self.skips and index < len(self.decoder.layers) - 1:
                if rank is not None:
                    before = self.after[index][at]
                    change = (h - before).abs().mean(1) / (before.norm(dim=1) / math.sqrt(self.width) + 1e-6)
                    change = change / max(1.0, float(change.max()))
                    count = max(math.floor(self.skips[index] * len(positions) + 1e-9), min(least, len(positions)))
                    score = [rank[p] + (1 - self.alpha) * float(change[i]) for i, p in enumerate(going)]
                    chosen = sorted(sorted(range(len(going)), key=lambda i: -score[i])[:count])
                    going, h = [going[i] for i in chosen], h[chosen]
                self.after[index][torch.tensor(going)] = h
        self.final[torch.tensor(going)] = h
        return self.norm(self.final[torch.tensor(positions)], self.decoder.norm.weight) @ (
            self.decoder.head.weight.double().T
        )


def decode(
    model: LanguageModel,
    tokens: list[int],
    prompt: int,
    *,
    size: int,
    tau: float,
    every: tuple[int, int],
    skips: dict[int, float],
    alpha: float,
) -> tuple[list[int], list[int], list[list[list[int]]]]:
    """Tokens, the step that committed each (-1: given), and the positions that each layer computed at each step."""
    mask, shift, total = model.decoding_config.mask_id, model.decoding_config.shift, len(tokens)
    tokens, when, computed = list(tokens), [-2 if token == mask else -1 for token in tokens], []
    row, last, before = SkippingRow(model, total, skips, alpha), dict.fromkeys(range(total), 0.0), list(tokens)
    for begin in range(prompt, total, size):
        end, entering = min(begin + size, total), True
        while masks := [p for p in range(begin, end) if tokens[p] == mask]:
            step, (refresh, again) = len(computed), every
            full = entering or (refresh > 0 and step % refresh == 0)
            positions = list(range(total))
            rank = None
            if not full:
                positions = list(range(masks[0] - shift if masks[0] == begin else begin, end))
                if not (again > 0 and step % again == 0):
                    sure = {p: last[p + shift] if p + shift in masks else 0.0 for p in positions}
                    rank = {p: alpha * sure[p] for p in positions}
                    rank[masks[0] - shift] += 5
                    for p in positions:
                        if before[p] != tokens[p] and p != masks[0] - shift:
                            rank[p] += 3
                    for p in sorted((p - shift for p in masks), key=lambda p: -sure[p])[:2]:
                        rank[p] += 2
            least = 2 + sum(before[p] != tokens[p] for p in range(begin, end))
            before, entering = list(tokens), False
            logits = row.forward(tokens, positions, rank, least)
            logits[:, mask] = -torch.inf
            best = logits.softmax(-1).max(-1)
            for p in masks:
                last[p] = float(best.values[p - shift - positions[0]])
            surest = max(masks, key=lambda p: (last[p], -p))
            for p in masks:
                if p == surest or last[p] >= tau:
                    tokens[p], when[p] = int(best.indices[p - shift - positions[0]]), step
            computed.append(row.computed)
    return tokens, when, computed
