"""BiLD's fallback: the target predicts the token about which the drafter is unconfident."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers.speculative.length.fallback import Fallback
from pardec.samplers.speculative.length.unsure import Unsure
from pardec.samplers.speculative.shape.beam import Beam
from pardec.samplers.speculative.shape.chain import Chain
from pardec.samplers.speculative.shape.dyspec import DySpec
from pardec.samplers.speculative.shape.template import Template
from tests.samplers.fake_draft_model import FakeDraftModel, best_fixed, context, grown, speed, written


def test_it_stops_below_the_bound_only() -> None:
    stage = context(written([[1], [2], [3]]))
    assert Fallback().below == 0.6
    assert Fallback(0.5).budget(7, stage, None).tolist() == [7, 7, 7]
    assert Fallback(0.5).stop(torch.tensor([0.49, 0.5, 0.9]), 0, stage, None).tolist() == [True, False, False]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", [Chain(), Template("2-2-2-2"), DySpec(30, 2), Beam(2, 30)])
def test_its_drafts_are_one_level_shorter_than_those_that_keep_the_unsure_token(
    shape: object, temperature: float
) -> None:
    text = written([[row, row % 5] for row in range(32)])
    short = grown(shape, FakeDraftModel(text, vocab=5), [4] * 32, length=Fallback(0.7), temperature=temperature)
    long = grown(shape, FakeDraftModel(text, vocab=5), [4] * 32, length=Unsure(0.7), temperature=temperature)
    seen = set()
    for row in range(32):
        deep = [int(draft.depth[row, : int(draft.sizes[row])].max()) for draft in (short, long)]
        assert deep[0] == deep[1] - 1 or deep == [4, 4]
        seen.add(deep[0])
    assert 0 in seen
    assert len(seen) > 1
    assert short.q is None or short.q.shape[:2] == short.tokens.shape


def test_it_beats_the_best_fixed_length_where_confidence_says_something() -> None:
    drawn = np.random.RandomState(3)
    sure = np.where(drawn.rand(600, 10) < 0.7, 0.97, 0.35)
    uniform = np.where(sure > 0.9, 0.95, 0.1)
    for c in (0.05, 0.2):
        assert speed(Fallback(), uniform, c, 10, sure) > 1.01 * best_fixed(uniform, c, 10)
