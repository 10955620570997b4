"""Operations that the layers of MAR and VAR share: modulated layer norm, attention and MLP.

modulated   scale LN(x) + shift
attention   that of the decoder, over K/V that are kept by the caller or not at all
mlp         fc2(gelu(fc1(x)))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.attention import AttentionPattern, attend


def modulated(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """scale * LN(x) + shift of x [..., E]; LN has a weight and a bias if they are given."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], weight, bias, eps), scale)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of q [R, Q, H, D] over k, v [R, S, H, D] -> [R, Q, H * D].

    `mask` is bool, of any shape that broadcasts to [R, H, Q, S]: the slots that each query sees. None: all.
    """
    return attend(q, k, v, AttentionPattern("reference", k.shape[1], mask=mask)).flatten(-2)


def mlp(x: Tensor, layers: nn.ModuleDict, approximate: str = "none") -> Tensor:
    """fc2(gelu(fc1(x))) of the linear layers `fc1` and `fc2`."""
    out: Tensor = layers["fc2"](F.gelu(layers["fc1"](x), approximate=approximate))
    return out
