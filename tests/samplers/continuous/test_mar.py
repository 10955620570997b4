"""`mar`: groups by the cosine schedule, guidance, independent rows, and the events of each round."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.continuous.contracts import ImageRequest
from pardec.samplers.continuous.loop import decode
from pardec.samplers.events import Finished, RowFinished, Sampled, Started
from pardec.samplers.ops.unmasking import unmasking
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from tests.samplers.vector_toys import generate

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def test_groups_are_those_of_a_cosine() -> None:
    """Computed by hand from S cos(pi/2 (k+1)/K): 16 cos = 14.8, 11.3, 6.1, 0."""
    assert unmasking(16, 4).bounds.tolist() == [0, 2, 5, 10, 16]
    assert unmasking(16, 4).left.tolist() == [14, 11, 6, 1]
    assert unmasking(16, 1).bounds.tolist() == [0, 16]
    assert unmasking(4, 4).bounds.tolist() == [0, 1, 2, 3, 4]
    assert unmasking(256, 64).scale(3.0, "constant").tolist() == [3.0] * 64
    linear = unmasking(256, 64).scale(3.0, "linear")
    assert linear[0] == pytest.approx(1 + 2 * 1 / 256)
    assert linear[-1] == pytest.approx(1 + 2 * 255 / 256)
    assert (np.diff(linear) >= 0).all()


def test_events_tell_what_each_round_draws(model: ContinuousModel) -> None:
    request = ImageRequest((1, 2), Keyed((8, 9)))
    first, *between, last = decode(model, resolve("mar:steps=4", "continuous"), request)
    assert isinstance(first, Started)
    assert isinstance(last, Finished)
    steps = [event for event in between if isinstance(event, Sampled)]
    ends = [event for event in between if isinstance(event, RowFinished)]
    assert [int(step.committed.sum()) for step in steps] == [4, 6, 10, 12]
    assert [end.row for end in ends] == [0, 1]
    for step in steps:
        assert (step.tokens == np.where(step.open, -1, 0)).all()
        assert (step.latents[step.open] == 0).all()
        assert step.settled.tolist() == [[*row, True].index(True) for row in step.open.tolist()]
        assert (step.latents[~step.open] == last.latents[~step.open]).all()  # type: ignore[index]
    assert last.nfe == (4, 4)
    assert last.forward_rows == (4, 4)
    assert last.tokens_fed == (64, 64)
    assert set(last.seconds) == {"backbone", "head"}
    assert [len(step.positions) for step in last.trace.steps[0]] == [2, 3, 5, 6]
    assert sorted(place for step in last.trace.steps[0] for place in step.positions) == list(range(16))
    assert (last.trace.commit_step[0] != last.trace.commit_step[1]).any()  # each row has an order of its own


def test_a_row_alone_is_the_row_in_any_batch(model: ContinuousModel) -> None:
    together = generate(model, "mar:steps=5", labels=(3, 1, 4), seeds=(5, 6, 7), cfg=2.5)
    for row, (label, seed) in enumerate(((3, 5), (1, 6), (4, 7))):
        alone = generate(model, "mar:steps=5", labels=(label,), seeds=(seed,), cfg=2.5)
        scale = np.abs(alone.latents).max()
        np.testing.assert_allclose(together.latents[row] / scale, alone.latents[0] / scale, atol=1e-5)  # type: ignore[index]
        assert (together.trace.commit_step[row] == alone.trace.commit_step[0]).all()


def test_settings_reach_the_picture(model: ContinuousModel) -> None:
    plain = generate(model, "mar:steps=4").latents
    assert np.array_equal(plain, generate(model, "mar:steps=4").latents)  # type: ignore[arg-type]
    for spec, more in (
        ("mar:steps=4", {"temperature": 0.5}),
        ("mar:steps=4", {"cfg": 3.0}),
        ("mar:steps=4,last=x1", {}),
        ("mar:steps=4,last=noise", {}),
        ("mar:steps=4,head=5", {}),
        ("mar:steps=3", {}),
    ):
        assert not np.array_equal(plain, generate(model, spec, **more).latents), (spec, more)  # type: ignore[arg-type]
    constant = generate(model, "mar:steps=4,guidance=constant", cfg=3.0).latents
    assert not np.allclose(constant, generate(model, "mar:steps=4", cfg=3.0).latents)  # type: ignore[arg-type]
    assert generate(model, "mar:steps=4", cfg=3.0).forward_rows == (8,)


def test_no_class_is_guided_nowhere(model: ContinuousModel) -> None:
    free, guided = (generate(model, "mar:steps=4", labels=(-1,), cfg=cfg).latents for cfg in (None, 3.0))  # type: ignore[arg-type]
    np.testing.assert_allclose(free, guided, rtol=1e-3, atol=1e-3 * float(np.abs(free).max()))  # type: ignore[arg-type]


def test_what_cannot_work_is_refused() -> None:
    for spec, match in (
        ("mar:last=x2", "map, x1, noise"),
        ("mar:guidance=cubic", "linear, constant"),
        ("mar+sequential", "several parts"),
        ("threshold", "masked models"),
        ("lookup", "autoregressive models"),
    ):
        with pytest.raises(SpecError, match=match):
            resolve(spec, "continuous")
    with pytest.raises(SpecError, match="vectors"):
        resolve("mar:steps=4", "ar")
    assert resolve("mar:steps=4").exact == "distribution"
