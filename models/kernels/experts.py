"""A sparse MLP: routes each token to experts, and sums their weighted outputs.

    y = sum over the chosen experts e of w_e * down_e(activation(gate_e x) * up_e x)

Shazeer et al., https://arxiv.org/abs/1701.06538; biased sigmoid scores and groups, https://arxiv.org/abs/2412.19437
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..decoder_config import Activation, ExpertsConfig
from .matmul import matmul

Stack = Tensor | Sequence[Tensor] | nn.ParameterList  # one matrix per expert
Glu = Callable[[Tensor, Activation], Tensor]
_ALIGNED = 8  # bfloat16 entries of a row that the grouped matmul of GPUs loads at once


def route(
    x: Tensor, weight: Tensor, bias: Tensor | None, config: ExpertsConfig, blocks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The experts of each token [T, k] int64, and their weights [T, k] float32, from states x [T, W].

    Args:
        weight: [E, W] float32, the router's.
        bias: [E] float32, added to the scores as `config.bias` says.
        blocks: [T] int64, the block of each token, where `config.pool` bounds the experts of a block.
    """
    logits = F.linear(x.float(), weight)
    scores = logits.sigmoid() if config.scores == "sigmoid" else logits.softmax(-1)
    ranked = scores if bias is None else scores + bias
    if config.bias == "weights":
        scores = ranked
    if config.groups > 1:
        grouped = ranked.view(len(ranked), config.groups, -1)  # [T, G, E / G]
        best = grouped.topk(min(2, grouped.shape[2]), dim=2).values.sum(2).topk(config.top_groups, dim=1).indices
        stays = torch.zeros(grouped.shape[:2], dtype=torch.bool, device=x.device).scatter_(1, best, True)
        ranked = grouped.masked_fill(~stays[:, :, None], -torch.inf).flatten(1)
    if config.pool and blocks is not None:
        ranked = ranked.masked_fill(~_pool(ranked, blocks, config.pool), -torch.inf)
    chosen = ranked.topk(config.top, dim=1).indices
    weights = scores.gather(1, chosen)
    if config.normalize:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return chosen, weights * config.scale if config.scale != 1 else weights


def _pool(ranked: Tensor, blocks: Tensor, size: int) -> Tensor:
    """[T, E] bool: the `size` experts with the highest score of any token in the token's block."""
    _, block = torch.unique(blocks, return_inverse=True)
    highest = ranked.new_full((int(block.max()) + 1, ranked.shape[1]), -torch.inf)
    highest.scatter_reduce_(0, block[:, None].expand_as(ranked), ranked, "amax")
    inside = torch.zeros_like(highest, dtype=torch.bool).scatter_(1, highest.topk(size, dim=1).indices, True)
    return inside[block]


def mix(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Stack,
    down: Stack,
    activation: Activation,
    glu: Glu,
) -> Tensor:
    """Sums of the chosen experts' outputs by weight [T, W], summed in float32, of states x [T, W].

    Only experts that some token has chosen are read, one after another; all at once on a GPU where they are stacked.

    Args:
        chosen: [T, k] int64; `weights` [T, k] float32.
        gate_up: [2 I, W] of each expert, gate before up, a list or stacked; `down` [W, I] the same.
    """
    tops = chosen.shape[1]
    order = chosen.flatten().argsort(stable=True)
    token = order // tops
    rows = x.index_select(0, token)
    counts = chosen.flatten().bincount(minlength=len(gate_up))
    if isinstance(gate_up, Tensor) and isinstance(down, Tensor) and _grouped(x, gate_up, down):
        ends = counts.cumsum(0, dtype=torch.int32)
        inner = glu(F.grouped_mm(rows, gate_up.mT, offs=ends), activation)
        outputs = F.grouped_mm(inner, down.mT, offs=ends)
    else:
        parts = []
        for index, part in zip(counts.nonzero()[:, 0].tolist(), _split(rows, counts), strict=True):
            parts.append(matmul(glu(matmul(part, gate_up[index]), activation), down[index]))
        outputs = torch.cat(parts) if parts else rows
    weighted = outputs.float() * weights.flatten().index_select(0, order)[:, None]
    return torch.zeros(x.shape, dtype=torch.float32, device=x.device).index_add_(0, token, weighted).to(x.dtype)


def _split(rows: Tensor, counts: Tensor) -> Sequence[Tensor]:
    return torch.split(rows, [count for count in counts.tolist() if count])


def _grouped(x: Tensor, gate_up: Tensor, down: Tensor) -> bool:
    """Whether one grouped matmul can run all experts."""
    aligned = gate_up.shape[2] % _ALIGNED == 0 and down.shape[2] % _ALIGNED == 0
    return x.is_cuda and x.dtype == torch.bfloat16 and aligned
