"""A causal model as a block-diffusion one: both streams of Fast-dLLM v2 (arXiv:2509.26328), and their loss.

The sequence is cut into blocks of b tokens. Inside a block attention is bidirectional, and it goes to all earlier
blocks. A training forward sees each row twice, side by side: the noisy copy, whose blocks see themselves and the clean
earlier blocks, and the clean copy. The token shift of the causal model stays: the output at p - 1 predicts the token
at p. Inside a block that output is the noisy copy's; the first token of a block is predicted by the clean copy's last
output of the block before, as decoding does.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def streams(length: int, block: int) -> tuple[Tensor, Tensor]:
    """Which tokens of [noisy, clean] see each other, bool [2L, 2L], and their positions [2L]."""
    at = torch.arange(length)
    mine, other = (at // block)[:, None], (at // block)[None]
    noisy = torch.cat([mine == other, other < mine], 1)
    clean = torch.cat([torch.zeros(length, length, dtype=torch.bool), other <= mine], 1)
    return torch.cat([noisy, clean]), torch.cat([at, at])


def logits_of(model: nn.Module, noisy: Tensor, clean: Tensor, block: int) -> Tensor:
    """Logits [B, L - 1, V] of the tokens from position 1 on."""
    length = clean.shape[1]
    visible, positions = streams(length, block)
    outputs = model(
        input_ids=torch.cat([noisy, clean], 1),
        attention_mask=_additive(visible, model).to(clean.device),
        position_ids=positions[None].expand(len(clean), -1).to(clean.device),
        use_cache=False,
    ).logits
    opens = (torch.arange(1, length, device=clean.device) % block == 0)[:, None]
    return torch.where(opens, outputs[:, length:-1], outputs[:, : length - 1])


def complementary_loss(
    model: nn.Module, ids: Tensor, prompt: Tensor, end: Tensor, block: int, mask_id: int, rng: torch.Generator
) -> Tensor:
    """Mean cross entropy of masked answer tokens, over a random mask and its complement.

    Each block draws a rate, and each of its answer tokens is masked at that rate in one view and kept in the other, so
    that every answer token is predicted once.

    Args:
        ids: clean rows, int64 [B, L].
        prompt: where the answer begins, int64 [B].
        end: the last position that is trained (the end token), int64 [B].
    """
    rows, length = ids.shape
    at = torch.arange(length)
    answer = (at >= prompt[:, None]) & (at <= end[:, None])
    rate = torch.rand(rows, -(-length // block), generator=rng).repeat_interleave(block, 1)[:, :length]
    view = torch.rand(rows, length, generator=rng) < rate
    masks = torch.cat([answer & view, answer & ~view])
    twice = ids.repeat(2, 1)
    logits = logits_of(model, twice.masked_fill(masks, mask_id), twice, block)
    wanted = masks[:, 1:]
    return F.cross_entropy(logits[wanted].float(), twice[:, 1:][wanted])


def _additive(visible: Tensor, model: Any) -> Tensor:
    """The additive mask [1, 1, 2L, 2L] in the model's dtype: 0 where a token is seen, else the lowest number."""
    dtype = next(model.parameters()).dtype
    return torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[None, None]
