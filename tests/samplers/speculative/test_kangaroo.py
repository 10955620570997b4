"""The target's first layers and an adapter draft: their distributions, the layers that run, and tokens fed again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.decoder import DecoderLayer
from pardec.models.draft_modules.kangaroo import Kangaroo as Module
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.draft.kangaroo import AdapterState
from pardec.samplers.speculative.loop import VerifyLoop
from tests.grids import thinned
from tests.reference import naive_kangaroo
from tests.samplers.ar_toys import request, rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, apart, greedy, path, target
from tests.samplers.module_files import random_module, random_modules
from tests.samplers.speculative import test_unsure as unsure

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")

ALWAYS = ((3, "template:widths=3-2-1", 0.0), (1, "unsure:tau=0.6", 1.0), (3, "pausing", 0.0))


@pytest.fixture(autouse=True)
def modules() -> Iterator[None]:
    with random_modules():
        yield


@cache
def whole(layers: int, text: tuple[int, ...]) -> Tensor:
    """[V]: logits after a text, by a whole forward of the first layers and the adapter written from the paper."""
    model: Any = target()
    sizes = model.decoder.config
    shape = {"heads": sizes.heads, "kv_heads": sizes.kv_heads, "head_dim": sizes.head_dim}
    plan = Plan.full(torch.tensor([list(text)]), model.visible())
    parts = {name: getattr(plan, name) for name in Plan.__slots__} | {"layers": slice(0, layers)}
    states = model.forward(Plan(**parts)).states[0]
    normed = naive_kangaroo.states(*naive_kangaroo.adapter(model.width, **shape), states)
    return normed[-1] @ model.decoder.head.weight.T


@pytest.mark.parametrize(
    ("layers", "shape", "temperature"),
    thinned(
        product([1, 3], [*SHAPES, "unsure:tau=0.6", "pausing"], [0.0, 1.0]),
        lambda layers, shape, temperature: (layers, shape, temperature) in ALWAYS,
    ),
)
def test_every_distribution_is_that_of_a_whole_forward(layers: int, shape: str, temperature: float) -> None:
    """So the adapter's K/V are right after any acceptance, rejection, or round without a draft."""
    count, forward = Counter[int](), AdapterState.forward

    def watched(self: AdapterState, draft: Any, nodes: Tensor) -> Tensor:
        logits = forward(self, draft, nodes)
        for row, column in zip(*np.nonzero(nodes.numpy() >= 0), strict=True):
            node = int(nodes[row, column])
            text = (*self.context.text.row(row).tolist(), *path(draft, row, node))
            assert apart(logits[row, column], whole(layers, text)) < 5e-5
            count[node] += 1
        return logits

    with patch.object(AdapterState, "forward", watched):
        form = "chain" if shape == "pausing" else shape
        spec = registry.resolve(f"kangaroo:name=toy,k=4,layers={layers}+{form}", "ar", sampling=temperature > 0)
        if shape == "pausing":  # rows draft in some rounds only
            spec = replace(spec, length=Pausing())
        done = run(target(), spec, RAGGED, NEW, temperature=temperature)
    assert count[0] > 10
    assert max(map(max, done.trace.accepted)) >= 2


def the_adapter_is_fed_a_token_once_and_two_behind_a_draft_that_stood() -> None:
    """The last token of a fully accepted draft is fed together with the token after it."""
    model, fed, run_adapter = target(), list[list[int]](), Module.run

    def watched(self: Module, plan: Plan, cache: Any = None) -> Any:
        fed.append([int(position) for position in plan.positions[0] if position >= 0])
        return run_adapter(self, plan, cache)

    prompt = [1, 0, 2, 2]
    with patch.object(Module, "run", watched):
        done = run(model, "kangaroo:name=toy,k=3,layers=3", [prompt], 30)
    assert fed[0] == [0, 1, 2, 3, 4], "the prompt with its bonus token"
    begins, at = [], len(prompt)
    for drafted, accepted in zip(done.trace.drafted[0][1:], done.trace.accepted[0][1:], strict=True):
        begins.append((at, drafted, accepted))
        at += accepted + 1
    first = [positions for positions in fed if positions[-1] in {begin for begin, drafted, _ in begins if drafted}]
    counts = set()
    for (_, drafted, accepted), (begin, again, _) in pairwise(begins):
        if drafted and again:
            positions = next(each for each in first if each[-1] == begin and each in fed)
            assert len(positions) == (2 if accepted == drafted else 1)
            counts.add(len(positions))
    assert counts == {1, 2}


@pytest.mark.seeds("arXiv:2404.18911")
def test_drafting_is_lossless_and_verifying_runs_the_remaining_layers_alone() -> None:
    """Every layer runs once per verified token; the first layers' states and K/V from drafting are reused."""
    the_adapter_is_fed_a_token_once_and_two_behind_a_draft_that_stood()
    for shape in ("chain", "pausing"):
        test_every_distribution_is_that_of_a_whole_forward(1, shape, 0.0)
    test_every_distribution_is_that_of_a_whole_forward(3, "template:widths=3-2-1", 1.0)
    unsure.test_it_stops_below_tau_only()
    queries, plans = Counter[int](), list[tuple[slice | None, int]]()
    forward, run_ = DecoderLayer.forward, LanguageModel.run

    def watched(self: DecoderLayer, h: Tensor, step: Any, index: int, picked: Any = None) -> Tensor:
        queries[index] += len(h)
        return forward(self, h, step, index, picked)

    def noted(self: LanguageModel, plan: Plan, cache: Any = None) -> Any:
        plans.append((plan.layers, plan.width))
        return run_(self, plan, cache)

    prompt = [1, 0, 2, 2]
    with patch.object(DecoderLayer, "forward", watched), patch.object(LanguageModel, "run", noted):
        done = run(target(), "kangaroo:name=toy,k=3,layers=2", [prompt], 20)
    assert rows(done) == rows(run(target(), "sequential", [prompt], 20))
    verified = [width for part, width in plans if part == slice(2, None)]
    others = sum(width for part, width in plans if part is None)  # the prompt, and rounds without room for a draft
    assert len(verified) >= 4
    assert sum(verified) + others == queries[2] == queries[3] == done.tokens_fed[0]
    assert all(part in (None, slice(0, 2), slice(2, None)) for part, _ in plans)
    assert queries[0] == queries[1] == queries[2]
    assert max(done.trace.accepted[0]) >= 1


def test_rows_take_the_states_of_their_own_with_them() -> None:
    """In a batch of two, a third row replaces the first, which had gained another number of tokens."""
    spec, model = registry.resolve("kangaroo:name=toy,k=3,layers=3", "ar"), target()
    module = draft_models.for_text(spec, model)

    def begun(given: list[list[int]], new: list[int], rounds: int) -> VerifyLoop:
        source = JoinableSource(range(len(given)))
        loop = VerifyLoop(model, spec, request(given, new, draft_model=module, source=source))
        for _ in range(rounds):
            loop.round()
        return loop

    loop, other = begun(RAGGED[:2], [14, 17], 3), begun(RAGGED[2:3], [9], 1)
    loop.put(np.array([0]), other)
    while len(loop.text) and not loop.finished_rows().any():
        loop.round()
    for at, want in enumerate((greedy()[2], greedy()[1])):
        text = loop.text.row(at).tolist()
        assert text == want[: len(text)]
        assert len(text) > len(RAGGED[2 - at]) + 3


def test_what_makes_no_sense_is_refused() -> None:
    for spec, message in (
        ("kangaroo", "kangaroo: name is missing"),
        ('auto:model="kangaroo:name=toy"', "kangaroo drafts within every verify forward"),
    ):
        with pytest.raises(SpecError, match=message):
            registry.resolve(spec, "ar")
    with pytest.raises(ModelError, match="reads the output of layer 4, counted from 1, and toy has 4 layers"):
        random_module("kangaroo", target(), layers=4)
