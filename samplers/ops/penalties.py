"""What is made less likely for what stands in a row: end tokens too early, and tokens that stand there already."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def without_ends(logits: Tensor, early: Tensor, stop_ids: Sequence[int]) -> Tensor:
    """`logits` [..., V] without the end tokens where `early` [...] holds."""
    ends = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    ends[list(stop_ids)] = True
    return logits.masked_fill(early[..., None] & ends, -torch.inf)


def standing(tokens: Tensor, stands: Tensor, vocab: int, exempt: Sequence[int] = ()) -> Tensor:
    """How often each token stands in a row: of `tokens` [B, L] those where `stands` holds, [B, V] float32.

    `exempt` ones never do.
    """
    counts = torch.zeros(len(tokens), vocab, device=tokens.device)
    counts.scatter_add_(1, torch.where(stands, tokens, 0), stands.float())
    counts[:, list(exempt)] = 0
    return counts


def penalised(logits: Tensor, counts: Tensor, own: Tensor, penalty: float) -> Tensor:
    """Divides a positive logit by the penalty, and multiplies a negative one, where its token stands elsewhere.

    Args:
        logits: [..., V].
        counts: [..., V] (broadcast), how often each token stands in the row.
        own: [...] int64, the token that stands at the position itself, which is not elsewhere; -1 where none does.
    """
    at = own.clamp(min=0)[..., None]
    elsewhere = counts.expand_as(logits) - torch.zeros_like(logits).scatter_(-1, at, (own >= 0).float()[..., None])
    return torch.where(elsewhere > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)
