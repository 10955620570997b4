"""A drafter on another device: only tokens and logits cross, and the decoded tokens stay the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.other_device import OtherDevice, for_device
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.simulation import Machine, simulate
from tests.pardec.simulation import test_schedules as schedules
from tests.pardec.simulation.timelines import violations
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, near, target

CPU = torch.device("cpu")


def wrapped(model: LanguageModel, home: torch.device) -> LanguageModel:
    """The model wrapped as if it were on another device."""
    return replace(model, decoder=OtherDevice(model.decoder, model.device, home))


@pytest.mark.parametrize("shape", ["chain", "beam:beams=3,nodes=8"])
def test_tokens_and_rounds_are_those_of_a_drafter_beside_the_target(shape: str) -> None:
    spec = f"model:name=near,k=4+{shape}"
    with named(near=near()):
        beside = run(target(), spec, RAGGED, NEW)
        with patch.object(draft_models, "on_device", wrapped):
            apart = run(target(), spec.replace("k=4", "k=4,device=cpu"), RAGGED, NEW)
    assert rows(apart) == rows(beside) == greedy()
    assert apart.trace.accepted == beside.trace.accepted


def test_a_model_that_is_there_stays_as_it_is() -> None:
    assert for_device(near(), CPU) is near()
    away = for_device(replace(near(), device=torch.device("meta")), CPU)
    assert (away.device, away.choice) == (CPU, "on meta for requests on cpu")


def test_the_spec_says_where_it_is_loaded() -> None:
    asked: list[Any] = []
    with patch.object(draft_models, "language_model", lambda name, device, dtype: asked.append(device) or near()):
        run(target(), 'model:name=near,device="cpu"', RAGGED, 4)
        run(target(), "model:name=near", RAGGED, 4)
    assert asked == [CPU, CPU]
    assert registry.resolve('model:name=near,device="cuda:1"', "ar").draft.device == "cuda:1"
    with pytest.raises(SpecError, match="device='gpu' is no device of torch"):
        registry.resolve("model:name=near,device=gpu", "ar")


@pytest.mark.seeds("arXiv:2412.18934")
def test_a_drafter_on_a_second_device_beats_the_target_alone_on_the_clock() -> None:
    """The target's forward is slow and grows with its tokens; the drafter is fast, over a link that tokens cross once
    per round and direction. Output is greedy.
    """
    schedules.test_on_one_device_a_plain_clock_is_rounds_times_k_drafts_and_a_verification()
    schedules.test_links_are_paid_twice_a_round()
    schedules.test_a_forward_takes_as_long_as_its_tokens_on_its_own_device()
    model = pardec.load("tiny-llama", device="cpu")
    prompts = [problem.prompt for problem in pardec.task("records").problems(split="heldout", n=4, seed=7)]
    devices = {"cpu": {"target": {"layer": [1e-3, 5e-4]}}, "gpu": {"draft": {"layer": 1e-4}}}
    links = [{"between": ["cpu", "gpu"], "seconds": 1e-5, "seconds_per_byte": 1e-9}]
    machine = Machine.of({"roles": {"target": "cpu", "draft": "gpu"}, "devices": devices, "links": links})
    spec = "model:name=tiny-llama-draft,k=4,device=cpu"
    report = simulate(model, prompts, sampler=spec, machine=machine, schedules=["dovetail"], max_new_tokens=40)
    clock = report.of("dovetail")
    assert report.result.tokens == model.generate(prompts, max_new_tokens=40).tokens
    assert violations(clock.timeline) == []
    sends = [each for each in clock.timeline.intervals if each.copies]
    assert clock.rounds < len(sends) <= 2 * clock.rounds
    assert sum(each.end - each.start for each in sends) < 0.05 * clock.seconds
    assert clock.speed_up(report.of("sequential")) > 1.5  # type: ignore[operator]
