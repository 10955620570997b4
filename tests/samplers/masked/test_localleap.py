"""`localleap` by hand, compared with the published rule; special cases."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.masked.contracts import Canvas, Proposal
from pardec.samplers.masked.widen.localleap import LocalLeap
from tests.reference import naive_selects as naive
from tests.samplers.eight_tokens import proposal, steps_of
from tests.samplers.heldout_answers import answered
from tests.samplers.parity import FAMILIES, agree
from tests.samplers.toys import fill, prompts, same, toy

# Probabilities .95 .60 .91 .30 .99 .85 .901 .45; a best position committed for want of a surer one is no anchor.
STEPS = {
    "threshold:tau=0.98+localleap:radius=1": [1, 4, 2, 6, 0, 0, 3, 5],  # .99 takes .85 along, .30 stays
    "threshold:tau=0.98+localleap:radius=2": [1, 2, 0, 4, 0, 0, 0, 3],
    "threshold:tau=0.98+localleap": [0, 1, 0, 3, 0, 0, 0, 2],  # radius 4 reaches everything, .60 is too low
    "threshold:tau=0.94+localleap:relaxed=0.5,radius=1": [0, 0, 1, 4, 0, 0, 2, 3],  # two anchors, .95 takes .60
    "threshold:tau=0.98+localleap:relaxed=0.2": [0] * 8,
    "sequential+localleap:relaxed=0.9,radius=2": [1, 3, 0, 5, 0, 2, 0, 4],  # here every best one is an anchor
    "threshold:tau=0.98+localleap:radius=0": [1, 5, 2, 7, 0, 4, 3, 6],
}


def nothing_reaches_over_the_edge_of_a_block_or_into_what_is_given() -> None:
    spec = "threshold:tau=0.98+localleap:relaxed=0.2"
    assert steps_of(spec, block_length=4) == [0, 2, 1, 3, 4, 4, 4, 4]  # no anchor in the first block
    found = proposal("confidence")  # the eighth position is given
    chosen = torch.zeros_like(found.eligible)
    chosen[0, 7] = True
    assert torch.equal(LocalLeap().widen(chosen, found, None, None), chosen)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("tau", "relaxed", "radius"), [(0.5, 0.3, 1), (0.6, 0.25, 2), (0.4, 0.2, 40)])
def test_with_a_threshold_it_is_the_published_rule(family: str, tau: float, relaxed: float, radius: int) -> None:
    length = {} if "sdar" in family else {"block_length": 8}
    spec = f"threshold:tau={tau}+localleap:relaxed={relaxed},radius={radius}"
    agree(spec, lambda: naive.localleap(naive.sequential, tau, relaxed, radius), family=family, **length)


@pytest.mark.parametrize("base", ["threshold:tau=0.5", "factor@dual", "hierarchy@prefix"])
def test_without_a_radius_it_adds_nothing(base: str) -> None:
    model, given = toy(sharp=1.2), prompts((4, 7, 2))
    select, _, cache = base.partition("@")
    spec = f"{select}+localleap:relaxed=0.1,radius=0" + ("@" + cache if cache else "")
    one, other = fill(model, base, given, (9, 5, 11)), fill(model, spec, given, (9, 5, 11))
    assert all(same(one, row, other, row) for row in range(3))
    assert registry.resolve("sequential+localleap:radius=0").exact == "greedy"
    assert registry.resolve("sequential+localleap").exact == "relaxed"


def what_select_chose_is_kept() -> None:
    found = proposal("confidence")
    chosen = torch.tensor([[False, True, False, True, False, False, False, False]])
    wider = LocalLeap(relaxed=0.9, radius=1).widen(chosen, found, None, None)
    assert wider.tolist() == [[True, True, True, True, True, False, False, False]]
    just = LocalLeap(relaxed=float(found.score[0, 2]), radius=1).widen(chosen, found, None, None)
    assert just.tolist() == [[True, True, True, True, True, False, False, False]]  # .91 where .91 is asked for


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("localleap:relaxed=-0.5", r"relaxed must lie in \[0, 1\], got -0.5"),
        ("localleap:window=4", "unknown parameter 'window'"),
    ],
)
def test_bad_parameters(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        registry.resolve(spec)
    assert registry.resolve("entropy+threshold:tau=-0.1+localleap:relaxed=-0.5").widen


class OtherAnchors(LocalLeap):
    """As many anchors, half a block away from those of the rule."""

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        anchors = chosen.roll(chosen.shape[1] // 2, 1) & proposal.eligible
        return chosen | (super().widen(anchors, proposal, canvas, state) & (proposal.score >= self.relaxed))


@pytest.mark.seeds("arXiv:2510.07081")
def test_no_radius_changes_nothing_and_leaps_are_near_anchors_and_save_steps_at_equal_answers() -> None:
    for spec, steps in STEPS.items():
        assert steps_of(spec) == steps, spec
    nothing_reaches_over_the_edge_of_a_block_or_into_what_is_given()
    what_select_chose_is_kept()
    model, given = toy(sharp=1.2), prompts((4, 7, 2))
    one, other = (
        fill(model, f"threshold:tau=0.5{more}", given, (9, 5, 11)) for more in ("", "+localleap:relaxed=0.1,radius=0")
    )
    assert all(same(one, row, other, row) for row in range(3))
    right, plain = answered("tiny-llada", "lists", "threshold:tau=0.9+eos", 60)
    leapt, done = answered("tiny-llada", "lists", "threshold:tau=0.9+localleap:radius=2+eos", 60)
    assert abs(leapt - right) <= 0.6  # within a point of a hundred
    assert sum(done.nfe) < sum(plain.nfe)
    leaps = 0
    for steps in done.trace.steps:
        for step in steps:
            scored = dict(zip(step.positions, step.scores, strict=True))
            below = [position for position, score in scored.items() if score < 0.9]
            if len(scored) > 1:  # alone it is the loop's own progress
                anchors = [position for position in scored if position not in below]
                assert all(min(abs(position - anchor) for anchor in anchors) <= 2 for position in below)
                leaps += len(below)
    assert leaps > 8
    spec = "threshold:tau=0.9+localleap:radius=2+eos"
    near, found = answered("tiny-dream", "grids", spec, 60)
    other, control = answered(
        "tiny-dream", "grids", replace(registry.resolve(spec, "masked"), widen=(OtherAnchors(radius=2),)), 60
    )
    assert near >= other
    assert sum(found.nfe) < 0.97 * sum(control.nfe)
