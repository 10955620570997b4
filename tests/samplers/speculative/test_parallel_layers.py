"""`model:parallel=N`: greedy decoding's tokens, exact K/V of committed tokens, and less time with more devices."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.speculative.draft_model import DraftModelState
from pardec.simulation import Machine, simulate
from tests.models import test_layer_groups as groups
from tests.pardec.simulation import test_schedules as schedules
from tests.pardec.simulation.timelines import violations
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, target


@pytest.mark.parametrize("shape", ["chain", "beam:beams=3,nodes=8"])
def test_committed_tokens_have_the_keys_and_values_of_a_whole_forward(shape: str) -> None:
    """Checked before every draft; K/V of drafted tokens, which were approximate, were computed again."""
    drafter, draft, errors = toy_ar(3, 5, 3.0, layers=4), DraftModelState.draft, list[float]()

    def looked(self: DraftModelState, *arguments: Any) -> Any:
        for row, cached in enumerate(self.cached.tolist()):
            if cached:
                whole = self.model.new_cache(1, cached)
                text = torch.as_tensor(self.context.text.row(row)[:cached])[None]
                self.model.run(Plan.full(text, self.model.visible()), whole)
                for mine, exact in zip((*self.cache.k, *self.cache.v), (*whole.k, *whole.v), strict=True):
                    errors.append(float((mine[row, :cached] - exact[0, :cached]).abs().max()))
        return draft(self, *arguments)

    with named(other=drafter), patch.object(DraftModelState, "draft", looked):
        assert rows(run(target(), f"model:name=other,k=4,parallel=3+{shape}", RAGGED, NEW)) == greedy()
    assert len(errors) > 100
    assert max(errors) < 1e-4


def test_a_group_of_one_layer_is_the_drafter_itself() -> None:
    with named(same=target()):
        assert run(target(), "model:name=same,k=3,parallel=1", RAGGED, 13).trace.accepted == ((0, 3, 3, 3),) * 4
    with pytest.raises(SpecError, match="parallel must be at least 1, got 0"):
        registry.resolve("model:name=same,parallel=0", "ar")


@pytest.mark.seeds("arXiv:2502.02493")
def test_layers_in_parallel_draft_faster_and_lose_little_acceptance() -> None:
    """With as many devices as layers per group, the target drafting for itself is exact and faster."""
    groups.test_layers_fall_into_groups_behind_the_first()
    groups.test_a_group_adds_what_each_part_adds_to_its_input(2)
    schedules.test_easyspec_takes_stages_in_place_of_layers_but_for_the_first_forward(5, 2)
    model = pardec.load("tiny-llama", device="cpu")
    prompts = [problem.prompt for problem in pardec.task("records").problems(split="heldout", n=4, seed=7)]
    names = ("gpu1", "gpu2", "gpu3")
    devices = {"gpu0": {"target": {"layer": 1.0}}} | {name: {"draft": {"layer": 0.5}} for name in names}
    links = [{"between": [one, other], "seconds": 0.01} for one in ("gpu0", *names) for other in names if one < other]
    machine = Machine.of({"roles": {"target": "gpu0", "draft": list(names)}, "devices": devices, "links": links})
    expected = model.generate(prompts, max_new_tokens=48).tokens
    for parallel in (2, 3):
        spec = f"model:name=tiny-llama,k=4,parallel={parallel}"
        report = simulate(model, prompts, sampler=spec, machine=machine, max_new_tokens=48)
        assert report.result.tokens == expected
        assert report.result.acceptance_rate > 0.7
        assert report.of("easyspec").seconds < report.of("plain").seconds
        assert violations(report.of("easyspec").timeline) == []
