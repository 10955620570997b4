"""`dawn`: confident positions, those induced by known tokens, and independent ones; by hand and naive."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.compatibility import fit
from pardec.samplers.masked.contracts import Update
from pardec.samplers.masked.select.dawn import Dawn
from pardec.samplers.registry import resolve
from tests.reference import naive_dependence as naive
from tests.samplers.dependence_parity import MODELS, attending, compare, steps_with
from tests.samplers.heldout_answers import answered
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import MASK, fill, prompts, request, run, toy

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


def test_every_bound_includes_the_value_itself() -> None:
    """Four tokens of exactly 0.5 are sure, or independent; or three that attend 0.25 to a known one are induced.

    The mean of what four tokens attend to the known one, 0.1875, is a sink above that alone.
    """
    halves = (0.5, 0.5, 0.5, 0.5)
    asked = request([[7] * 4], [0], block_length=4)
    rest = "edge=0.25,sink=0.1875,layers=1"
    for sure, forwards in ((0.5, 1), (0.51, 4)):
        assert run(attending(halves, {}), f"dawn:low=1,induce=1,high={sure},{rest}", asked).nfe == (forwards,)
        assert run(attending(halves, {}), f"dawn:low={sure},induce=1,high=1,{rest}", asked).nfe == (forwards,)
    known, edges = request([[0, 7, 7, 7]], [1], block_length=3), {(at, 0): 0.25 for at in (1, 2, 3)}
    for induce, forwards in ((0.5, 1), (0.51, 3)):
        spec = f"dawn:low=1,induce={induce},high=0.9,{rest}"
        assert run(attending((0.95, 0.5, 0.5, 0.5), edges), spec, known).nfe == (forwards,)
    for high, forwards in ((0.5, 1), (0.51, 3)):  # and the known one, of 0.5, is an anchor
        spec = f"dawn:low=1,induce=0.3,high={high},{rest}"
        assert run(attending((0.5, 0.4, 0.4, 0.4), edges), spec, known).nfe == (forwards,)
    # A bound of no attention is above what is exactly 0.
    assert steps_with(DAWN.replace("edge=0.3", "edge=0"), {}) == HAND["nothing depends"][2]
    # Of a row of four the known token is a sink above 0.1, of one of eight, 0.094, it is none and induces three.
    rows = request([[0, 11, 11, 11], [0, *[11] * 7]], [1, 1], block_length=7)
    model = attending((0.95, *[0.5] * 7), edges)
    assert run(model, "dawn:low=1,induce=0.5,high=0.9,edge=0.25,sink=0.1,layers=1", rows).nfe == (3, 5)


SETTINGS = (
    {"low": 0.3, "induce": 0.2, "high": 0.4, "edge": 0.05, "sink": 0.1, "layers": 1},
    {"low": 0.1, "induce": 0.05, "high": 0.2, "edge": 0.04, "sink": 0.05, "layers": 2},
    {"low": 0.05, "induce": 0.6, "high": 0.9, "edge": 0.03, "sink": 1.0, "layers": 4},
)


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_naive_rule(name: str) -> None:
    together = 0
    for settings in SETTINGS:
        spec = "dawn:" + ",".join(f"{key}={value}" for key, value in settings.items())
        together += compare(name, spec, lambda settings=settings: naive.dawn(**settings))  # type: ignore[misc]
    assert together > 5


def test_open_parameters_are_the_published_ones() -> None:
    assert str(fit(resolve("dawn"), toy("llada")).select) == str(
        fit(resolve("dawn:low=0.75,induce=0.7,edge=0.07,sink=0.01"), toy("dream")).select
    )
    assert str(fit(resolve("dawn:low=0.5"), toy("dream")).select) == str(
        resolve("dawn:low=0.5,induce=0.75,edge=0.1,sink=0.03").select
    )


def test_a_token_outside_of_a_forward_is_an_anchor_by_its_commit() -> None:
    """With `dual` the prompt is not computed, and still anchors the positions that depend on it."""
    settings = "low=1,induce=0,high=0.2,edge=0.001,sink=1,layers=2"
    whole, cached = (
        fill(toy("llada", sharp=1.2), f"dawn:{settings}{cache}", prompts((5, 2)), (8, 8), block_length=8)
        for cache in ("", "@dual")
    )
    assert whole.nfe == cached.nfe


def _none(at: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(at, dtype=torch.bool)


def anchors_are_sure_and_before_the_end_of_the_block() -> None:
    """Tokens outside of a forward: one of the prompt counts with 1, a committed one with its score."""
    rule = Dawn(low=0.5, induce=0.4, high=0.9, edge=0.1, sink=1)
    canvas = Canvas((torch.tensor([1, *[MASK] * 4, 1, MASK, 1]),), (1,), mask_id=MASK, pad_id=4, block_length=4)
    which = torch.zeros_like(canvas.eligible)
    which[0, :2] = True
    canvas.commit(Update(which, torch.zeros_like(canvas.window), torch.tensor([[0.95, 0.85, 0, 0]])))
    evidence = SimpleNamespace(
        predictions=SimpleNamespace(has=_none, at=lambda at: SimpleNamespace(greedy=(at, at.float())))
    )
    depends = torch.ones(1, canvas.window.shape[1], 9, dtype=torch.bool)
    found = rule._anchors(depends, SimpleNamespace(evidence=evidence), canvas)  # type: ignore[arg-type]
    # The prompt's token, and .95 of the two that were committed; the given tokens at 5 and 7 are after the block.
    assert found[0].nonzero()[:, 0].tolist() == [0, 1]


test_what_is_refused = refused_specs(
    [
        ("lopa+dawn", "dawn reads the probabilities of committed tokens, and lopa keeps none"),
    ]
)


@pytest.mark.seeds("arXiv:2602.06953")
def test_keeping_apart_what_depends_is_right_more_often_in_as_many_forwards() -> None:
    """Latin squares, whose cells depend on each other; `edge` is for rows of 60 to 70 tokens."""
    for case, (edges, row, steps) in HAND.items():
        assert steps_with(DAWN, edges, row) == steps, case  # type: ignore[arg-type]
    test_open_parameters_are_the_published_ones()
    anchors_are_sure_and_before_the_end_of_the_block()
    test_every_bound_includes_the_value_itself()
    test_it_is_the_naive_rule("llada")
    apart, careful = answered("tiny-llada", "grids", "dawn:low=0.5,induce=0.9,sink=0.1,edge=0.015", 40)
    loose, plain = answered("tiny-llada", "grids", "threshold:tau=0.8", 40)
    assert sum(careful.nfe) <= sum(plain.nfe)
    assert apart > loose + 2
    looser, _ = answered("tiny-llada", "grids", "dawn:low=0.5,induce=0.9,sink=0.1,edge=1", 40)
    assert apart > looser + 10  # without dependences it is a threshold of 0.5
