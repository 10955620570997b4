"""A model that copies the token that followed an earlier occurrence of the newest token, anywhere in a long text."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from tests.samplers.ar_toys import toy_ar

CODE = 32  # dimensions of a token's code
_FREQUENCIES = (2.3, 1.7, 1.1, 0.7, 0.45, 0.29, 0.17, 0.11)  # of the head that looks one position back
_SHARP = 60.0


@cache
def induction(vocab: int = 500) -> LanguageModel:
    """A model of two one-head layers: the first writes the previous token into a state, the second looks it up.

    A state is [code | code of the token before | code of the prediction | 1]; codes are unit vectors.
    """
    width, turning = 3 * CODE + 1, len(_FREQUENCIES)
    half = turning + CODE
    frequencies = (*_FREQUENCIES, *[0.0] * CODE)  # contents are compared without positions
    model = toy_ar(
        0, vocab, layers=2, width=width, heads=1, head_dim=2 * half, frequencies=frequencies,
    )  # fmt: skip
    stack: Any = model.decoder
    codes = torch.from_numpy(np.random.RandomState(0).standard_normal((vocab, CODE))).float()
    codes = codes / codes.norm(dim=1, keepdim=True)
    for weight in stack.parameters():
        if weight.dim() > 1:
            weight.zero_()
    stack.embed.weight[:, :CODE], stack.embed.weight[:, -1] = codes, 1
    stack.head.weight[:, 2 * CODE : 3 * CODE] = codes * 20
    eye, scale = torch.eye(CODE), (2 * half) ** 0.5 * _SHARP
    back, find = (_parts(layer, 2 * half) for layer in stack.layers)
    angles, one = torch.tensor(_FREQUENCIES), 2 / width  # the square of what the norm divides by
    back[0][:turning, -1], back[0][half : half + turning, -1] = angles.cos() * scale * one, -angles.sin() * scale * one
    back[1][:turning, -1] = 1
    find[0][turning : turning + CODE, :CODE] = eye * scale * 3 / width
    find[1][turning : turning + CODE, CODE : 2 * CODE] = eye
    for number, layer in enumerate((back, find)):
        layer[2][:CODE, :CODE] = eye * ((2 + number) / width) ** 0.5
        stack.layers[number].out_weight[(1 + number) * CODE : (2 + number) * CODE, :CODE] = eye
    return model


def _parts(layer: Any, dim: int) -> tuple[Tensor, ...]:
    """The weights of queries, keys and values [D, E], as views."""
    return layer.qkv_weight.split(dim)  # type: ignore[no-any-return]
