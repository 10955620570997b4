"""The children of a node: sampling them, and the distribution of each given the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...rng import gumbel, wide
from ..contracts import DecodeContext, Uniforms


@dataclass(frozen=True, eq=False)
class Siblings:
    """W children of each of K nodes, in the order sampled."""

    tokens: Tensor  # [B, K, W] int64
    share: Tensor  # [B, K, W] float32: the probability of each given the earlier ones
    real: Tensor  # [B, K, W] bool: the distribution may have fewer tokens than W
    distribution: Tensor  # [B, K, V] float32: of the first child


def siblings(logits: Tensor, count: int, context: DecodeContext, uniforms: Uniforms, keys: Tensor) -> Siblings:
    """`count` children after each node: at temperature 0 the most likely tokens, else samples.

    Sampling is without replacement (a descending top-k of Gumbel-perturbed log-probabilities), or independent if the
    acceptance requires that.

    Args:
        logits: [B, K, V] processed.
        keys: [B, K] int64, unique for each node of the round.
    """
    distribution = logits.softmax(-1)
    vocab = distribution.shape[-1]
    sampling = context.request.temperature > 0
    if sampling and context.siblings == "with":
        mass = wide(distribution).cumsum(-1)
        target = uniforms.noise(keys, "siblings", count) * mass[..., -1:]
        last = (distribution > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # where rounding exceeds the total
        tokens = torch.minimum(torch.searchsorted(mass, target, right=True), last)
        share = distribution.gather(-1, tokens)
        return Siblings(tokens, share, share > 0, distribution)
    rank = wide(logits.log_softmax(-1))
    if sampling:
        rank = rank + gumbel(uniforms.noise(keys, "siblings", vocab))
    some = min(count, vocab)
    tokens = rank.topk(some).indices
    probs = distribution.gather(-1, tokens)
    remaining = 1 - (probs.cumsum(-1) - probs)
    share = (probs / remaining.clamp(min=torch.finfo(distribution.dtype).tiny)).clamp(max=1)
    missing = (0, count - some)
    return Siblings(pad(tokens, missing), pad(share, missing), pad(probs > 0, missing), distribution)


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` most likely tokens after each node [B, K, W], the likeliest first, and whether each is possible.

    Args:
        logits: [B, K, V] processed; where all nodes of a row have the same, as a view without copies, it is read once.
    """
    nodes = logits.shape[1]
    some = min(count, logits.shape[-1])
    best = (logits[:, :1] if nodes and not logits.stride(1) else logits).topk(some)
    missing = (0, count - some)
    wide = (-1, nodes, -1)
    return pad(best.indices, missing).expand(wide), pad(best.values > -torch.inf, missing).expand(wide)


def conditional_distributions(tokens: Tensor, parent: Tensor, distribution: Tensor, *, replacement: bool) -> Tensor:
    """q [B, T, V]: each node's distribution given its earlier siblings.

    Args:
        tokens: [B, T].
        parent: [B, T], siblings in the order sampled.
        distribution: [B, T, V] of each node if it were the first child.
        replacement: siblings were sampled with replacement.
    """
    if replacement:
        return distribution
    width = tokens.shape[1]
    order = torch.arange(width, device=tokens.device)
    earlier = (parent[:, :, None] == parent[:, None, :]) & (order < order[:, None])  # [B, node, earlier node]
    index = tokens[:, None].expand(-1, width, -1)
    remaining = distribution.scatter_reduce(2, index, (~earlier).to(distribution.dtype), "prod")
    return remaining / remaining.sum(-1, keepdim=True).clamp(min=torch.finfo(distribution.dtype).tiny)
