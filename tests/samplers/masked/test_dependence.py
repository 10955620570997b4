"""`dawn` and `dapd`: by hand, and against the naive rules over eager attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.hidden import Hidden
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers.masked.build import fit
from pardec.samplers.ops.independent import independent_set
from pardec.samplers.registry import resolve
from tests.reference import naive_dependence as naive
from tests.samplers.heldout_answers import answered
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import fill, prompts, request, run, table, toy

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


# --- by hand: eight positions, whose probabilities and attention are given ---

SURE = (0.95, 0.6, 0.91, 0.3, 0.99, 0.85, 0.901, 0.45)


class Attending:
    """A table of distributions, and attention [L, L] that is the same in each of `layers` layers."""

    def __init__(self, inner: Any, attention: Tensor) -> None:
        self.inner, self.attention = inner, attention

    def __call__(self, plan: Plan, cache: Any = None) -> Hidden:
        rows = self.attention[plan.positions.clamp(min=0)]
        if plan.attending is not None:
            rows = rows[torch.arange(len(rows))[:, None], plan.attending.clamp(min=0)]
        return replace(self.inner(plan, cache), attention=dict.fromkeys(plan.attention, rows))

    def new_cache(self, batch: int, capacity: int) -> Any:
        return self.inner.new_cache(batch, capacity)


def attending(probabilities: tuple[float, ...], edges: dict[tuple[int, int], float]) -> LanguageModel:
    """Position i gives token i that probability, and attends to j by `edges`, to nothing else."""
    size = len(probabilities)
    distributions = torch.zeros(size, size + 4)
    for p, sure in enumerate(probabilities):
        distributions[p, p] = sure
        distributions[p, size] = 1 - sure
        if sure < 0.5:  # the rest is spread, so that the token stays the likeliest
            distributions[p, size] = 0
            others = [at for at in range(size) if at != p]
            distributions[p, others] = (1 - sure) / len(others)
    attention = torch.zeros(size, size)
    for (i, j), weight in edges.items():
        attention[i, j] = weight
    model = table(distributions)
    return replace(model, decoder=Attending(model.decoder, attention))


def order(spec: str, edges: dict[tuple[int, int], float], row: list[int] | None = None) -> list[int]:
    mask = len(SURE) + 3
    canvas = [mask if token is None else token for token in (row or [None] * len(SURE))]  # type: ignore[list-item]
    got = run(attending(SURE, edges), spec, request([canvas], [0], block_length=8))
    return got.trace.commit_step[0].tolist()


DAWN = "dawn:low=0.5,induce=0.4,high=0.9,edge=0.3,sink=0.2,layers=1"
HAND: dict[str, tuple[dict[tuple[int, int], float], list[int | None] | None, list[int]]] = {
    # .95 .91 .99 .901 are sure; .6 and .85 depend on nothing; .3 and .45 are left to the next steps, one by one.
    "nothing depends": ({}, None, [0, 0, 0, 2, 0, 0, 0, 1]),
    # 1 depends on 5, so that of both only the surer goes.
    "conflict": ({(1, 5): 0.4}, None, [0, 1, 0, 3, 0, 0, 0, 2]),
    "conflict, the other way": ({(5, 1): 0.4}, None, [0, 1, 0, 3, 0, 0, 0, 2]),
    "below edge": ({(1, 5): 0.29}, None, [0, 0, 0, 2, 0, 0, 0, 1]),
    # 7 is too unsure for `low`, but depends on 0, which is known and sure by the forward.
    "induced": ({(7, 0): 0.4}, [0, *[None] * 7], [-1, 0, 0, 1, 0, 0, 0, 0]),
    # The known token 3 is no anchor: the forward gives it .3.
    "no anchor": ({(7, 3): 0.4}, [None, None, None, 3, *[None] * 4], [0, 0, 0, -1, 0, 0, 0, 1]),
    # All attend to 0: a sink, on which nothing depends.
    "sink": ({(i, 0): 0.4 for i in range(1, 8)}, [0, *[None] * 7], [-1, 0, 0, 2, 0, 0, 0, 1]),
    # 2 is sure and induced by 0, and 1 depends on 2: it waits.
    "tied to what is induced and sure": ({(2, 0): 0.4, (1, 2): 0.4}, [0, *[None] * 7], [-1, 1, 0, 3, 0, 0, 0, 2]),
}


@pytest.mark.parametrize("case", HAND)
def test_dawn_by_hand(case: str) -> None:
    edges, row, steps = HAND[case]
    assert order(DAWN, edges, row) == steps  # type: ignore[arg-type]


def test_dapd_by_hand() -> None:
    # Nothing attends to anything: all at once, however unsure.
    assert order("dapd:share=1", {}) == [0] * 8
    # 0 and 4 attend to each other, .2 both ways together, and so do 4 and 7: 4, the surest, waits for neither; then
    # 2 of 8 are open, and .95 is sure.
    edges = {(0, 4): 0.2, (4, 7): 0.3}
    assert order("dapd:share=1", edges) == [1, 0, 0, 0, 0, 0, 0, 1 + 1]
    # With switch=0 the second step is again one of independence.
    assert order("dapd:share=1,switch=0", edges) == [1, 0, 0, 0, 0, 0, 0, 1]
    # Mutual attention .1 is no dependence above first=.1.
    assert order("dapd:share=1,first=0.1", {(0, 4): 0.2}) == [0] * 8
    assert order("dapd:share=1,first=0.09", {(0, 4): 0.2}) == [1, 0, 0, 0, 0, 0, 0, 0]


def test_independent_sets_are_those_of_a_greedy_pass() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        score = torch.randint(0, 6, (3, 9), generator=generator).float()
        nodes = torch.rand(3, 9, generator=generator) < 0.8
        conflict = torch.rand(3, 9, 9, generator=generator) < 0.15
        conflict = (conflict | conflict.transpose(1, 2)) & ~torch.eye(9, dtype=torch.bool)
        got = independent_set(score, nodes, conflict)
        for row in range(3):
            ranked = sorted((i for i in range(9) if nodes[row, i]), key=lambda i: (-float(score[row, i]), i))
            taken = naive.independent(ranked, lambda i, j, pairs=conflict[row]: bool(pairs[i, j]))
            assert sorted(taken) == got[row].nonzero()[:, 0].tolist()


# --- the naive rules ---


@lru_cache
def model_of(name: str) -> LanguageModel:
    if name.startswith("recorded"):
        return load(GOLDEN / name.split("-")[1] / "checkpoint", device="cpu", dtype="float32")
    return toy(name, sharp=1.2)


def compare(name: str, spec: str, make: Callable[[], Any], *, block_length: int = 8, layers: int = 2) -> int:
    """Ragged rows decode to the tokens and steps of the naive rule; how many positions went with others."""
    model = model_of(name)
    mask = model.decoding_config.mask_id
    assert mask is not None
    given, new, together = prompts((5, 2, 9), vocab=min(100, model.vocab_size)), (20, 16, 9), 0
    rows = [row + [mask] * count for row, count in zip(given, new, strict=True)]
    got = run(model, spec, request(rows, [len(row) for row in given], block_length=block_length))
    for row, canvas in enumerate(rows):
        tokens, when, nfe = naive.decode(model, canvas, len(given[row]), make(), block_length)
        assert got.trace.commit_step[row, : len(canvas)].tolist() == when
        assert got.tokens[row, : len(canvas)].tolist() == tokens
        assert got.nfe[row] == nfe
        together += new[row] - nfe
    return together


MODELS = ("llada", "dream", "recorded-llada", "recorded-dream")
SETTINGS = (
    {"low": 0.3, "induce": 0.2, "high": 0.4, "edge": 0.05, "sink": 0.1, "layers": 1},
    {"low": 0.1, "induce": 0.05, "high": 0.2, "edge": 0.04, "sink": 0.05, "layers": 2},
    {"low": 0.05, "induce": 0.6, "high": 0.9, "edge": 0.03, "sink": 1.0, "layers": 4},
)


@pytest.mark.parametrize("name", MODELS)
def test_dawn_is_the_naive_rule(name: str) -> None:
    together = 0
    for settings in SETTINGS:
        spec = "dawn:" + ",".join(f"{key}={value}" for key, value in settings.items())
        together += compare(name, spec, lambda settings=settings: naive.dawn(**settings))  # type: ignore[misc]
    assert together > 5


@pytest.mark.parametrize("name", MODELS)
def test_dapd_is_the_naive_rule(name: str) -> None:
    layers = model_of(name).layers
    together = 0
    for first, last, switch, tau, share in ((0.01, 0.05, 0.5, 0.2, 0.3), (0.03, 0.06, 0.3, 0.1, 1.0)):
        spec = f"dapd:first={first},last={last},switch={switch},tau={tau},share={share}"
        count = max(1, math.ceil(share * layers))
        together += compare(
            name,
            spec,
            lambda first=first, last=last, switch=switch, tau=tau, count=count: naive.Dapd(  # type: ignore[misc]
                first=first, last=last, switch=switch, tau=tau, layers=count
            ),
        )
    assert together > 5


# --- parameters, and what goes with what ---


def test_open_parameters_are_the_published_ones() -> None:
    assert str(fit(resolve("dawn"), toy("llada")).select) == str(
        fit(resolve("dawn:low=0.75,induce=0.7,edge=0.07,sink=0.01"), toy("dream")).select
    )
    assert str(fit(resolve("dawn:low=0.5"), toy("dream")).select) == str(
        resolve("dawn:low=0.5,induce=0.75,edge=0.1,sink=0.03").select
    )


def test_a_token_outside_of_a_forward_is_an_anchor_by_its_commit() -> None:
    """With `dual` the prompt is not queried, and what it induces goes on being induced."""
    settings = "low=1,induce=0,high=0.2,edge=0.001,sink=1,layers=2"
    whole, cached = (
        fill(toy("llada", sharp=1.2), f"dawn:{settings}{cache}", prompts((5, 2)), (8, 8), block_length=8)
        for cache in ("", "@dual")
    )
    assert whole.nfe == cached.nfe


test_what_is_refused = refused_specs(
    [
        ("dawn:low=1.5", r"low must lie in \[0, 1\], got 1.5"),
        ("dawn:layers=0", "layers must be at least 1, got 0"),
        ("lopa+dawn", "dawn reads the probabilities of committed tokens, and lopa keeps none"),
        ("dapd:share=2", r"share must lie in \[0, 1\], got 2"),
    ]
)


@pytest.mark.seeds("arXiv:2602.06953")
def test_keeping_apart_what_depends_is_right_more_often_in_as_many_forwards() -> None:
    """On Latin squares, whose cells depend on each other; `edge` is for rows of 60 to 70 tokens."""
    apart, careful = answered("tiny-llada", "grids", "dawn:low=0.5,induce=0.9,sink=0.1,edge=0.015", 40)
    loose, plain = answered("tiny-llada", "grids", "threshold:tau=0.8", 40)
    assert sum(careful.nfe) <= sum(plain.nfe)
    assert apart > loose + 2
    looser, _ = answered("tiny-llada", "grids", "dawn:low=0.5,induce=0.9,sink=0.1,edge=1", 40)
    assert apart > looser + 10  # without dependences it is a threshold of 0.5
