"""Children of one node: how they are drawn, and the law of each given the earlier ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...rng import gumbel, wide
from ..contracts import DecodeContext, Uniforms


@dataclass(frozen=True, eq=False)
class Siblings:
    """W children of each of K nodes, in the order drawn."""

    tokens: Tensor  # [B, K, W] int64
    share: Tensor  # [B, K, W] float32: the probability of each under its law given the earlier ones
    real: Tensor  # [B, K, W] bool: the law may have fewer tokens than were asked for
    distribution: Tensor  # [B, K, V] float32: of the first child


def siblings(logits: Tensor, count: int, context: DecodeContext, uniforms: Uniforms, keys: Tensor) -> Siblings:
    """`count` children behind each node: at temperature 0 the likeliest tokens, else draws.

    Draws are without replacement (Gumbel noise and a top-k in descending order draws one after the other from what is
    left), or independent of each other where the acceptance asks for that.

    Args:
        logits: [B, K, V] processed.
        keys: [B, K] int64, a number for each node that no other of the round has.
    """
    distribution = logits.softmax(-1)
    vocab = distribution.shape[-1]
    sampled = context.request.temperature > 0
    if sampled and context.siblings == "with":
        mass = wide(distribution).cumsum(-1)
        where = uniforms.noise(keys, "siblings", count) * mass[..., -1:]
        last = (distribution > 0).long().cumsum(-1).argmax(-1, keepdim=True)  # catches what rounding leaves over
        tokens = torch.minimum(torch.searchsorted(mass, where, right=True), last)
        share = distribution.gather(-1, tokens)
        return Siblings(tokens, share, share > 0, distribution)
    rank = wide(logits.log_softmax(-1))
    if sampled:
        rank = rank + gumbel(uniforms.noise(keys, "siblings", vocab))
    some = min(count, vocab)
    tokens = rank.topk(some).indices
    uniform = distribution.gather(-1, tokens)
    left = 1 - (uniform.cumsum(-1) - uniform)
    share = (uniform / left.clamp(min=torch.finfo(distribution.dtype).tiny)).clamp(max=1)
    missing = (0, count - some)
    return Siblings(pad(tokens, missing), pad(share, missing), pad(uniform > 0, missing), distribution)


def given_distributions(tokens: Tensor, parent: Tensor, distribution: Tensor, *, replaced: bool) -> Tensor:
    """q [B, T, V]: the law of each node given its earlier siblings.

    Args:
        tokens: [B, T].
        parent: [B, T], siblings in the order drawn.
        law: [B, T, V] of each node were it the first child.
        replaced: siblings were drawn with replacement.
    """
    if replaced:
        return distribution
    width = tokens.shape[1]
    order = torch.arange(width, device=tokens.device)
    earlier = (parent[:, :, None] == parent[:, None, :]) & (order < order[:, None])  # [B, node, earlier node]
    index = tokens[:, None].expand(-1, width, -1)
    left = distribution.scatter_reduce(2, index, (~earlier).to(distribution.dtype), "prod")
    return left / left.sum(-1, keepdim=True).clamp(min=torch.finfo(distribution.dtype).tiny)
