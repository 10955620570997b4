"""Medusa: heads that predict the tokens after the next one from the target's state alone.

Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, https://arxiv.org/abs/2401.10774

    g_j = h_t + silu(W_j h_t + b_j);  logits_j = U_j g_j: the distribution of x_(t+1+j), j = 1 .. J

W and b start at 0 and U as the target's head, so that an untrained head predicts what the target does. h is the state
after the final norm. Deviates from the authors' recipe: soft targets are the target's own distributions (loss fkl).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.model import LanguageModel

from .contracts import HeadsNetwork, Options, Target
from .parts import linear


class Medusa(HeadsNetwork):
    kind = "medusa"
    file = "medusa_lm_head.safetensors"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        width = target.model.width
        self.depths = options.heads
        self.inner = nn.ParameterList(
            nn.Parameter(torch.zeros(width, width)) for _ in range(options.heads * options.layers)
        )
        self.bias = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in self.inner)
        self.head = nn.ParameterList(nn.Parameter(target.head.float().clone()) for _ in range(options.heads))

    def head_states(self, normed: Tensor, tokens: list[Tensor], head: int) -> Tensor:
        layers = self.options.layers
        g = normed.to(self.compute)
        for at in range(head * layers, (head + 1) * layers):
            g = g + F.silu(linear(g, self.inner[at]) + self.bias[at].to(g.dtype))
        return g

    def head_logits(self, states: Tensor, head: int) -> Tensor:
        return linear(states, self.head[head])

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        layers = self.options.layers
        tensors: dict[str, Tensor] = {}
        for head in range(self.depths):
            for at in range(layers):
                tensors[f"{head}.{at}.linear.weight"] = self.inner[head * layers + at]
                tensors[f"{head}.{at}.linear.bias"] = self.bias[head * layers + at]
            tensors[f"{head}.{layers}.weight"] = self.head[head]
        return {"medusa_num_heads": self.depths, "medusa_num_layers": layers}, tensors

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        heads = {name.split(".")[0] for name in files.published}
        return {"heads": len(heads), "layers": sum(name.startswith("0.") for name in files.published) // 2}
