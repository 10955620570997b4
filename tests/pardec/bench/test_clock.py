"""The clock: nested parts exclude each other, stages stay unchanged, and timed loops give the same tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pardec
from pardec.bench.clock import Clock
from pardec.bench.decode import prepare
from pardec.bench.parts import PARTS, split
from pardec.bench.shapes import build
from pardec.models.errors import SpecError
from pardec.samplers.events import Finished

MAR = {
    "model_type": "mar",
    **{f"{part}_{what}": number for part in ("encoder", "decoder") for what, number in
       (("embed_dim", 16), ("depth", 1), ("num_heads", 2))},
    "tokens": 4, "token_size": 3, "class_num": 8, "buffer_size": 2, "diffloss_d": 1, "diffloss_w": 16,
    "num_sampling_steps": "5",
}  # fmt: skip


@pytest.fixture
def ticks(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that advances one second each time it is read."""
    clock, read = Clock(torch.device("cpu")), iter(range(10_000))
    monkeypatch.setattr(clock, "_now", lambda: float(next(read)))
    return clock


def test_an_inner_part_is_not_booked_on_its_outer_one(ticks: Clock) -> None:
    inner = ticks.wrap(lambda: None, "inner")
    outer = ticks.wrap(lambda: (inner(), inner()), "outer")
    outer()
    assert ticks.seconds == {"outer": 3.0, "inner": 2.0}  # outer: before, between and after the two


def test_a_part_that_fails_is_left(ticks: Clock) -> None:
    def fails() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        ticks.wrap(fails, "part")()
    assert ticks.seconds == {"part": 1.0}
    assert not ticks.inside("part")


def test_a_clocked_stage_is_a_copy() -> None:
    @dataclass(frozen=True)
    class Stage:
        k: int = 3

        def propose(self) -> int:
            return self.k

    stage, clock = Stage(), Clock(torch.device("cpu"))
    made = clock.stage(stage, ("propose",), "drafting")
    assert (made.propose(), made, vars(stage)) == (3, stage, {"k": 3})
    assert list(clock.seconds) == ["drafting"]


def decoded(model: pardec.Model, call: Any) -> Finished:
    *_, last = model.run(call, steps=False)
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("spec", ["sequential", "credit+threshold:tau=0.2+localleap@dual", "threshold+prophet@prefix"])
def test_masked_rows_with_a_clock_are_those_without(model: pardec.Model, spec: str) -> None:
    call = prepare(model, spec, 2, 3, 8, 4)
    made, expected = split(model.network, call), decoded(model, call)
    assert (made.tokens == expected.tokens).all()
    assert made.steps == max(expected.nfe)
    assert tuple(made.seconds) == PARTS
    assert all(made.seconds[part] > 0 for part in ("backbone", "head", "decision", "host"))
    assert made.seconds["draft"] == 0
    assert sum(fed.rows * fed.width for fed in made.fed) == sum(expected.tokens_fed) + expected.padding


@pytest.mark.parametrize(
    ("spec", "drafts"),
    [
        ("sequential", False),
        ("lookup", False),
        ("recycling", False),
        ("model:name=tiny-llama-draft,k=3", True),
        ("earlyexit:layers=1,k=2", True),
    ],
)
def test_drafted_rows_with_a_clock_are_those_without(spec: str, drafts: bool) -> None:
    model = pardec.load("tiny-llama", device="cpu", dtype="float32")
    call = prepare(model, spec, 2, 24, 8, None)
    made, expected = split(model.network, call), decoded(model, call)
    assert (made.tokens == expected.tokens).all()
    assert made.steps == max(expected.nfe)
    assert (made.seconds["draft"] > 0) == drafts
    assert all(made.seconds[part] > 0 for part in ("backbone", "head", "decision", "host"))
    assert len(made.fed) == made.steps  # the drafter's own forwards are not the model's


def test_vectors_with_a_clock_are_those_without() -> None:
    model = build("little-mar", MAR, device="cpu", dtype="float32")
    call = prepare(model, "mar:steps=3", 2, 0, 0, None)
    made, expected = split(model.network, call), decoded(model, call)
    assert expected.latents is not None
    assert (made.tokens == expected.latents).all()
    assert made.steps == 3
    assert all(made.seconds[part] > 0 for part in ("backbone", "head", "decision", "host"))


def test_a_sampler_that_decodes_twice_is_refused(model: pardec.Model) -> None:
    with pytest.raises(SpecError, match="decodes twice"):
        split(model.network, prepare(model, "oracle", 1, 3, 4, 4))
