"""Readers for attention to a text's first and last tokens: for long prompts, and with capped distances.

    s < sink and p - s >= window:  score = (R(window) q) . (R(s) k),  or (R(window) q) . k  with all at 0
    else:                          score = (R(p) q) . (R(s) k)

R(x) rotates by the angles of position x. Stored keys are R(s) k and queries come as R(p) q, so that a query is rotated
on by window - p, and a sink, where it has to stand at 0, by -s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from ..kernels.attention import AttentionPattern, additive_mask, visible_rows
from ..kernels.ops import apply_rotary
from .kv_cache import Reader

Far = Literal["offsets", "zero"]  # positions of sinks before the window: their own, or all 0

_BLOCK = 256  # queries of a prompt that attend together


@dataclass(frozen=True, slots=True, eq=False)
class Capped:
    """Rotations that cap the distance of queries to the sinks (the text's first tokens) before their window."""

    cos: Tensor  # [B, Q, 1, R] float32, which rotate each query on to position `window`
    sin: Tensor
    far: Tensor  # [B, Q, G] bool: sinks from before the query's window
    zero: (
        tuple[Tensor, Tensor] | None
    )  # cos and sin [1, G, 1, R] that rotate sinks back to position 0; None: as they are

    @staticmethod
    def at(positions: Tensor, rope: Any, *, sink: int, window: int, far: Far) -> Capped:
        """The rotations for queries at `positions` [B, Q], all on one device."""
        sinks = torch.arange(sink, device=positions.device)
        cos, sin = _rotation(rope, window - positions)
        return Capped(
            cos,
            sin,
            positions[..., None] - sinks >= window,
            _rotation(rope, -sinks[None]) if far == "zero" else None,
        )

    def of(self, start: int, stop: int) -> Capped:
        """The part for the queries start .. stop - 1."""
        return replace(self, cos=self.cos[:, start:stop], sin=self.sin[:, start:stop], far=self.far[:, start:stop])

    def narrowed(self, picked: Tensor) -> Capped:
        """The part for the queries `picked` [B, M]."""
        rows = torch.arange(len(picked), device=picked.device)[:, None]
        return replace(self, cos=self.cos[rows, picked], sin=self.sin[rows, picked], far=self.far[rows, picked])


class CappedReader(Reader):
    """Attends to the slots that the pattern allows, with capped distances; sinks are the first slots."""

    def __init__(self, capped: Capped) -> None:
        self.capped = capped

    def narrowed(self, picked: Tensor) -> CappedReader:
        return CappedReader(self.capped.narrowed(picked))

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        k, v = visible_rows(k, pattern), visible_rows(v, pattern)
        return attend_capped(q, k, v, additive_mask(pattern, q.shape[1], k.shape[1], q.dtype, q.device), self.capped)


class PromptReader(Reader):
    """Attends among the tokens of a prompt fed from position 0 on, block by block; keys are the prompt's own."""

    def __init__(self, sink: int, window: int, capped: Capped | None = None, picked: Tensor | None = None) -> None:
        self.sink, self.window, self.capped, self.picked = sink, window, capped, picked

    def narrowed(self, picked: Tensor) -> PromptReader:
        capped = None if self.capped is None else self.capped.narrowed(picked)
        return PromptReader(self.sink, self.window, capped, picked)

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        if self.picked is not None:
            slots = torch.arange(k.shape[1], device=q.device)
            return self._block(q, k, v, self.picked, slots, self.capped)
        parts = []
        for start in range(0, q.shape[1], _BLOCK):
            stop = min(start + _BLOCK, q.shape[1])
            low = max(0, start - self.window + 1)
            slots = torch.arange(stop, device=q.device)
            slots = slots[(slots < self.sink) | (slots >= low)]
            capped = None if self.capped is None else self.capped.of(start, stop)
            at = torch.arange(start, stop, device=q.device)[None]
            parts.append(self._block(q[:, start:stop], k[:, slots], v[:, slots], at, slots, capped))
        return torch.cat(parts, 1)

    def _block(self, q: Tensor, k: Tensor, v: Tensor, at: Tensor, slots: Tensor, capped: Capped | None) -> Tensor:
        """Attention of queries at positions `at` [B or 1, Q] over the text's `slots` [S]."""
        at = at[..., None]
        visible = (slots <= at) & ((slots < self.sink) | (slots > at - self.window))
        mask = torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, -torch.inf)
        return attend_capped(q, k, v, mask[:, None], capped)


def attend_capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, capped: Capped | None) -> Tensor:
    """Attention of q [B, Q, H, D] over k, v [B, S, K, D] -> [B, Q, H, D], in float32 or wider.

    `mask` [B or 1, 1, Q, S] is added to the scores; None adds nothing. The first slots are the sinks of `capped`.
    """
    heads, wide = k.shape[2], torch.promote_types(q.dtype, torch.float32)
    keys, values = (rearrange(each, "b s k d -> b k 1 s d").to(wide) for each in (k, v))
    scores = _grouped(q, heads).to(wide) @ keys.transpose(-1, -2)
    if capped is not None:
        far = capped.far[:, None, None, :, : k.shape[1]]
        sinks = k[:, : far.shape[-1]]
        if capped.zero is not None:
            cos, sin = (each[:, : sinks.shape[1]] for each in capped.zero)
            sinks = apply_rotary(sinks, cos, sin)
        met = _grouped(apply_rotary(q, capped.cos, capped.sin), heads).to(wide)
        other = met @ rearrange(sinks, "b s k d -> b k 1 d s").to(wide)
        scores[..., : sinks.shape[1]] = torch.where(far, other, scores[..., : sinks.shape[1]])
    scores = scores * q.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask[:, None].to(wide)
    out = scores.softmax(-1) @ values
    result: Tensor = rearrange(out, "b k g q d -> b q (k g) d").to(q.dtype)
    return result


def _grouped(q: Tensor, heads: int) -> Tensor:
    grouped: Tensor = rearrange(q, "b q (k g) d -> b k g q d", k=heads)
    return grouped


def _rotation(rope: Any, by: Tensor) -> tuple[Tensor, Tensor]:
    """cos, signed sin [.., 1, R] float32 of a rotation by `by` positions [..], which may be negative."""
    angle = by[..., None].double() * rope.frequencies.to(by.device).double()
    cos, sin = angle.cos().float(), angle.sin().float()
    return torch.cat((cos, cos), -1).unsqueeze(-2), torch.cat((-sin, sin), -1).unsqueeze(-2)
