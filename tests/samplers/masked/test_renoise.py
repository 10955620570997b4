"""`renoise`: every position that a step does not keep gets a random token.

Decoding with it as a whole is compared with transformers' own in tests/models/families/test_diffusion_gemma.py.
"""

from __future__ import annotations

import pytest

from pardec.models.errors import SpecError
from pardec.samplers.masked.revise.renoise import Renoise
from pardec.samplers.registry import resolve
from tests.samplers.eight_tokens import TOKENS
from tests.samplers.masked.test_denoise import proposed, random_canvas
from tests.samplers.toys import fill, prompts, toy


def test_what_is_taken_back_by_hand() -> None:
    """The jointly confident positions 0 2 4 are committed and the others reopened, up to the last step."""
    stage, canvas = Renoise(gamma=0.4, confidence=0, steps=2), random_canvas()
    state, proposal = stage.start(canvas), proposed(canvas)
    revision = stage.revise(canvas.eligible, proposal, canvas, state)
    assert revision.rewrite is not None
    assert revision.rewrite.which.nonzero()[:, 1].tolist() == [0, 2, 4]
    assert revision.reopen.nonzero()[:, 1].tolist() == [1, 3, 5, 6, 7]
    assert revision.rewrite.tokens[0].tolist() == proposal.tokens[0].tolist()
    assert revision.hold.tolist() == [True]
    canvas.step, canvas.block_started = canvas.step + 1, canvas.block_started & False
    revision = stage.revise(canvas.eligible, proposed(canvas), canvas, state)
    assert revision.rewrite is not None
    assert revision.rewrite.which.all()
    assert revision.rewrite.tokens[0].tolist() == list(TOKENS)
    assert not revision.reopen.any()
    assert revision.hold.tolist() == [False]


def test_it_brings_the_select_with_its_numbers() -> None:
    spec = str(resolve("renoise:gamma=0.3,confidence=0.2,steps=7").spec)
    assert "denoise:gamma=0.3,confidence=0.2,steps=7+" in spec


@pytest.mark.parametrize(
    ("spec", "says"),
    [("renoise", "is for models of random canvases"), ("renoise+threshold", "renoise needs the select 'denoise'")],
)
def test_models_of_masks_and_other_selects_are_refused(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        fill(toy("dream"), spec, prompts((3,)), 4)
