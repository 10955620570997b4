"""SPA (https://arxiv.org/abs/2602.02544) from the paper: one row, float64, a loop over layers, K/V in a table.

A step computes everything, the answer, or the tokens of the answer that have changed most, layer by layer.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from pardec.models.model import LanguageModel


def shares(layers: int, ratio: float, peak: float, first: float, last: float) -> list[float]:
    """The shares of layers, by two halves of a Gaussian: `first` of the ratio at 0, all at the peak, `last` at 1."""
    made = []
    for layer in range(layers):
        x = layer / layers
        if x < peak:
            sigma = math.sqrt(-(peak**2) / (2 * math.log(first)))
            made.append(max(ratio * math.exp(-((x - peak) ** 2) / (2 * sigma**2)), 1 / 32))
        else:
            sigma = math.sqrt(-((1 - peak) ** 2) / (2 * math.log(last)))
            made.append(ratio * math.exp(-((x - peak) ** 2) / (2 * sigma**2)))
    return made


class Row:
    """One text, and the values that each layer stores."""

    def __init__(self, model: LanguageModel, length: int, part: list[float], rank: int) -> None:
        self.decoder, self.part = model.decoder, part
        config = model.decoder.config
        self.heads, self.kv, self.dim = config.heads, config.kv_heads, config.head_dim
        self.eps, self.width = config.norm_eps, config.width
        self.frequencies = model.decoder.rope.frequencies.double()
        layers = len(part)
        self.k = torch.zeros(layers, length, self.kv, self.dim, dtype=torch.float64)
        self.v = torch.zeros_like(self.k)
        self.added = torch.zeros(layers, length, self.width, dtype=torch.float64)
        self.before: list[dict[int, Tensor]] = [{} for _ in part]
        self.computed: list[list[int]] = []  # of the last step, layer by layer
        self.projections = []
        for layer in model.decoder.layers:
            values = layer.qkv_weight.double()[-self.kv * self.dim :]
            _, size, vectors = torch.linalg.svd(values, full_matrices=False)
            self.projections.append(size[:rank, None] * vectors[:rank])

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + self.eps).sqrt() * weight.double()

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        angle = (positions[:, None] * self.frequencies)[:, None]
        one, two = x.chunk(2, -1)
        return torch.cat((one * angle.cos() - two * angle.sin(), two * angle.cos() + one * angle.sin()), -1)

    def step(self, tokens: list[int], positions: list[int], similar: bool) -> Tensor:
        """Logits [Q, V] at `positions`."""
        at = torch.tensor(positions)
        h = self.decoder.embed.weight.double()[torch.tensor(tokens)[at]]
        self.computed = []
        for index, layer in enumerate(self.decoder.layers):
            n = self.norm(h, layer.attn_norm)
            chosen = list(range(len(positions)))
            if index > 0:
                projected = n @ self.projections[index].T
                if similar:
                    cosine = [
                        round(float(torch.cosine_similarity(projected[i], self.before[index][p], dim=0)) * 2**16)
                        for i, p in enumerate(positions)
                    ]
                    count = max(1, math.floor(self.part[index] * len(positions) + 1e-9))
                    chosen = sorted(sorted(chosen, key=lambda i: cosine[i])[:count])
                self.before[index].update(zip(positions, projected, strict=True))
            self.computed.append([positions[i] for i in chosen])
            here = at[chosen]
            change = self.change(layer, index, h[chosen], n[chosen], here)
            self.added[index, here] = change
            h = h + self.added[index, at]
        return self.norm(h, self.decoder.norm.weight) @ self.decoder.head.weight.double().T

    def change(self, layer: torch.nn.Module, index: int, h: Tensor, n: Tensor, at: Tensor) -> Tensor:
        """The output that a layer adds to states h [M, E] at positions `at`, whose keys and values it recomputes."""
        bias = 0 if layer.qkv_bias is None else layer.qkv_bias.double()
        qkv = (n @ layer.qkv_weight.double().T + bias).view(len(at), -1, self.dim)
        q, k, v = qkv.split([self.heads, self.kv, self.kv], 1)
        q, self.k[index, at], self.v[index, at] = self.rotate(q, at), self.rotate(k, at), v
        group = self.heads // self.kv
        keys, values = (x[index].repeat_interleave(group, 1) for x in (self.k, self.v))
        weights = (torch.einsum("qhd,shd->hqs", q, keys) / math.sqrt(self.dim)).softmax(-1)
        out = torch.einsum("hqs,shd->qhd", weights, values).flatten(1) @ layer.out_weight.double().T
        if layer.out_bias is not None:
            out = out + layer.out_bias.double()
        inner = self.norm(h + out, layer.mlp_norm) @ layer.gate_up_weight.double().T
        gate, up = inner.chunk(2, -1)
        return out + (torch.nn.functional.silu(gate) * up) @ layer.down_weight.double().T


def decode(
    model: LanguageModel,
    tokens: list[int],
    prompt: int,
    *,
    size: int,
    tau: float,
    every: tuple[int, int],
    part: list[float],
    rank: int,
) -> tuple[list[int], list[int], list[list[list[int]]]]:
    """Tokens, the step that committed each (-1: given), and the positions that each layer computed at each step."""
    mask, shift, total = model.decoding_config.mask_id, model.decoding_config.shift, len(tokens)
    tokens, when, computed = list(tokens), [-2 if token == mask else -1 for token in tokens], []
    row = Row(model, total, part, rank)
    for begin in range(prompt, total, size):
        while masks := [p for p in range(begin, min(begin + size, total)) if tokens[p] == mask]:
            step, (refresh, response) = len(computed), every
            full = step == 0 or (refresh > 0 and step % refresh == 0)
            positions = list(range(0 if full else prompt - shift, total))
            logits = row.step(tokens, positions, not full and not (response > 0 and step % response == 0))
            logits[:, mask] = -torch.inf
            best = logits.softmax(-1).max(-1)
            sure = {p: float(best.values[p - shift - positions[0]]) for p in masks}
            token = {p: int(best.indices[p - shift - positions[0]]) for p in masks}
            surest = max(masks, key=lambda p: (sure[p], -p))
            for p in masks:
                if p == surest or sure[p] >= tau:
                    tokens[p], when[p] = token[p], step
            computed.append(row.computed)
    return tokens, when, computed
