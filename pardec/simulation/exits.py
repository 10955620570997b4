"""How often an early exit of the target predicts the token after a round, from which Mirror-SD continues to draft.

Mirror Speculative Decoding: Breaking the Serial Barrier in LLM Inference, https://arxiv.org/abs/2510.13161

    hit  <=>  the token after the accepted path is among the kappa likeliest of head(norm(h_l)) there

One forward over each finished row gives this for all layers: with causal attention, states of an accepted path are
those of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pardec.models.cuda_graphs.runner import plain_decoder
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from .setting import Round


@dataclass(frozen=True)
class Exit:
    """An early exit after one layer: it hits if the next token is among its `kappa` likeliest."""

    layer: int
    kappa: int
    ranks: tuple[tuple[int, ...], ...]  # [row][round] of the layer, see `ExitRanks`

    def hit(self, row: int, round: int) -> bool:
        """Whether the exit predicted the token after this round's accepted path."""
        return self.ranks[row][round] < self.kappa

    @property
    def rate(self) -> float:
        """The share of rounds with a hit."""
        hits = [rank < self.kappa for row in self.ranks for rank in row]
        return sum(hits) / max(len(hits), 1)


@dataclass(frozen=True)
class ExitRanks:
    """The ranks of the tokens after rounds in each layer's exit; 0 is its likeliest token."""

    ranks: tuple[tuple[tuple[int, ...], ...], ...]  # [layer][row][round]; every layer but the last

    def at(self, layer: int, kappa: int) -> Exit:
        """The hits of an exit after `layer`, counted from 0."""
        return Exit(layer, kappa, self.ranks[layer])

    def accepted_by_rank(self, layer: int, kappa: int, rows: Sequence[Sequence[Round]]) -> list[float | None]:
        """The mean number of accepted rollout tokens after each of the exit's first `kappa` tokens.

        That rollout is the draft of the next round, which continues the same text. None where there was none.
        """
        sums: list[list[int]] = [[] for _ in range(kappa)]
        for ranks, row in zip(self.ranks[layer], rows, strict=True):
            for rank, following in zip(ranks, row[1:], strict=False):
                if rank < kappa and following.depth:
                    sums[rank].append(following.accepted)
        return [sum(each) / len(each) if each else None for each in sums]


@torch.inference_mode()
def exit_ranks(model: LanguageModel, texts: Sequence[np.ndarray], rows: Sequence[Sequence[Round]]) -> ExitRanks:
    """The ranks at every layer but the last, for rows of token ids `texts`, each [L], prompt included.

    Raises ModelError for a model that is not a native one with causal attention.
    """
    stack = plain_decoder(model.decoder)
    if stack is None or model.decoding_config.attention != "causal":
        raise ModelError(
            f"{model.name} gives no states of its layers", "mirror needs a native model with causal attention"
        )
    layers = tuple(range(model.layers - 1))
    ranks: list[list[tuple[int, ...]]] = [[] for _ in layers]
    for text, row in zip(texts, rows, strict=True):
        tokens = torch.as_tensor(text, device=model.device)[None]
        ends = torch.tensor([each.before + each.gained - 1 for each in row], device=model.device, dtype=torch.int64)
        plan = Plan.full(tokens, model.visible())
        taps = model.run(Plan(**{**{name: getattr(plan, name) for name in Plan.__slots__}, "hidden": layers})).taps
        for layer in layers:
            logits = stack.project(taps[layer][0, ends - 1]).float()  # [R, V]
            own = logits.gather(1, tokens[0, ends][:, None])
            ranks[layer].append(tuple((logits > own).sum(1).tolist()))
    return ExitRanks(tuple(map(tuple, ranks)))
