"""Attention rollout: how much every position is attended to through all layers.

Quantifying Attention Flow in Transformers, https://arxiv.org/abs/2005.00928

    column sums of  A_N ... A_1,  A_l = (a_l + 1) / rows' sums,  1 in the rows that a forward did not query
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..masked.attention_maps import AttentionMaps


def attention_rollout(maps: AttentionMaps) -> Tensor:
    """[B, L + 1] the sums; `maps` are of all layers.

    From the last layer down, a vector at a time: no two maps are multiplied.
    """
    queried = maps.positions
    first = maps.layers[0]
    weight = torch.ones(first.shape[0], first.shape[2], device=first.device)
    others = weight.scatter(1, queried, 0)
    for layer in range(maps.count - 1, -1, -1):
        attention = maps.layers[layer]
        own = weight.gather(1, queried) * maps.known / (attention.sum(2) + 1)
        through = torch.bmm(own[:, None], attention)[:, 0]
        weight = (weight * others + through).scatter_add(1, queried, own)
    return weight
