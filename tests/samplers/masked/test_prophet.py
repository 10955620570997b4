"""`prophet`: when the answer counts as known, which positions are filled then, and when it must wait."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.masked.finish.prophet import Prophet
from pardec.samplers.registry import resolve
from tests.grids import chequered
from tests.reference.naive_prophet import Told, prophet
from tests.samplers.eight_tokens import LAWS
from tests.samplers.heldout_answers import answered
from tests.samplers.toys import BLOCK, MASK, fill, prompts, request, run, same, table, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)
NEVER = "early=1e9,mid=1e9,late=1e9"


REGIONS: dict[str, Any] = {
    "all": lambda prompt: lambda opened, block: opened,
    "block": lambda prompt: lambda opened, block: block,
    "answer": lambda prompt: lambda opened, block: [p for p in opened if prompt + 4 <= p < prompt + 7],
}
GAPS = [(2.0, 1.5, 0.8), (9.0, 1.2, 0.6), (9.0, 9.0, 0.3)]


def naive(model: Any, canvas: list[int], prompt: int, gaps: tuple[float, float, float], **more: Any) -> Told:
    region = REGIONS[more.pop("region")](prompt)
    return prophet(model, canvas, prompt, mask=MASK, block=BLOCK, gaps=gaps, region=region, **more)


def commits(got: Any, row: int) -> dict[int, int]:
    return {p: int(s) for p, s in enumerate(got.trace.commit_step[row]) if s >= 0}


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_follows_its_paper(family: str, region: str) -> None:
    filled = {"mean": 0, "least": 0}
    place = "start=4,length=3" if region == "answer" else f"region={region}"
    for seed, gaps in enumerate(GAPS):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        for gap in ((None, *filled)[seed],):
            said = "" if gap is None else f",gap={gap}"
            meant = gap or ("mean" if region == "answer" else "least")
            scale = 1.0 if meant == "mean" else 0.2  # the least of many gaps is small
            early, mid, late = some = tuple(scale * one for one in gaps)
            spec = f"fixed+prophet:{place},early={early},mid={mid},late={late},progress=steps{said}"
            got = fill(model, spec, given, NEW)
            for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
                canvas = [*prompt, *[MASK] * new]
                told = naive(model, canvas, len(prompt), some, region=region, steps=None, least=meant == "least")
                assert got.tokens[row, : len(told.tokens)].tolist() == told.tokens
                assert commits(got, row) == told.when
                assert got.nfe[row] == told.steps
                filled[meant] += told.steps < new
    assert all(filled.values()), "it never fired: the test shows nothing"


@pytest.mark.parametrize("gaps", [*GAPS, (0.5, 9.0, 0.4)])
@pytest.mark.parametrize("steps", [15, 24])
@pytest.mark.covers(1)
def test_idle_steps_of_a_plan_count_where_tokens_are_forced(steps: int, gaps: tuple[float, float, float]) -> None:
    """As in the published loop, an idle step advances the schedule, and the gap is tested at it."""
    idle, late = 0, 0
    for seed in range(6):
        model, given = toy("llada", seed=seed, sharp=1.2), prompts((3,), seed=seed)
        canvas = [*given[0], *[MASK] * 15]
        for p in (3, 4, 5, 9, 10):  # most of the first block and a part of the second
            canvas[p] = 2
        told = naive(model, canvas, 3, gaps, region="answer", steps=steps, least=False)
        spec = (
            f"fixed:steps={steps}+prophet:start=4,length=3,early={gaps[0]},mid={gaps[1]},late={gaps[2]},progress=steps"
        )
        got = run(model, spec, request([canvas], [3], block_length=BLOCK))
        assert got.tokens[0].tolist() == told.tokens
        assert commits(got, 0) == told.forwards
        assert got.nfe == (len(set(told.when.values())),)
        idle += told.idle > 0
        late += told.idle > 0 and len({*told.when.values()}) < sum(token == MASK for token in canvas)
    assert idle, "no step was idle: the test shows nothing"
    if gaps == GAPS[1]:
        assert late, "it never fired after an idle step"


def a_hand_worked_gap() -> None:
    """Tokens of 0.6 and 0.2 are ln 3 = 1.0986 apart in logits, whatever the other probabilities are."""
    distributions = torch.full((6, 8), 0.2 / 6)
    distributions[:, 1], distributions[:, 2] = 0.6, 0.2
    canvas = request([[0, 0, 7, 7, 7, 7]], [2], block_length=2)
    for gap, nfe in ((1.098, 1), (1.099, 4)):
        got = run(table(distributions), f"fixed+prophet:region=all,early={gap},mid=9,late=9", canvas)
        assert got.nfe == (nfe,)
        assert got.tokens[0].tolist() == [0, 0, 1, 1, 1, 1]
    # A progress of exactly 0.33 and 0.67, after 33 and 67 of 100 steps, belongs to the next third.
    hundred = request([[7] * 100], [0], block_length=100)
    for gaps, nfe in (("early=9,mid=1,late=9", 33), ("early=9,mid=9,late=1", 67)):
        got = run(table(distributions[:1].repeat(100, 1)), f"fixed+prophet:region=all,{gaps}", hundred)
        assert got.nfe == (nfe,)


def eight_gaps_by_hand() -> None:
    """Gaps ln(3p / (1 - p)): 4.04 1.50 3.41 .25 5.69 2.83 3.31 .90, committed one a step in the order 4 0 2 6 5 1 7 3.

    Thirds end before steps 2 and 5. The answer of 2 and 3 has a mean of 1.83, and of 0.25 once 2 is committed.
    """
    for spec, nfe in {
        "region=all,early=0.25,mid=9,late=9": 1,
        "region=all,early=0.26,mid=9,late=9": 8,
        "region=all,early=9,mid=0.25,late=9": 3,
        "region=all,early=9,mid=9,late=0.25": 6,
        "start=2,length=2,early=1.8,mid=9,late=9": 1,
        "start=2,length=2,early=1.85,mid=9,late=9": 8,
        "start=2,length=2,early=9,mid=1.8,late=9": 3,
        "start=2,length=2,early=9,mid=9,late=1.8": 8,
        "start=2,length=2,early=9,mid=9,late=1.8,decided=true": 6,
    }.items():
        assert run(table(LAWS), f"fixed+prophet:{spec}", request([[6] * 8], [0], block_length=8)).nfe == (nfe,), spec


@pytest.mark.parametrize(
    ("cache", "family"),
    chequered(["none", "prefix", "dual", "dual:refresh=2"], ["llada", "dream", "sdar", "shifted-sdar"]),
)
@pytest.mark.covers(1)
def test_an_endless_gap_is_the_base(family: str, cache: str) -> None:
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    for base, region in (("threshold:tau=0.4", "all"), ("fixed", "block"), ("factor", "answer,start=2")):
        one, other = (
            fill(model, f"{base}{more}@{cache}", given, NEW) for more in (f"+prophet:region={region},{NEVER}", "")
        )
        assert all(same(one, row, other, row) for row in range(3))


def test_no_gap_fills_as_soon_as_everything_open_is_predicted() -> None:
    model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
    assert fill(model, "sequential+prophet:early=0", given, NEW).nfe == (1, 1, 1)
    for family in ("sdar", "shifted-sdar"):  # block by block: later blocks are not seen yet
        got = fill(toy(family, sharp=1.2), "sequential+prophet:early=0,mid=0,late=0", given, NEW)
        assert got.nfe == tuple(-(-(p + n) // BLOCK) - p // BLOCK for p, n in zip(LENGTHS, NEW, strict=True))


def a_gap_that_is_just_enough_fills() -> None:
    for region, place in (("all", 3), ("answer,start=3,length=1", 3), ("answer,start=1,length=1", 1)):
        top = LAWS.log()[place].topk(2).values
        gap = float(top[0] - top[1])
        for early, at_once in ((gap, True), (gap * 1.0001, False)):
            spec = f"sequential+prophet:region={region},early={early!r},mid=inf,late=inf,progress=committed"
            got = run(table(LAWS), spec, request([[6] * 8], [0], block_length=8))
            assert (got.nfe[0] == 1) == at_once


def of_an_answer_the_active_block_of_a_block_causal_row_counts_alone() -> None:
    """Blocks of 4 after a prompt of 4. The answer begins in the second block, or reaches into it."""
    for start, forwards in ((4, 5), (2, 2)):
        spec = f"sequential+prophet:start={start},length=4,early=0,mid=0,late=0"
        assert fill(toy("sdar"), spec, prompts((4,)), 8).nfe[0] == forwards


def test_with_a_cache_of_windows_it_waits_for_a_refresh() -> None:
    model, given = toy("llada", sharp=1.2), prompts((3,))
    gaps = "early=99,mid=0,late=0,progress=steps"
    dual = fill(model, f"fixed+prophet:{gaps}@dual", given, 12)
    assert len(dual.trace.fed[0][-1]) == 15, "the last forward asked everything"
    prefix = fill(model, f"fixed+prophet:{gaps}@prefix", given, 12)
    assert prefix.nfe[0] == 4  # 4 of 12 steps is past a third, and the window reaches the row's end


def test_a_start_before_the_answer_never_fires() -> None:
    model, given = toy(sharp=1.2), prompts(LENGTHS)
    base = fill(model, "fixed", given, NEW)
    got = fill(model, "fixed+prophet:start=-1,early=0,mid=0,late=0", given, NEW)
    assert all(same(got, row, base, row) for row in range(3))


def test_an_answer_after_the_row_is_refused_before_a_forward() -> None:
    method = resolve("fixed+prophet:start=6").finish[0]
    canvases = request([[0, 0, 7, 7, 7, 7, 7, 7, 7], [0, 0, 7, 7, 7, 7, 7, 7]], [2, 2], block_length=2)
    with pytest.raises(SpecError, match="prophet: start=6 lies after the end of row 1, which generates 6 tokens"):
        method.admit(canvases, None)  # type: ignore[attr-defined]
    resolve("fixed+prophet:start=5").finish[0].admit(canvases, None)  # type: ignore[attr-defined]
    model = pardec.load("tiny-dream", device="cpu")
    for arguments in ({"sampler": "fixed+prophet:start=16"}, {"sampler": "preset:prophet", "template": [[None] * 16]}):
        with pytest.raises(SpecError, match="lies after the end of row 0, which generates 16 tokens"):
            model.prepare("2 + 2 =", max_new_tokens=16, **arguments)


def test_the_preset_says_that_it_needs_a_template() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    with pytest.raises(SpecError, match="preset:prophet needs a template"):
        model.prepare("2 + 2 =", sampler="preset:prophet")
    model.prepare("2 + 2 =", sampler="preset:prophet", template=[[None] * 200 + [5, 5] + [None] * 54])


@pytest.mark.parametrize(
    "spec",
    [
        "prophet:region=answer",
        "prophet:length=0,start=3",
        "threshold+prophet:progress=steps",
        "prophet:early=nan",
        "prophet:mid=nan",
        "prophet:late=nan",
    ],
)
def test_what_cannot_work_is_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="prophet"):
        resolve(spec)


def progress_by_tokens_where_the_select_has_no_steps() -> None:
    """Half of the tokens are committed, between a third and two thirds, so the middle gap applies."""
    distributions = torch.full((6, 8), 0.2 / 6)
    distributions[:, 1], distributions[:, 2] = 0.6, 0.2
    canvas = request([[0, 0, 7, 7, 7, 7]], [2], block_length=2)
    got = run(table(distributions), "threshold:tau=0.5+prophet:early=9,mid=1,late=9", canvas)
    assert got.nfe == (2,)
    assert got.trace.commit_step[0].tolist() == [-1, -1, 0, 0, 1, 1]
    slow = run(table(distributions), "sequential+prophet:early=9,mid=1,late=9", canvas)
    assert slow.trace.commit_step[0].tolist() == [-1, -1, 0, 1, 2, 2]


def steps_without_a_forward_count_from_the_one_after_the_last() -> None:
    """Of ten steps the third had a forward and the seventh has one: the fourth, at .4, is in the second third."""
    canvas: Any = SimpleNamespace(total_steps=np.array([10]), clocks=np.array([[0, 2]]), step=np.array([6]))
    assert Prophet(early=1, mid=5, late=4)._least(canvas).tolist() == [4]
    canvas.clocks = np.array([[0, 1]])  # with the third step, at .3
    assert Prophet(early=1, mid=5, late=4)._least(canvas).tolist() == [1]


@pytest.mark.seeds("arXiv:2508.19982")
def test_an_endless_gap_is_the_base_and_early_answers_are_the_late_ones_in_fewer_steps() -> None:
    a_hand_worked_gap()
    eight_gaps_by_hand()
    progress_by_tokens_where_the_select_has_no_steps()
    steps_without_a_forward_count_from_the_one_after_the_last()
    a_gap_that_is_just_enough_fills()
    of_an_answer_the_active_block_of_a_block_causal_row_counts_alone()
    test_with_a_cache_of_windows_it_waits_for_a_refresh()
    model, given = toy("llada", sharp=1.2), prompts(LENGTHS)
    one, other = (fill(model, spec, given, NEW) for spec in (f"fixed+prophet:{NEVER}", "fixed"))
    assert all(same(one, row, other, row) for row in range(3))
    right, plain = answered("tiny-llada", "lists", "fixed+eos", 10, block_length=32)
    early, done = answered("tiny-llada", "lists", "fixed+prophet:region=all+eos", 10, block_length=32)
    assert early == right
    assert done.text == plain.text  # the final answers
    assert sum(done.nfe) < 0.8 * sum(plain.nfe)
    mask = pardec.load("tiny-llada", device="cpu").language_model.decoding_config.mask_id
    assert all(mask not in tokens for tokens in done.tokens)
