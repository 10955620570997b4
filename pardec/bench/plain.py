"""A plain loop over the same decoder, written in the way of the papers' own code.

Logits at every position it feeds, keys and values concatenated from cached and fresh ones, a Python loop over the rows
to choose what is committed, all rows in lock step. It has the same weights, fused matmuls and library attention, so
that only the loop differs, and it must give the same tokens.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from pardec.models.decoder import Decoder
from pardec.models.errors import ModelError
from pardec.models.kernels import layout
from pardec.models.kernels.ops import apply_rotary
from pardec.models.layers.layer import DecoderLayer
from pardec.models.model import LanguageModel

Cache = list[tuple[Tensor, Tensor]]  # keys and values of each layer, [B, S, K, D]


class Plain:
    """`sequential` decoding as in Fast-dLLM, for a shifted or unshifted model; rows of equal length."""

    def __init__(self, model: LanguageModel, length: int, *, cached: bool) -> None:
        """Rows of up to `length` tokens; `cached` stores K and V outside of the active block, as `dual` does.

        Raises ModelError for other stacks.
        """
        decoder = model.decoder
        bidirectional = model.decoding_config.attention == "bidirectional"
        if not isinstance(decoder, Decoder) or not bidirectional or decoder.config.grid:
            raise ModelError(f"{model.name} is not a bidirectional text model on the native stack")
        assert model.decoding_config.mask_id is not None, "of a masked model"
        self.decoder, self.cached = decoder, cached
        self.mask, self.shift = model.decoding_config.mask_id, model.decoding_config.shift
        angles = torch.arange(length)[:, None] * torch.tensor(decoder.config.frequencies)
        cos, sin = torch.cat([angles.cos(), angles.cos()], -1), torch.cat([-angles.sin(), angles.sin()], -1)
        self.cos, self.sin = (table[None, :, None].to(model.device) for table in (cos, sin))
        self._dense = {id(weight): layout.dense(weight) for weight in decoder.parameters()}

    def _dense_weight(self, weight: Tensor) -> Tensor:
        return self._dense[id(weight)]

    @torch.inference_mode()
    def run(self, tokens: Tensor, prompt: int, block: int) -> Tensor:
        """`tokens` [B, L] with every mask after the `prompt` tokens filled."""
        tokens, mask, shift = tokens.clone(), self.mask, self.shift
        for lo in range(prompt, tokens.shape[1], block):
            hi = min(lo + block, tokens.shape[1])
            cache: Cache | None = None
            while (tokens[:, lo:hi] == mask).any():
                start = 0 if cache is None else lo - shift
                stop = tokens.shape[1] if cache is None else hi
                logits, fresh = self.forward(tokens[:, start:stop], start, cache)
                cache = (cache or fresh) if self.cached else None
                if shift:
                    logits = torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if start == 0 else logits[:, :-1]
                first = lo if start == 0 else 0
                self.commit(tokens[:, lo:hi], logits[:, first : first + hi - lo])
        return tokens

    def commit(self, block: Tensor, logits: Tensor) -> None:
        """Commits the most confident masked position of each row of `block` [B, W], from `logits` [B, W, V]."""
        masked = block == self.mask
        logits[..., self.mask] = -torch.inf
        candidates = logits.argmax(-1)
        confidence = F.softmax(logits.float(), dim=-1).gather(-1, candidates[..., None])[..., 0]
        candidates = torch.where(masked, candidates, block)
        confidence = torch.where(masked, confidence, -torch.inf)
        commits = torch.zeros_like(masked)
        for row in range(len(block)):
            _, index = torch.topk(confidence[row], k=1)
            commits[row, index] = True
        block[commits] = candidates[commits]

    def forward(self, tokens: Tensor, start: int, cache: Cache | None) -> tuple[Tensor, Cache]:
        """Logits [B, Q, V] of all `tokens` [B, Q], whose positions begin at `start`, and the K/V of each layer."""
        h, fresh = self.decoder.embed(tokens), []
        for index, layer in enumerate(self.decoder.layers):
            assert isinstance(layer, DecoderLayer)
            h, kv = self._layer(h, layer, start, None if cache is None else cache[index])
            fresh.append(kv)
        return F.linear(self.decoder.norm(h), self._dense_weight(self.decoder.head.weight)), fresh

    def _layer(self, h: Tensor, layer: DecoderLayer, start: int, cache: Any) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        config, stop = self.decoder.config, start + h.shape[1]
        normed = F.rms_norm(h, (config.width,), layer.attn_norm, config.norm_eps)
        fused = F.linear(normed, self._dense_weight(layer.qkv_weight), layer.qkv_bias)
        heads = rearrange(fused, "b q (h d) -> b q h d", d=config.head_dim)
        rotated = apply_rotary(
            heads[:, :, : config.heads + config.kv_heads], self.cos[:, start:stop], self.sin[:, start:stop]
        )
        q, k = rotated[:, :, : config.heads], rotated[:, :, config.heads :]
        v = heads[:, :, config.heads + config.kv_heads :]
        fresh = (k, v)
        if cache is not None:
            pairs = zip(cache, fresh, strict=True)
            k, v = (torch.cat([old[:, :start], new, old[:, stop:]], dim=1) for old, new in pairs)
        out = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), enable_gqa=config.heads != config.kv_heads
        )
        h = h + F.linear(rearrange(out, "b h q d -> b q (h d)"), self._dense_weight(layer.out_weight), layer.out_bias)
        normed = F.rms_norm(h, (config.width,), layer.mlp_norm, config.norm_eps)
        gate, up = F.linear(normed, self._dense_weight(layer.gate_up_weight), layer.gate_up_bias).chunk(2, dim=-1)
        return h + F.linear(F.silu(gate) * up, self._dense_weight(layer.down_weight), layer.down_bias), fresh
