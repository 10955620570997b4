"""A plain loop over the same decoder, written as the papers' own code is.

Logits of every position it feeds, keys and values concatenated from what is kept and what is fresh, a Python loop over
the rows to choose what is committed, all rows in lock step. It has the same weights, fused products and library
attention, so that what differs is the loop, and it must give the same tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pardec.models.decoder import Decoder, DecoderLayer
from pardec.models.errors import ModelError
from pardec.models.kernels import layout
from pardec.models.model import LanguageModel
from pardec.models.rope import apply_rotary

Kept = list[tuple[Tensor, Tensor]]  # keys and values of each layer, [B, S, K, D]


class Plain:
    """Fast-dLLM's way of decoding with `sequential`, for a shifted or unshifted model; rows of equal length."""

    def __init__(self, model: LanguageModel, length: int, *, cached: bool) -> None:
        """Rows of up to `length` tokens; `cached` keeps what lies outside of the active block, as `dual` does.

        Raises ModelError for other stacks.
        """
        decoder = model.decoder
        bidirectional = model.decoding_config.attention == "bidirectional"
        if not isinstance(decoder, Decoder) or not bidirectional or decoder.config.grid:
            raise ModelError(f"{model.name} is no bidirectional model of text on the native stack")
        assert model.decoding_config.mask_id is not None, "of a masked model"
        self.decoder, self.cached = decoder, cached
        self.mask, self.shift = model.decoding_config.mask_id, model.decoding_config.shift
        angles = torch.arange(length)[:, None] * torch.tensor(decoder.config.frequencies)
        cos, sin = torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)
        self.cos, self.sin = (table[None, :, None].to(model.device) for table in (cos, sin))
        self._dense = {id(weight): layout.dense(weight) for weight in decoder.parameters()}

    def _own(self, weight: Tensor) -> Tensor:
        return self._dense[id(weight)]

    @torch.inference_mode()
    def run(self, tokens: Tensor, prompt: int, block: int) -> Tensor:
        """`tokens` [B, L], whose first `prompt` are given, filled."""
        tokens, mask, shift = tokens.clone(), self.mask, self.shift
        for lo in range(prompt, tokens.shape[1], block):
            hi = min(lo + block, tokens.shape[1])
            kept: Kept | None = None
            while (tokens[:, lo:hi] == mask).any():
                start = 0 if kept is None else lo - shift
                stop = tokens.shape[1] if kept is None else hi
                logits, fresh = self.forward(tokens[:, start:stop], start, kept)
                kept = (kept or fresh) if self.cached else None
                if shift:
                    logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]
                first = lo if start == 0 else 0
                self.commit(tokens[:, lo:hi], logits[:, first : first + hi - lo])
        return tokens

    def commit(self, block: Tensor, logits: Tensor) -> None:
        """Writes the surest open position of each row of `block` [B, W], from `logits` [B, W, V]."""
        masked = block == self.mask
        logits[..., self.mask] = -torch.inf
        candidates = logits.argmax(-1)
        confidence = F.softmax(logits.float(), dim=-1).gather(-1, candidates[..., None])[..., 0]
        candidates = torch.where(masked, candidates, block)
        confidence = torch.where(masked, confidence, -torch.inf)
        chosen = torch.zeros_like(masked)
        for row in range(len(block)):
            _, where = torch.topk(confidence[row], k=1)
            chosen[row, where] = True
        block[chosen] = candidates[chosen]

    def forward(self, tokens: Tensor, start: int, kept: Kept | None) -> tuple[Tensor, Kept]:
        """Logits [B, Q, V] of all `tokens` [B, Q], which stand from `start` on, and the K/V of each layer."""
        h, fresh = self.decoder.embed(tokens), []
        for index, layer in enumerate(self.decoder.layers):
            assert isinstance(layer, DecoderLayer)
            h, made = self._layer(h, layer, start, None if kept is None else kept[index])
            fresh.append(made)
        return F.linear(self.decoder.norm(h), self._own(self.decoder.head.weight)), fresh

    def _layer(self, h: Tensor, layer: DecoderLayer, start: int, kept: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config, stop = self.decoder.config, start + h.shape[1]
        normed = F.rms_norm(h, (config.width,), layer.attn_norm, config.norm_eps)
        fused = F.linear(normed, self._own(layer.qkv_weight), layer.qkv_bias)
        heads = rearrange(fused, "b q (h d) -> b q h d", d=config.head_dim)
        rotated = apply_rotary(
            heads[:, :, : config.heads + config.kv_heads], self.cos[:, start:stop], self.sin[:, start:stop]
        )
        q, k = rotated[:, :, : config.heads], rotated[:, :, config.heads :]
        v = heads[:, :, config.heads + config.kv_heads :]
        fresh = (k, v)
        if kept is not None:
            pairs = zip(kept, fresh, strict=True)
            k, v = (torch.cat([old[:, :start], new, old[:, stop:]], dim=1) for old, new in pairs)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=config.heads != config.kv_heads
        )
        h = h + F.linear(rearrange(out, "b h q d -> b q (h d)"), self._own(layer.out_weight), layer.out_bias)
        normed = F.rms_norm(h, (config.width,), layer.mlp_norm, config.norm_eps)
        gate, up = F.linear(normed, self._own(layer.gate_up_weight), layer.gate_up_bias).chunk(2, dim=-1)
        return h + F.linear(F.silu(gate) * up, self._own(layer.down_weight), layer.down_bias), fresh
