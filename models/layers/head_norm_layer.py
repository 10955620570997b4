"""Chameleon's layers: a LayerNorm per head of queries and keys; the largest model norms after attention and MLP.

q, k <- LN(q) * w_h + b_h, LN(k) * w_h + b_h;  then Llama's layer, or h += norm(attention(h)); h += norm(mlp(h))
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_config import DecoderConfig
from ..kernels.ops import Ops
from .layer import DecoderLayer

_EPS = 1e-5  # epsilon of the heads' norms; the others have the config's


class HeadNormLayer(DecoderLayer):
    """Llama's layer, with a LayerNorm of each head's queries and keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.norms_heads = True
        for name, heads in (("q_norm", config.heads), ("k_norm", config.kv_heads)):
            self.register_parameter(name, nn.Parameter(torch.ones(heads, config.head_dim)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(heads, config.head_dim)))

    q_norm_bias: nn.Parameter
    k_norm_bias: nn.Parameter

    def _normed_heads(self, qkv: Tensor, ops: Ops) -> Tensor:
        config = self.config
        assert self.q_norm is not None
        assert self.k_norm is not None
        q, k, v = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], 2)
        q = F.layer_norm(q, (config.head_dim,), eps=_EPS) * self.q_norm + self.q_norm_bias
        k = F.layer_norm(k, (config.head_dim,), eps=_EPS) * self.k_norm + self.k_norm_bias
        return torch.cat((q, k, v), 2)


class PostNormLayer(HeadNormLayer):
    """HeadNormLayer with RMSNorms after attention and MLP instead of before."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        del self.attn_norm, self.mlp_norm
