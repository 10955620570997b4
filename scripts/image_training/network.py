"""The network that is trained: LlamaGen's transformer after a small text encoder, tensors named as LlamaGen publishes.

Written for training alone: every position at once, attention by two matmuls. pardec's own stack runs what comes
out of it, and a test compares the two.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pardec.models.hf.hf_logging import silence

EPS = 1e-5
BASE = 10_000


class Norm(nn.Module):
    """RMSNorm, computed in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), (x.shape[-1],), self.weight, EPS)


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.wqkv = nn.Linear(width, 3 * width, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor) -> Tensor:
        """x [B, L, E], rope [L, D/2, 2] cosine and sine, mask [B, 1, L, L] additive."""
        q, k, v = self.wqkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        score = turned(q, rope) @ turned(k, rope).transpose(-1, -2) / math.sqrt(q.shape[-1]) + mask
        mixed = score.float().softmax(-1).to(v.dtype) @ v
        out: Tensor = self.wo(mixed.transpose(1, 2).flatten(-2))
        return out


class FeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, hidden, bias=False)
        self.w3 = nn.Linear(width, hidden, bias=False)
        self.w2 = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.w2(F.silu(self.w1(x)) * self.w3(x))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.feed_forward = FeedForward(width, hidden)
        self.attention_norm = Norm(width)
        self.ffn_norm = Norm(width)

    def forward(self, x: Tensor, rope: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rope, mask)
        return x + self.feed_forward(self.ffn_norm(x))


class Conditions(nn.Module):
    """Maps captions' features to input states, with learned features for a missing caption."""

    def __init__(self, places: int, features: int, width: int) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {"fc1": nn.Linear(features, width, bias=False), "fc2": nn.Linear(width, width, bias=False)}
        )
        self.uncond_embedding = nn.Parameter(torch.randn(places, features) / math.sqrt(features))

    def forward(self, features: Tensor) -> Tensor:
        out: Tensor = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return out


class Drawer(nn.Module):
    """The transformer over P places of a caption and the cells of a picture."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__()
        width, heads = config["dim"], config["n_head"]
        self.side, self.places = math.isqrt(config["block_size"]), config["cls_token_num"]
        self.tok_embeddings = nn.Embedding(config["vocab_size"], width)
        self.cls_embedding = Conditions(self.places, config["caption_dim"], width)
        self.layers = nn.ModuleList([Block(width, heads, config["ffn_hidden"]) for _ in range(config["n_layer"])])
        self.norm = Norm(width)
        self.output = nn.Linear(width, config["vocab_size"], bias=False)
        for name, value in self.named_parameters():
            if value.ndim == 2:
                deep = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(value, std=0.02 / (math.sqrt(2 * config["n_layer"]) if deep else 1))
        # The projections of captions are small otherwise, and captions would hardly have an effect at first.
        for part in (*self.cls_embedding.cap_proj.values(), self.tok_embeddings):
            nn.init.normal_(part.weight, std=part.weight.shape[1] ** -0.5)
        self.register_buffer("rope", self._rope(width // heads), persistent=False)

    def _rope(self, size: int) -> Tensor:
        """[P + cells, D/2, 2]; zero for the places of the caption."""
        frequency = BASE ** (-torch.arange(0, size // 2, 2) / (size // 2))
        cell = torch.arange(self.side**2)
        angle = torch.cat([at[:, None] * frequency for at in (cell // self.side, cell % self.side)], 1)
        table = torch.stack((angle.cos(), angle.sin()), -1)
        return torch.cat((torch.zeros(self.places, *table.shape[1:]), table))

    def states(self, features: Tensor, known: Tensor, codes: Tensor) -> Tensor:
        """States [B, cells, E] that predict each cell of `codes` [B, cells], after right-aligned captions.

        `features` [B, P, D] and which places are taken, `known` [B, P] bool.
        """
        places, last = self.places, codes.shape[1] - 1
        x = torch.cat((self.cls_embedding(features), self.tok_embeddings(codes[:, :last])), 1)
        length = places + last
        seen = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()[None].repeat(len(codes), 1, 1)
        seen[:, :, :places] &= known[:, None]
        seen |= torch.eye(length, dtype=torch.bool, device=x.device)
        mask = torch.zeros(seen.shape, device=x.device).masked_fill_(~seen, -torch.inf)[:, None]
        for layer in self.layers:
            x = layer(x, self.rope[:length], mask)
        normed: Tensor = self.norm(x[:, places - 1 :])
        return normed


def turned(x: Tensor, rope: Tensor) -> Tensor:
    """x [B, H, L, D] with each pair of neighbouring dimensions rotated by rope [L, D/2, 2]."""
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.unbind(-1)
    return torch.stack((first * cos - second * sin, first * sin + second * cos), -1).flatten(-2).to(x.dtype)


def text_encoder(vocabulary: int, width: int, layers: int, places: int, pad: int) -> Any:
    """A small encoder with learned positions, as transformers has it."""
    from transformers import BertConfig, BertModel

    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=places,
        type_vocab_size=1,
        pad_token_id=pad,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with silence():
        return BertModel(config, add_pooling_layer=False)
