"""Beam trees: the plain search and the final selection."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.shape.beam import Beam
from tests.samplers.fake_draft_model import FakeDraftModel, grown, nodes, written


def naive(draft_model: FakeDraftModel, row: int, beams: int, count: int, deep: int) -> set[tuple[int, ...]]:
    scores: dict[tuple[int, ...], float] = {}
    frontier = [()] if deep else []
    at: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(deep):
        level: dict[tuple[int, ...], float] = {}
        for path in frontier:
            distribution = torch.from_numpy(draft_model.logits(row, path)).float().double().log_softmax(-1).numpy()
            for token in np.argsort(-distribution)[:beams]:
                if np.isfinite(distribution[token]):
                    level[*path, int(token)] = at[path] + distribution[token]
        scores |= level
        at |= level
        frontier = sorted(level, key=lambda path: -level[path])[:beams]  # type: ignore[arg-type]
    return set(sorted(scores, key=lambda path: -scores[path])[:count])


@pytest.mark.parametrize(("beams", "count"), [(1, 4), (2, 6), (3, 5), (4, 40)])
@pytest.mark.parametrize("least", [-np.inf, 0.0])  # with 0.0 some laws have fewer tokens than beams
def test_it_is_the_search_written_out(beams: int, count: int, least: float) -> None:
    draft_model = FakeDraftModel(written([[1], [2], [3], [0, 4]]), least=least)
    budget = [4, 1, 3, 0]
    draft = grown(Beam(beams, count), draft_model, budget)
    for row, deep in enumerate(budget):
        assert set(nodes(draft, row)) == naive(draft_model, row, beams, count, deep)
    assert draft.q is None
    assert len(draft_model.calls) <= 4
    assert all(len(call[0]) <= beams for call in draft_model.calls)


def test_nodes_that_cannot_be_kept_are_not_expanded() -> None:
    """Of a nearly flat distribution the two likeliest nodes are both of the first level."""
    draft_model = FakeDraftModel(written([[1]]), sharp=0.1)
    draft = grown(Beam(4, 2), draft_model, [5])
    assert [len(path) for path in nodes(draft, 0)] == [1, 1]
    assert [sum(node >= 0 for node in call[0]) for call in draft_model.calls] == [1, 2]


def test_a_temperature_draws_nothing() -> None:
    cold = grown(Beam(3, 8), FakeDraftModel(written([[1], [2]])), [3, 3])
    warm = grown(Beam(3, 8), FakeDraftModel(written([[1], [2]])), [3, 3], temperature=1.0)
    assert warm.q is None
    assert [nodes(warm, row) for row in (0, 1)] == [nodes(cold, row) for row in (0, 1)]


def test_independent_siblings_are_refused() -> None:
    with pytest.raises(SpecError, match="beam keeps the most likely children, and kseq needs independent samples"):
        registry.resolve("model:name=x+beam+kseq", "ar", sampling=True)
