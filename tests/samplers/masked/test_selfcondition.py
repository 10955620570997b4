"""`selfcondition`: the predictions of the step before are inputs, except at a block's first step.

Decoding with it as a whole is compared with transformers' own in tests/models/families/test_diffusion_gemma.py.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.contracts import Evidence
from pardec.samplers.masked.inputs.selfcondition import SelfCondition, Signal
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.registry import resolve
from tests.samplers.eight_tokens import LAWS, MASK
from tests.samplers.masked.test_denoise import random_canvas
from tests.samplers.toys import fill, prompts, request, toy


def test_expected_embeddings_by_hand() -> None:
    table = torch.arange(14.0).view(7, 2)
    canvas, stage = random_canvas(), SelfCondition()
    state = stage.start(canvas)
    assert stage.soft(canvas, state) is None
    asked = request([[MASK] * 8], [0], block_length=8)
    evidence = Evidence(DenseDistribution(LAWS.log()[None]), canvas.window, canvas.eligible, asked)
    stage.observe(evidence, lambda distribution: distribution @ table, canvas, state)
    assert not stage.soft(canvas, state).any()  # type: ignore[union-attr]  # the block has just begun
    canvas.block_started = np.zeros(1, dtype=bool)
    torch.testing.assert_close(stage.soft(canvas, state), (LAWS @ table)[None])
    known = np.arange(8)[None] != 2  # what is not predicted gives no signal
    stage.observe(replace(evidence, known=known), lambda distribution: distribution @ table, canvas, state)
    torch.testing.assert_close(stage.soft(canvas, state), (LAWS @ table * torch.from_numpy(known[0])[:, None])[None])


def test_a_row_s_new_block_does_not_clear_the_signal_of_others() -> None:
    begun: Any = SimpleNamespace(block_started=np.array([True, False]))
    signal = SelfCondition().soft(begun, Signal(torch.ones(2, 3, 1)))
    assert signal is not None
    assert signal.sum((1, 2)).tolist() == [0, 3]


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("selfcondition+threshold", "selfcondition is for a canvas of random tokens"),
        ("selfcondition+renoise", "is for models trained with it|is for models of random canvases"),
    ],
)
def test_models_of_masks_refuse_it(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        fill(toy("dream"), spec, prompts((3,)), 4)


def test_it_is_not_exact() -> None:
    assert resolve("selfcondition+renoise").exact == "relaxed"
