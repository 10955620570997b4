"""The transformer that predicts codes scale by scale, as it is trained: all scales in one block-causal forward.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905
Its tensors have the authors' names. Letters: B rows, L codes of all scales, C numbers of a code's vector, E width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

STEEPEST = math.log(100)  # upper bound of the logarithm of the queries' factor


class Attention(nn.Module):
    """Self-attention of unit queries and keys, queries times a learned number of each head."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), math.log(4.0)))
        self.mat_qkv = nn.Linear(width, 3 * width, bias=False)
        self.q_bias, self.v_bias = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("zero_k_bias", torch.zeros(width))
        self.proj = nn.Linear(width, width)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        bias = torch.cat((self.q_bias, self.zero_k_bias, self.v_bias))
        joint = F.linear(states, self.mat_qkv.weight, bias)
        q, k, v = rearrange(joint, "b l (three h d) -> three b h l d", three=3, h=self.heads)
        q = F.normalize(q, dim=-1) * self.scale_mul_1H11.clamp(max=STEEPEST).exp().to(q.dtype)
        mixed = F.scaled_dot_product_attention(q, F.normalize(k, dim=-1), v, attn_mask=mask, scale=1.0)
        out: Tensor = self.proj(rearrange(mixed, "b h l d -> b l (h d)"))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(states), approximate="tanh"))
        return out


class Block(nn.Module):
    """Attention and feed-forward, each scaled, shifted and gated by the class."""

    def __init__(self, width: int, heads: int, hidden: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.attn, self.ffn = Attention(width, heads), FeedForward(width, hidden)
        self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, states: Tensor, cond: Tensor, mask: Tensor) -> Tensor:
        gate1, gate2, scale1, scale2, shift1, shift2 = self.ada_lin(cond)[:, None].chunk(6, -1)
        states = states + gate1 * self.attn((1 + scale1) * self.norm(states) + shift1, mask)
        return states + gate2 * self.ffn((1 + scale2) * self.norm(states) + shift2)


class HeadNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, eps=eps, elementwise_affine=False)
        self.ada_lin = nn.Sequential(nn.SiLU(), nn.Linear(width, 2 * width))

    def forward(self, states: Tensor, cond: Tensor) -> Tensor:
        scale, shift = self.ada_lin(cond)[:, None].chunk(2, -1)
        return (1 + scale) * self.norm(states) + shift


class ScaleNetwork(nn.Module):
    """Built from a config.json."""

    mask: Tensor
    level: Tensor

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, eps, self.depth = config["embed_dim"], config["norm_eps"], config["depth"]
        sizes = [side * side for side in config["patch_nums"]]
        hidden = round(width * config["mlp_ratio"])
        self.starts = [sum(sizes[:scale]) for scale in range(len(sizes) + 1)]
        self.word_embed = nn.Linear(config["z_channels"], width)
        self.class_emb = nn.Embedding(config["num_classes"] + 1, width)
        self.pos_start = nn.Parameter(torch.empty(1, 1, width))
        self.pos_1LC = nn.Parameter(torch.empty(1, sum(sizes), width))
        self.lvl_embed = nn.Embedding(len(sizes), width)
        self.blocks = nn.ModuleList(Block(width, config["num_heads"], hidden, eps) for _ in range(self.depth))
        self.head_nm = HeadNorm(width, eps)
        self.head = nn.Linear(width, config["vocab_size"])
        level = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        self.register_buffer("level", level, persistent=False)
        self.register_buffer("mask", level[:, None] >= level[None, :], persistent=False)  # [L, L], True: attended

    def forward(self, labels: Tensor, maps: Tensor) -> Tensor:
        """Logits [B, n, V] of the first n codes.

        Args:
            labels: [B] int64; the number of classes is the null class.
            maps: [B, n - 1, C], the inputs of the scales from 1 on, one after the other.
        """
        cond = self.class_emb(labels)
        count = maps.shape[1] + 1
        states = torch.cat((cond[:, None] + self.pos_start, self.word_embed(maps)), 1)
        states = states + self.pos_1LC[:, :count] + self.lvl_embed(self.level[:count])
        mask = self.mask[:count, :count]
        for block in self.blocks:
            states = block(states, cond, mask)
        logits: Tensor = self.head(self.head_nm(states, cond))
        return logits

    def initialise(self) -> None:
        """Initializes the weights; gates start open, and the class's other modulations start at zero."""
        for name, value in self.named_parameters():
            if "ada_lin" in name or name.endswith("bias"):
                nn.init.zeros_(value)
            elif name in ("pos_start", "pos_1LC", "lvl_embed.weight", "class_emb.weight"):
                nn.init.normal_(value, std=0.2)
            elif value.ndim == 2:
                nn.init.xavier_uniform_(value, 1 / math.sqrt(2 * self.depth) if name.endswith(_OUTPUTS) else 1.0)
        nn.init.normal_(self.head.weight, std=0.02)
        width = self.pos_start.shape[-1]
        for block in self.blocks:
            nn.init.ones_(block.ada_lin[1].bias[: 2 * width])


_OUTPUTS = ("attn.proj.weight", "ffn.fc2.weight")
