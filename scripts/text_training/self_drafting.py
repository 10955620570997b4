"""One network that writes token by token and drafts blocks: both objectives of Nemotron-Labs-Diffusion (2607.05722).

A training forward sees each row twice, side by side. The clean copy is causal, and its output at p - 1 predicts the
token at p. In the noisy copy a block is [a token, masks]: it sees the clean copy before it and all of itself, and its
output at p predicts the token at p, without a shift, in one pass. Blocks begin anywhere, as drafts do.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from text_training.data import MASK, Batch, Targets

BLOCK = 16  # tokens of a draft, including the known one that it begins with
FADE = 0.85  # weight of a position of a block divided by that of the one before: later ones are reached less often


def joint_loss(model: nn.Module, batch: Batch, target: Targets, rng: torch.Generator, share: float = 0.5) -> Tensor:
    """The cross entropy of both copies; drafts weigh `share`, and `target` weighs the tokens of the clean copy."""
    ids, (rows, length) = batch.ids, batch.ids.shape
    at = torch.arange(length)
    begin = torch.randint(BLOCK, (rows, 1), generator=rng)
    block, place = (at + begin) // BLOCK, (at + begin) % BLOCK  # [B, L]
    answer = (at >= batch.prompt[:, None]) & (at <= batch.end[:, None])
    masks = answer & (place > 0)
    noisy = ids.masked_fill((place > 0) & (at >= batch.prompt[:, None]), MASK)
    first = (at + begin) // BLOCK * BLOCK - begin  # [B, L] where a token's block begins
    own = block[:, :, None] == block[:, None]
    before = at < first[:, :, None]  # [B, L, L] the clean copy before the block
    causal = (at[None] <= at[:, None]).expand(rows, -1, -1)
    visible = torch.cat((torch.cat((own, before), 2), torch.cat((torch.zeros_like(causal), causal), 2)), 1)
    dtype = next(model.parameters()).dtype
    additive = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)[:, None]
    states = model.model(
        input_ids=torch.cat((noisy, ids), 1),
        attention_mask=additive,
        position_ids=torch.cat((at, at)).expand(rows, -1),
        use_cache=False,
    ).last_hidden_state
    weights = masks * FADE ** (place - 1.0)
    drafts = _mean(model.lm_head(states[:, :length][masks]), ids[masks], weights[masks])
    wanted = target.weights[:, 1:] > 0
    clean = model.lm_head(states[:, length:-1][wanted])
    return (1 - share) * _mean(clean, ids[:, 1:][wanted], target.weights[:, 1:][wanted]) + share * drafts


def _mean(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    each = F.cross_entropy(logits.float(), labels, reduction="none")
    return (each * weights).sum() / weights.sum()
