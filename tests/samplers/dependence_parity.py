"""For selects that read attention: eight positions with given attention, and parity with a plain version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from tests.reference import naive_dependence as naive
from tests.samplers.parity import recorded
from tests.samplers.toys import prompts, request, run, table, toy

MODELS = ("llada", "dream", "recorded-llada", "recorded-dream")
SURE = (0.95, 0.6, 0.91, 0.3, 0.99, 0.85, 0.901, 0.45)


class Attending:
    """A model with a table of distributions, and attention [L, L] that is the same in each of `layers` layers."""

    def __init__(self, inner: Any, attention: Tensor) -> None:
        self.inner, self.attention = inner, attention

    def __call__(self, plan: Plan, cache: Any = None) -> Hidden:
        rows = self.attention[plan.positions.clamp(min=0)]
        if plan.attending is not None:
            rows = rows[torch.arange(len(rows))[:, None], plan.attending.clamp(min=0)]
        return replace(self.inner(plan, cache), attention=dict.fromkeys(plan.attention, rows))

    def new_cache(self, batch: int, capacity: int) -> Any:
        return self.inner.new_cache(batch, capacity)


def attending(probabilities: tuple[float, ...], edges: dict[tuple[int, int], float]) -> LanguageModel:
    """A model that gives token i that probability at position i; i attends to j by `edges`, and to nothing else."""
    size = len(probabilities)
    distributions = torch.zeros(size, size + 4)
    for p, sure in enumerate(probabilities):
        distributions[p, p] = sure
        distributions[p, size] = 1 - sure
        if sure < 0.5:  # the rest is spread, so that the token stays the likeliest
            distributions[p, size] = 0
            others = [at for at in range(size) if at != p]
            distributions[p, others] = (1 - sure) / len(others)
    attention = torch.zeros(size, size)
    for (i, j), weight in edges.items():
        attention[i, j] = weight
    model = table(distributions)
    return replace(model, decoder=Attending(model.decoder, attention))


def steps_with(spec: str, edges: dict[tuple[int, int], float], row: list[int] | None = None) -> list[int]:
    """The forward that commits each of the eight positions; entries of `row` that are not None are given tokens."""
    mask = len(SURE) + 3
    canvas = [mask if token is None else token for token in (row or [None] * len(SURE))]  # type: ignore[list-item]
    got = run(attending(SURE, edges), spec, request([canvas], [0], block_length=8))
    return got.trace.commit_step[0].tolist()


def model_of(name: str) -> LanguageModel:
    """A toy, or the checkpoint of a recorded set."""
    if name.startswith("recorded"):
        return recorded(name.split("-")[1])
    return toy(name, sharp=1.2)


def compare(name: str, spec: str, make: Callable[[], Any], *, block_length: int = 8, layers: int = 2) -> int:
    """Asserts that ragged rows get the tokens and steps of the naive rule; returns how many commits had company."""
    model = model_of(name)
    mask = model.decoding_config.mask_id
    assert mask is not None
    given, new, together = prompts((5, 2, 9), vocab=min(100, model.vocab_size)), (20, 16, 9), 0
    rows = [row + [mask] * count for row, count in zip(given, new, strict=True)]
    got = run(model, spec, request(rows, [len(row) for row in given], block_length=block_length))
    for row, canvas in enumerate(rows):
        tokens, when, nfe = naive.decode(model, canvas, len(given[row]), make(), block_length)
        assert got.trace.commit_step[row, : len(canvas)].tolist() == when
        assert got.tokens[row, : len(canvas)].tolist() == tokens
        assert got.nfe[row] == nfe
        together += new[row] - nfe
    return together
