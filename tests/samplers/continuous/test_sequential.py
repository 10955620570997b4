"""`sequential` for vectors: one token per step, each given all earlier ones."""

from __future__ import annotations

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.registry import resolve
from tests.samplers.continuous.test_mar import GOLDEN
from tests.samplers.vector_toys import generate


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def test_it_is_mar_with_as_many_steps_as_tokens(model: ContinuousModel) -> None:
    one, other = generate(model, "sequential"), generate(model, "mar:steps=16")
    assert (one.latents == other.latents).all()  # type: ignore[union-attr]
    assert one.nfe == (16,)
    assert [len(step.positions) for step in one.trace.steps[0]] == [1] * 16
    assert generate(model, "mar:steps=900").nfe == (16,)


def test_a_row_alone_is_the_row_in_any_batch(model: ContinuousModel) -> None:
    together = generate(model, "sequential", labels=(3, 1), seeds=(5, 6), cfg=2.5)
    alone = generate(model, "sequential", labels=(1,), seeds=(6,), cfg=2.5)
    scale = np.abs(alone.latents).max()  # type: ignore[arg-type]
    np.testing.assert_allclose(together.latents[1] / scale, alone.latents[0] / scale, atol=1e-5)  # type: ignore[index]
    assert (together.trace.commit_step[1] == alone.trace.commit_step[0]).all()


def test_what_is_refused() -> None:
    assert resolve("sequential", "continuous").exact == "distribution"
    with pytest.raises(SpecError, match="head must be at least 2"):
        resolve("sequential:head=1", "continuous")
    with pytest.raises(SpecError, match="unknown parameter 'steps'"):
        resolve("sequential:steps=3", "continuous")
