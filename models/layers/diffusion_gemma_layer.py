"""DiffusionGemma's layer, and the conditioning of a canvas on its previous predictions.

    h += post_attn(attention(norm(h)));  h += post_mlp(post_dense(mlp(mlp_norm(h))) + post_experts(experts(norm(h))))
    h *= a scale of the layer, one for finished text and one for the canvas

All else is shared by both. Values are normalised without a weight; in full layers they are the keys.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_config import DecoderConfig
from ..kernels.experts import mix, route
from ..kernels.matmul import matmul
from ..kernels.ops import Ops, choose_ops
from ..plan import Plan
from .layer import DecoderLayer, LayerPass
from .sparse_layer import SparseLayer


class DiffusionGemmaLayer(SparseLayer):
    """A layer with a dense MLP and experts in parallel, each with its own norms before and after."""

    def _make_mlp(self, config: DecoderConfig) -> None:
        DecoderLayer._make_mlp(self, config)
        SparseLayer._make_mlp(self, config)
        self.router_scale = nn.Parameter(torch.ones(config.width))
        self.router_expert_scale = nn.Parameter(torch.ones(self.experts.count))
        self.dense_post_norm = nn.Parameter(torch.ones(config.width))
        self.experts_norm = nn.Parameter(torch.ones(config.width))
        self.experts_post_norm = nn.Parameter(torch.ones(config.width))
        self.text_scale = nn.Parameter(torch.ones(1))
        self.canvas_scale = nn.Parameter(torch.ones(1))

    def _normed_heads(self, qkv: Tensor, ops: Ops) -> Tensor:
        config = self.config
        assert self.q_norm is not None
        assert self.k_norm is not None
        q, k = qkv[:, :, : config.heads], qkv[:, :, config.heads : config.heads + config.kv_heads]
        v = k if config.values_from_keys else qkv[:, :, config.heads + config.kv_heads :]
        v = F.rms_norm(v, (config.head_dim,), eps=config.norm_eps)
        q, k = ops.norm(q, self.q_norm, config.norm_eps), ops.norm(k, self.k_norm, config.norm_eps)
        return torch.cat((q, k, v), 2)

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        config, ops, eps = self.config, step.ops, self.config.norm_eps
        assert self.post_mlp_norm is not None
        inner = ops.glu(matmul(ops.norm(h, self.mlp_norm, eps), self.gate_up_weight), config.activation)
        dense = ops.norm(matmul(inner, self.down_weight), self.dense_post_norm, eps)
        routed = F.rms_norm(h.float(), (config.width,), eps=eps) * self.router_scale * config.width**-0.5
        chosen, weights = route(routed, self.router_weight, None, self.experts)
        weights = weights * self.router_expert_scale[chosen]
        stacks = self.experts_gate_up_weight, self.experts_down_weight
        sparse = mix(ops.norm(h, self.experts_norm, eps), chosen, weights, *stacks, config.activation, ops.glu)
        out = h + ops.norm(dense + ops.norm(sparse, self.experts_post_norm, eps), self.post_mlp_norm, eps)
        canvas = None if step.hooks is None else step.hooks.canvas
        if canvas is None:
            return out * self.text_scale
        return out * torch.where(canvas, self.canvas_scale, self.text_scale)


class Conditioning(nn.Module):
    """Computes the layers' input for a canvas from embeddings and the previous predictions."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.norm = nn.Parameter(torch.ones(config.width))
        self.gate_up_weight = nn.Parameter(torch.empty(2 * config.mlp_width, config.width))
        self.down_weight = nn.Parameter(torch.empty(config.width, config.mlp_width))

    def forward(self, h: Tensor, signal: Tensor | None) -> Tensor:
        """Adds `signal`, the mean embedding of each prediction (at first None), to the embeddings h [..., W]."""
        config = self.config
        if signal is not None:
            ops = choose_ops(h.device, h.dtype)
            normed = ops.norm(signal.to(h.dtype), self.norm, config.norm_eps)
            h = h + matmul(ops.glu(matmul(normed, self.gate_up_weight), config.activation), self.down_weight)
        return F.rms_norm(h, (config.width,), eps=config.norm_eps)


def canvas_of(plan: Plan) -> Tensor | None:
    """[B, Q] bool: the queries of a canvas; None where the plan has none."""
    return None if plan.visible.begin is None else plan.positions >= plan.visible.begin[:, None]
