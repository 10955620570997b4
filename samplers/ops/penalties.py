"""Lowers the logits of end tokens that come too early and of tokens that are already in the row."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def without_ends(logits: Tensor, early: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """`logits` [..., V] with end tokens at -inf where `early` [...] is True."""
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    ends[list(stop_ids)] = True
    return logits.masked_fill(early[..., None] & ends, -torch.inf)


def token_counts(tokens: Tensor, counted: Tensor, vocab: int, exempt: Sequence[int] = ()) -> Tensor:
    """[B, V] float32: how often each token occurs among the `tokens` [B, L] where `counted` is True.

    `exempt` ones count as 0.
    """
    counts = torch.zeros(len(tokens), vocab, device=tokens.device)
    counts.scatter_add_(1, torch.where(counted, tokens, 0), counted.float())
    counts[:, list(exempt)] = 0
    return counts


def penalize(logits: Tensor, counts: Tensor, own: Tensor, penalty: float) -> Tensor:
    """Divides positive logits by the penalty, and multiplies negative ones, of tokens that occur elsewhere in the row.

    Args:
        logits: [..., V].
        counts: [..., V] (broadcast), how often each token occurs in the row.
        own: [...] int64, the token at the position itself, which does not count; -1 where there is none.
    """
    at = own.clamp(min=0)[..., None]
    elsewhere = counts.expand_as(logits) - torch.zeros_like(logits).scatter_(-1, at, (own >= 0).float()[..., None])
    return torch.where(elsewhere > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
