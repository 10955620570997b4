"""A layer whose MLP is made of experts: LLaDA-MoE, LLaDA2, SDAR-MoE, Qwen3-MoE."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..decoder_config import DecoderConfig, ExpertsConfig
from ..kernels.experts import mix, route
from ..kernels.matmul import matmul
from ..kernels.ops import Ops
from .layer import DecoderLayer, LayerPass


class SparseLayer(DecoderLayer):
    """h += sum of weighted experts(n) + shared expert(n), n = norm(h). Experts are stacked, or on a CPU a list."""

    router_bias: nn.Parameter | None
    experts_gate_up_weight: nn.Parameter | nn.ParameterList  # [E, 2 I, W]
    experts_down_weight: nn.Parameter | nn.ParameterList  # [E, W, I]

    def _make_mlp(self, config: DecoderConfig) -> None:
        experts = self.experts
        count, width, inner = experts.count, config.width, experts.width
        self.router_weight = nn.Parameter(torch.empty(count, width))
        self.register_parameter("router_bias", nn.Parameter(torch.zeros(count)) if experts.bias else None)
        self.experts_gate_up_weight = nn.Parameter(torch.empty(count, 2 * inner, width))
        self.experts_down_weight = nn.Parameter(torch.empty(count, width, inner))
        if experts.shared_width:
            self.shared_gate_up_weight = nn.Parameter(torch.empty(2 * experts.shared_width, width))
            self.shared_down_weight = nn.Parameter(torch.empty(width, experts.shared_width))

    @property
    def experts(self) -> ExpertsConfig:
        assert self.config.experts is not None, "a sparse layer has experts"
        return self.config.experts

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        config, experts = self.config, self.experts
        normed = step.ops.norm(h, self.mlp_norm, config.norm_eps)
        blocks = _blocks(step.plan.positions, experts.pool_block) if experts.pool else None
        out = self.mlp(normed, step.ops, blocks)
        if self.group is not None:
            dist.all_reduce(out, group=self.group)
        return h + out

    def mlp(self, x: Tensor, ops: Ops, blocks: Tensor | None = None) -> Tensor:
        """The experts' output for normed states x [T, W]; `blocks` [T] are the tokens' block numbers, for a pool."""
        config, experts = self.config, self.experts
        chosen, weights = route(x, self.router_weight, self.router_bias, experts, blocks)
        stacks = self.experts_gate_up_weight, self.experts_down_weight
        out = mix(x, chosen, weights, *stacks, config.activation, ops.glu)
        if not experts.shared_width:
            return out
        inner = ops.glu(matmul(x, self.shared_gate_up_weight), config.activation)
        return out + matmul(inner, self.shared_down_weight)


def _blocks(positions: Tensor, width: int) -> Tensor:
    """[B * Q] a number per row and block, for queries at positions [B, Q]; padding gets a separate number."""
    block = torch.where(positions < 0, 0, positions // width + 1)
    row = torch.arange(len(block), device=block.device)[:, None]
    return (row * (block.max() + 1) + block).flatten()
