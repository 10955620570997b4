"""Lower logits for end tokens that come too early and for tokens that occur in the row already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def without_ends(logits: Tensor, early: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """`logits` [..., V] without the end tokens where `early` [...] holds."""
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    ends[list(stop_ids)] = True
    return logits.masked_fill(early[..., None] & ends, -torch.inf)


def token_counts(tokens: Tensor, counted: Tensor, vocab: int, exempt: Sequence[int] = ()) -> Tensor:
    """How often each token occurs in a row, [B, V] float32; of `tokens` [B, L] those that `counted` marks.

    `exempt` ones count as 0.
    """
    counts = torch.zeros(len(tokens), vocab, device=tokens.device)
    counts.scatter_add_(1, torch.where(counted, tokens, 0), counted.float())
    counts[:, list(exempt)] = 0
    return counts


def penalize(logits: Tensor, counts: Tensor, own: Tensor, penalty: float) -> Tensor:
    """Divides a positive logit by the penalty, and multiplies a negative one, if its token occurs elsewhere in the row.

    Args:
        logits: [..., V].
        counts: [..., V] (broadcast), how often each token occurs in the row.
        own: [...] int64, the token at the position itself, which does not count; -1 where there is none.
    """
    at = own.clamp(min=0)[..., None]
    elsewhere = counts.expand_as(logits) - torch.zeros_like(logits).scatter_(-1, at, (own >= 0).float()[..., None])
    return torch.where(elsewhere > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
