"""`order=checker`: the cells of one colour of a checkerboard first, the others together at the last step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.ops.unmasking import unmasking, unmasking_in_halves
from tests.samplers.readable_classes import PLAIN, readable
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, toy

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def test_the_schedule_by_hand() -> None:
    """Of 8 tokens in 3 steps 8 cos(pi k / 6) are left: 6, 4, 0. Guidance counts the later half as missing too."""
    halves = unmasking_in_halves(16, 4)
    assert halves.bounds.tolist() == [0, 2, 4, 8, 16]
    assert halves.left.tolist() == [14, 12, 9, 1]
    assert unmasking_in_halves(9, 9).bounds.tolist() == [0, 1, 2, 3, 4, 5, 9]
    assert unmasking_in_halves(9, 2).bounds.tolist() == [0, 5, 9]
    assert unmasking_in_halves(16, 1).bounds.tolist() == unmasking(16, 1).bounds.tolist()


@pytest.mark.parametrize("spec", ["mar:steps=4,order=checker", "fasthybrid:steps=4,order=checker,short=4"])
def test_cells_of_one_colour_come_last(model: ContinuousModel, spec: str) -> None:
    got = generate(model, spec, labels=(3, 1, 4), seeds=(5, 6, 7), cfg=2.0)
    for when in got.trace.commit_step:
        board = when.reshape(4, 4)
        assert (board[::2, 1::2] == 3).all()
        assert (board[1::2, ::2] == 3).all()
        assert np.bincount(when).tolist() == [2, 2, 4, 8]
    assert len({tuple(when) for when in got.trace.commit_step.tolist()}) == 3
    alone = generate(model, spec, labels=(1,), seeds=(6,), cfg=2.0)
    assert (alone.trace.commit_step[0] == got.trace.commit_step[1]).all()


def test_a_causal_model_has_its_own_order() -> None:
    causal = toy("causal", ToyHead(2, 3), ToyBackbone(4, 2, causal=True))
    with pytest.raises(SpecError, match="causal samples in raster order"):
        generate(causal, "mar:order=checker")


@pytest.mark.slow  # seconds for 12 images; the tests above have the rule
@pytest.mark.seeds("arXiv:2510.17171")
def test_classes_stay_readable_with_half_of_the_cells_in_the_last_step(model: ContinuousModel) -> None:
    test_the_schedule_by_hand()
    test_cells_of_one_colour_come_last(model, "mar:steps=4,order=checker")
    assert readable(f"{PLAIN},order=checker") >= readable(PLAIN) - 1
