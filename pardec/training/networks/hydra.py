"""Hydra: heads that also read the tokens between the target's state and the token that they predict.

Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding, https://arxiv.org/abs/2402.05109

    z_i = [h_t ; e(x_(t+1)) ; .. ; e(x_(t+i))];  g_i = R_i z_i + r_i + silu(W_i z_i + b_i);  logits_i = U_i g_i + c_i

are the distribution of x_(t+1+i), i = 1 .. J. W starts at 0, R as the identity on h and U as the target's head. Here
soft targets are the target's own distributions (loss fkl); the authors train with labels, and R starts at random.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.files.weights import count_parts
from pardec.models.model import LanguageModel

from .contracts import HeadsNetwork, Options, Target
from .parts import linear


class Hydra(HeadsNetwork):
    kind = "hydra"
    file = "hydra_lm_head.safetensors"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        width, vocabulary = target.model.width, len(target.head)
        self.depths = options.heads
        noise = torch.Generator().manual_seed(options.seed)
        self.inner, self.inner_bias = nn.ParameterList(), nn.ParameterList()
        self.skip, self.skip_bias = nn.ParameterList(), nn.ParameterList()
        self.head, self.head_bias = nn.ParameterList(), nn.ParameterList()
        for head in range(options.heads):
            wide = (head + 2) * width
            skip = torch.randn(width, wide, generator=noise) * 0.2 * wide**-0.5
            skip[:, :width] += torch.eye(width)
            self.skip.append(nn.Parameter(skip))
            self.inner.append(nn.Parameter(torch.zeros(width, wide)))
            self.head.append(nn.Parameter(target.head.float().clone()))
            for bias, size in ((self.inner_bias, width), (self.skip_bias, width), (self.head_bias, vocabulary)):
                bias.append(nn.Parameter(torch.zeros(size)))

    def head_states(self, normed: Tensor, tokens: list[Tensor], head: int) -> Tensor:
        embedded = [F.embedding(ids, self.target.embedding) for ids in tokens]
        z = torch.cat([normed.to(self.compute), *(rows.to(self.compute) for rows in embedded)], -1)
        skip = linear(z, self.skip[head]) + self.skip_bias[head].to(z.dtype)
        inner = F.silu(linear(z, self.inner[head]) + self.inner_bias[head].to(z.dtype))
        states: Tensor = skip + inner
        return states

    def head_logits(self, states: Tensor, head: int) -> Tensor:
        logits: Tensor = linear(states, self.head[head]) + self.head_bias[head].to(states.dtype)
        return logits

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        tensors: dict[str, Tensor] = {}
        for head in range(self.depths):
            tensors[f"hydra_mlp.{head}.0.linear.weight"] = self.inner[head]
            tensors[f"hydra_mlp.{head}.0.linear.bias"] = self.inner_bias[head]
            tensors[f"hydra_mlp.{head}.0.res_connection.weight"] = self.skip[head]
            tensors[f"hydra_mlp.{head}.0.res_connection.bias"] = self.skip_bias[head]
            tensors[f"hydra_lm_head.{head}.weight"] = self.head[head]
            tensors[f"hydra_lm_head.{head}.bias"] = self.head_bias[head]
        config = {"hydra_num_heads": self.depths, "hydra_num_layers": 1, "hydra_head_arch": "mlp"}
        return config | {"grounded_heads": True, "hidden_state_offset": 0}, tensors

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        return {"heads": count_parts(files.published, "hydra_lm_head")}
