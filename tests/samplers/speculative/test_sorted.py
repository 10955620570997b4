"""A nested drafter: which of its layers run for which tokens, and that the text is the target's."""

from __future__ import annotations

from collections import Counter
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.sorted import NestedState
from tests.grids import thinned
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, apart, distribution, greedy, named, near, path, target
from tests.samplers.spec_checks import refused_specs


@pytest.mark.parametrize(
    ("tau", "temperature"), thinned(product([0, 0.95, 1], [0.0, 1.0]), lambda tau, temperature: tau == 0.95)
)
def test_every_distribution_is_that_of_a_whole_forward_of_the_exit(tau: float, temperature: float) -> None:
    """So the K/V that a part lacked are computed from the right states, whatever was accepted in between."""
    exits, levels, forward = (1, 2, 4), Counter[int](), NestedState.forward

    def watched(self: NestedState, draft: Draft, nodes: torch.Tensor) -> torch.Tensor:
        logits = forward(self, draft, nodes)
        for row, node in enumerate(nodes[:, 0].tolist()):
            if node < 0:
                continue
            text = [*self.context.text.row(row).tolist(), *path(draft, row, node)]
            each = [distribution(near(), text, layers=slice(0, stop)) for stop in exits]
            sure = [bool(some.softmax(-1).max() >= tau) and tau < 1 for some in each]
            level = sure.index(True) if any(sure) else len(exits) - 1
            levels[level] += 1
            assert apart(logits[row, 0], each[level]) < 5e-5
        return logits

    with named(near=near()), patch.object(NestedState, "forward", watched):
        spec = f"sorted:name=near,exits=1-2-4,tau={tau},k=4"
        done = run(target(), spec, RAGGED, NEW, temperature=temperature)
    assert max(map(max, done.trace.accepted)) >= 1
    assert set(levels) == ({0} if tau == 0 else {2} if tau == 1 else {0, 1, 2})


def shallow(layers: int) -> LanguageModel:
    """The first layers of `near`, with its norm and head."""
    model, whole = toy_ar(0, 5, 3.0, layers=layers), near()
    own, theirs = (dict(each.decoder.named_parameters()) for each in (model, whole))  # type: ignore[attr-defined]
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(theirs[name])
    return model


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_at_the_ends_of_tau_it_is_a_model_of_as_many_layers(temperature: float) -> None:
    drafted = []
    with named(near=near(), short=shallow(2)):
        for spec in (
            "sorted:name=near,exits=2-4,tau=0",
            "model:name=short",
            "sorted:name=near,tau=1",
            "model:name=near",
            "sorted:name=near,tau=0",  # by default the first exit is half of the four layers
        ):
            done = run(target(), f"{spec},k=3", RAGGED, NEW, temperature=temperature)
            drafted.append((rows(done), done.trace.accepted, done.trace.drafted))
    assert drafted[0] == drafted[1] == drafted[4]
    assert drafted[2] == drafted[3]
    assert drafted[0] != drafted[2]


def test_a_layer_runs_once_on_a_token_and_only_if_it_is_needed() -> None:
    """Queries of each part: all tokens in the first, in the others those up to the last token that needed the part."""
    plans: list[Plan] = []
    run_part = LanguageModel.run

    def watched(self: LanguageModel, plan: Plan, cache: object = None) -> object:
        if self is model:
            plans.append(plan)
        return run_part(self, plan, cache)  # type: ignore[arg-type]

    model = near()
    for tau in (0.0, 0.95, 1.0):
        plans.clear()
        with named(near=model), patch.object(LanguageModel, "run", watched):
            done = run(target(), f"sorted:name=near,exits=1-2-4,tau={tau},k=4", [[1, 0, 2]], 20)
        queries, calls = np.zeros(3, dtype=int), np.zeros(3, dtype=int)
        for plan in plans:
            assert plan.layers is not None
            part = plan.layers.start  # as the exits are, 1-2-4
            queries[part] += int((plan.slots >= 0).sum())
            calls[part] += 1
        tokens = done.draft_forwards[0]
        assert calls[0] == tokens
        if tau == 0:
            assert calls[1:].tolist() == queries[1:].tolist() == [0, 0]
        elif tau == 1:
            assert set(calls) == {tokens}
            assert len(set(queries)) == 1
        else:
            assert 0 < calls[2] < calls[1] < calls[0]
            assert queries[2] <= queries[1] <= queries[0]
            assert queries[1] > calls[1], "what was left out is filled up, several tokens in one forward"
    model = toy_ar(0, 4, layers=2)
    model.decoder.head.weight.data.zero_()  # type: ignore[attr-defined]
    plans.clear()
    with named(flat=model), patch.object(LanguageModel, "run", watched):
        run(toy_ar(1, 4), "sorted:name=flat,exits=1-2,tau=0.25,k=3", [[1, 2]], 9)
    assert {plan.layers.start for plan in plans if plan.layers} == {0}, "of four equal tokens each has a quarter"


def test_one_drafter_serves_two_targets() -> None:
    """The same with trained weights is in `tests/test_train_text.py`."""
    other = toy_ar(1, 5, 3.0, layers=3)
    with named(near=near()):
        spec = "sorted:name=near,exits=1-2-4,tau=0.9,k=4"
        for model in (target(), other):
            assert rows(run(model, spec, RAGGED, NEW)) == rows(run(model, "sequential", RAGGED, NEW))
    assert rows(run(target(), "sequential", RAGGED, NEW)) == greedy()


test_what_makes_no_sense_is_refused = refused_specs(
    [
        ("sorted", "sorted: name is missing"),
        ("sorted:name=near,exits=3-2", "sorted: exits lists rising numbers of layers joined by '-', got '3-2'"),
        ("sorted:name=near,exits=0-2", "sorted: exits lists rising numbers"),
        ("sorted:name=near,exits=2-x", "sorted: exits lists rising numbers"),
        ("sorted:name=near+beam", "sorted drafts chains"),
    ],
    family="ar",
)


def test_an_exit_that_the_drafter_does_not_have_is_refused() -> None:
    with named(near=near()), pytest.raises(SpecError, match="exits of toy must be at most 4, got 2-6"):
        run(target(), "sorted:name=near,exits=2-6", [[1]], 3)
