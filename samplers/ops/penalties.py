"""Changes the logits of end tokens that come too early, of tokens that are already in the row, and of chosen ids."""

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
    elsewhere = counts_elsewhere(counts, own, logits)
    return torch.where(elsewhere > 0, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def counts_elsewhere(counts: Tensor, own: Tensor, like: Tensor) -> Tensor:
    """[..., V] as `like`: the `counts` without each position's own token, `own` [...], -1 where there is none."""
    at = own.clamp(min=0)[..., None]
    return counts.expand_as(like) - torch.zeros_like(like).scatter_(-1, at, (own >= 0).float()[..., None])


def subtract_counts(logits: Tensor, counts: Tensor, presence: float, frequency: float) -> Tensor:
    """`logits` [..., V] less `presence` for tokens that occur, and `frequency` for each time, by OpenAI's definition.

    Args:
        counts: [..., V] (broadcast), how often each token was generated.
    """
    return logits - presence * (counts > 0) - frequency * counts


def bias_vector(bias: Sequence[tuple[int, float]], vocab: int) -> Tensor:
    """[V] float32 on the CPU: the number added to the logit of each id."""
    vector = torch.zeros(vocab)
    for token, value in bias:
        vector[token] = value
    return vector
