"""Prompt tokens and pseudo states written from the papers: one whole forward of one text, no cache, no tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible


def prompt_logits(model: LanguageModel, text: Sequence[int], vectors: Tensor, each: int, attention: str) -> Tensor:
    """The mean logits [s, V] of each step's vectors after `text`; `vectors` [s * each, E], step by step."""
    size, count = len(text), len(vectors)
    visible = torch.zeros(size + count, size + count, dtype=torch.bool)
    for query in range(size + count):
        for key in range(query + 1):
            both = min(query, key) >= size
            own = (query - size) % each == (key - size) % each
            visible[query, key] = not both or attention == "decoder" or own
    positions = torch.tensor([[*range(size), *(size + index // each for index in range(count))]])
    slots = torch.arange(size + count)[None]
    plan = Plan(
        torch.tensor([[*text, *[-1] * count]]), positions, slots, Visible.mask(visible[None]),
        torch.tensor([size + count]), slots,
        soft=torch.cat((torch.zeros(size, vectors.shape[1]).to(vectors), vectors))[None],
    )  # fmt: skip
    logits = model.decoder(plan).logits()[0, size:]
    return torch.stack([step.mean(0) for step in logits.split(each)])


def pseudo_logits(model: LanguageModel, text: Sequence[int], layers: Sequence[int], makers: Sequence[Tensor]) -> Tensor:
    """Logits [k, V] of the pseudo states after `text`, the j-th by a matrix [E, E] from the output of layers[j]."""
    size = len(text)
    tokens = torch.tensor([list(text)])
    states, start = None, 0
    for layer, maker in zip([*layers, model.layers - 1], [*makers, None], strict=True):
        width = size if states is None else states.shape[1]
        order = torch.arange(width)[None]
        plan = Plan(
            tokens if states is None else torch.full((1, width), 0),
            order,
            order,
            Visible.causal(),
            torch.tensor([width]),
            order,
            soft=states,
            layers=slice(start, layer + 1),
        )
        hidden = model.decoder(plan)
        if maker is not None:
            states = torch.cat((hidden.states, hidden.states[:, size - 1 : size] @ maker.T), 1)
        start = layer + 1
    return hidden.logits()[0, size:]
