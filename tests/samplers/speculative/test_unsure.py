"""The confidence stop: a draft ends after the first token of low confidence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.speculative.length.unsure import Unsure
from pardec.samplers.speculative.shape.beam import Beam
from pardec.samplers.speculative.shape.chain import Chain
from pardec.samplers.speculative.shape.dyspec import DySpec
from pardec.samplers.speculative.shape.template import Template
from tests.samplers.fake_draft_model import FakeDraftModel, best_fixed, context, grown, nodes, speed, written


def test_it_stops_below_tau_only() -> None:
    stage = context(written([[1], [2], [3]]))
    assert Unsure() == Unsure(0.4)
    assert Unsure(0.5).budget(7, stage, None).tolist() == [7, 7, 7]
    assert Unsure(0.5).stop(torch.tensor([0.49, 0.5, 0.9]), 0, stage, None).tolist() == [True, False, False]


@pytest.mark.parametrize("shape", [Chain(), Template("2-2-2-2"), DySpec(200, 3), Beam(2, 20)])
def test_a_tree_ends_after_the_level_where_its_surest_node_is_unsure(shape: object) -> None:
    draft_model = FakeDraftModel(written([[row, row % 5] for row in range(32)]), vocab=5)
    draft = grown(shape, draft_model, [4] * 32, length=Unsure(0.7))
    whole = grown(shape, draft_model, [4] * 32)
    deep = [int(draft.depth[row, :size].max()) for row, size in enumerate(draft.sizes)]
    assert len(set(deep)) > 2
    for row, levels in enumerate(deep):
        # Heard before level d: node 0 for d = 1, and what had children for the ones after it.
        paths = [(), *nodes(draft, row)]
        for level in range(levels - 1):
            said = [
                float(torch.from_numpy(draft_model.logits(row, p)).softmax(-1).max()) for p in paths if len(p) == level
            ]
            assert max(said) >= 0.7
        if levels < 4:
            parents = {p[:-1] for p in paths if len(p) == levels}
            said = [float(torch.from_numpy(draft_model.logits(row, p)).softmax(-1).max()) for p in parents]
            assert max(said) < 0.7
        assert deep[row] <= int(whole.depth[row].max())


def test_it_beats_the_best_fixed_length_where_confidence_says_something() -> None:
    drawn = np.random.RandomState(3)
    sure = np.where(drawn.rand(600, 10) < 0.7, 0.97, 0.35)
    uniform = np.where(sure > 0.9, 0.95, 0.1)
    for c in (0.05, 0.2, 0.5):
        assert speed(Unsure(), uniform, c, 10, sure) > 1.01 * best_fixed(uniform, c, 10)


def test_tau_is_a_probability() -> None:
    with pytest.raises(SpecError, match="unsure: tau must lie in \\[0, 1\\], got 1.5"):
        Unsure(1.5)
