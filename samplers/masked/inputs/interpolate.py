"""Feeds each committed token of the active block as a mixture of itself and the mask, by the token's probability.

DMax: Aggressive Parallel Decoding for dLLMs ("soft parallel decoding"), https://arxiv.org/abs/2604.08302

    m_i = p_i E[x_i] + (1 - p_i) E[mask]
    input_i = m_i (p_i |E[x_i]| + (1 - p_i) |E[mask]|) / |m_i|

p_i is the probability of x_i at the last forward that predicted it: with a revise stage the one before, otherwise that
which committed it. Tokens that are not the likeliest there, tokens of the request and those of other blocks are fed
unchanged. It is published with `contiguous` and with `edit`, for models that were trained on such inputs.
Exact: no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Evidence, Inputs


@dataclass
class Mixtures:
    """For the active block: the likeliest token of each position, and the vector added to its input once committed."""

    ids: Tensor  # [B, W] int64; -1 where no forward has predicted
    change: Tensor | None = None  # [B, W, E]; None before the first forward


@register("interpolate", checked="reference:reference.naive_revise.dmax")
class Interpolate(Inputs):
    conflicts: ClassVar[Reasons] = {
        **Inputs.conflicts,
        Trait.RANDOM_CANVAS: Why("{me} mixes in the mask's embedding, and {other} has no mask token", "leave {me} out"),
    }

    def start(self, canvas: Canvas) -> Mixtures:
        return Mixtures(torch.full_like(canvas.window, -1))

    def soft(self, canvas: Canvas, state: Mixtures) -> Tensor | None:
        if state.change is None:
            return None
        same = canvas.committed & (canvas.tokens.gather(1, canvas.window) == state.ids)
        same &= upload(canvas.active_host & ~canvas.block_started[:, None], same.device)
        return state.change * same[..., None]

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Mixtures) -> None:
        ids, probability = evidence.distribution.greedy
        vocab = evidence.distribution.vocab
        token = embed(one_hot(ids, vocab).float()).float()  # [B, W, E]
        mask = embed(one_hot(torch.full_like(ids[:1, :1], canvas.mask_id), vocab).float()).float()
        p = probability[..., None]
        mixture, length = p * token + (1 - p) * mask, p * token.norm(dim=-1, keepdim=True)
        length = length + (1 - p) * mask.norm(dim=-1, keepdim=True)
        change = mixture * (length / mixture.norm(dim=-1, keepdim=True).clamp(min=1e-12)) - token
        predicted, old = evidence.predicted, change if state.change is None else state.change
        block_started = upload(canvas.block_started, ids.device)[:, None]
        state.ids = torch.where(predicted, ids, state.ids.masked_fill(block_started, -1))
        state.change = torch.where(predicted[..., None], change, old)
