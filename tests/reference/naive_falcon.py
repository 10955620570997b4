"""Falcon's blocks of pairs after an EAGLE-1, from the formulas: one pass over the whole row per block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import naive_eagle


def outputs(
    tensors: Mapping[str, Tensor],
    embedding: Tensor,
    text: Sequence[int],
    features: Tensor,
    path: Sequence[int],
    config: Mapping[str, Any],
    block: int,
) -> Tensor:
    """The output [E] that predicts the token after `text` and the draft `path`; `features` [n - 1, E]: the target's."""
    offsets = torch.cat((torch.zeros_like(features[:1]), tensors["block_offsets.weight"]))[:block]
    tokens, states, group = list(text[1:]), features[:-1], list(range(-len(text) + 1, 0))
    positions = list(range(len(text) - 1))
    token, state, out = tokens.pop(), features[-1], features
    group.pop()
    positions.pop()
    for start in range(0, len(path) + 1, block):
        if start:
            token, state = path[start - 1], out[-1]
        tokens += [token] * block
        states = torch.cat((states, state + offsets))
        group += [start] * block
        positions += [len(text) - 2 + start + j for j in range(block)]
        order, of = torch.arange(len(tokens)), torch.tensor(group)
        first = (of[:, None] > of) | (order[:, None] == order)
        begins = torch.tensor([index == 0 or of[index] != of[index - 1] for index in range(len(group))])
        visible = first | ((of[:, None] == of) & ~begins[:, None])
        at = torch.tensor(positions).to(states)
        out = naive_eagle.outputs(tensors, embedding[tokens], states, config, {}, visible, at)
    return out[len(out) - block + len(path) % block]
