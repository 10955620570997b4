"""prophet: when the answer counts as known, what is filled then, and where it must wait."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.plan import Plan
from pardec.samplers.registry import resolve
from tests.samplers.toys import BLOCK, MASK, fill, prompts, request, run, same, table, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)
NEVER = "early=1e9,mid=1e9,late=1e9"


def naive(model: Any, canvas: list[int], prompt: int, gaps: tuple[float, float, float], region: str) -> Any:
    """One token a step in blocks, and the paper's exit: progress by steps, gap over what is open in the region."""
    tokens, when, nfe = list(canvas), {}, 0
    steps = tokens.count(MASK)
    while MASK in tokens:
        rows = model.forward(Plan.full(torch.tensor([tokens]), model.visible())).logits()[0].clone()
        rows[:, MASK] = -torch.inf
        rows = torch.stack([rows[max(p - model.facts.shift, 0)] for p in range(len(tokens))])
        opened = [p for p, token in enumerate(tokens) if token == MASK]
        lo = prompt + (opened[0] - prompt) // BLOCK * BLOCK
        block = [p for p in opened if p < lo + BLOCK]
        places = {"all": opened, "block": block, "answer": [p for p in opened if prompt + 4 <= p < prompt + 7]}[region]
        progress = (nfe + 1) / steps
        least = gaps[0] if progress < 0.33 else gaps[1] if progress < 0.67 else gaps[2]
        two = rows.topk(2).values
        gap = np.mean([float(two[p, 0] - two[p, 1]) for p in places]) if places else -1.0
        law = rows.softmax(-1).amax(-1)
        for p in opened if places and gap >= least else [max(block, key=lambda p: (float(law[p]), -p))]:
            tokens[p], when[p] = int(rows[p].argmax()), nfe
        nfe += 1
    return tokens, when, nfe


@pytest.mark.parametrize("region", ["all", "block", "answer"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_it_follows_its_paper(family: str, region: str) -> None:
    filled = 0
    place = "start=4,length=3" if region == "answer" else f"region={region}"
    for seed, gaps in enumerate([(2.0, 1.5, 0.8), (9.0, 1.2, 0.6), (9.0, 9.0, 0.3)]):
        model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
        spec = f"fixed+prophet:{place},early={gaps[0]},mid={gaps[1]},late={gaps[2]},progress=steps"
        got = fill(model, spec, given, NEW)
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            tokens, when, nfe = naive(model, [*prompt, *[MASK] * new], len(prompt), gaps, region)
            assert got.tokens[row, : len(tokens)].tolist() == tokens
            assert {p: int(s) for p, s in enumerate(got.trace.commit_step[row, : len(tokens)]) if s >= 0} == when
            assert got.nfe[row] == nfe
            filled += nfe < new
    assert filled, "it never fired: the test shows nothing"


def test_a_hand_worked_gap() -> None:
    """Two tokens at 0.6 and 0.2 are ln 3 = 1.0986 apart in logits, wherever the mass of the others lies."""
    laws = torch.full((6, 8), 0.2 / 6)
    laws[:, 1], laws[:, 2] = 0.6, 0.2
    canvas = request([[0, 0, 7, 7, 7, 7]], [2], block_length=2)
    for gap, nfe in ((1.098, 1), (1.099, 4)):
        got = run(table(laws), f"fixed+prophet:region=all,early={gap},mid=9,late=9", canvas)
        assert got.nfe == (nfe,)
        assert got.tokens[0].tolist() == [0, 0, 1, 1, 1, 1]


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dual:refresh=2"])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "shifted-sdar"])
def test_an_endless_gap_is_the_base(family: str, cache: str) -> None:
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    for base in ("threshold:tau=0.4", "fixed", "factor"):
        for region in ("all", "block", "answer,start=2"):
            one = fill(model, f"{base}+prophet:region={region},{NEVER}@{cache}", given, NEW)
            other = fill(model, f"{base}@{cache}", given, NEW)
            assert all(same(one, row, other, row) for row in range(3))


def test_no_gap_fills_as_soon_as_everything_open_is_predicted() -> None:
    model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
    assert fill(model, "sequential+prophet:early=0", given, NEW).nfe == (1, 1, 1)
    for family in ("sdar", "shifted-sdar"):  # block by block: later blocks are not seen yet
        got = fill(toy(family, sharp=1.2), "sequential+prophet:early=0,mid=0,late=0", given, NEW)
        assert got.nfe == tuple(-(-(p + n) // BLOCK) - p // BLOCK for p, n in zip(LENGTHS, NEW, strict=True))


def test_with_a_cache_of_windows_it_waits_for_a_refresh() -> None:
    model, given = toy("llada", sharp=1.2), prompts((3,))
    gaps = "early=99,mid=0,late=0,progress=steps"
    dual = fill(model, f"fixed+prophet:{gaps}@dual", given, 12)
    assert len(dual.trace.fed[0][-1]) == 15, "the last forward asked everything"
    prefix = fill(model, f"fixed+prophet:{gaps}@prefix", given, 12)
    assert prefix.nfe[0] == 4  # 4 of 12 steps is past a third, and the window reaches the row's end


def test_a_start_before_the_answer_or_behind_the_row_never_fires() -> None:
    model, given = toy(sharp=1.2), prompts(LENGTHS)
    base = fill(model, "fixed", given, NEW)
    for start in (-1, 40):
        got = fill(model, f"fixed+prophet:start={start},early=0,mid=0,late=0", given, NEW)
        assert all(same(got, row, base, row) for row in range(3))


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


def test_progress_by_tokens_where_the_select_has_no_steps() -> None:
    """Half of the tokens committed is past a third and below two thirds: the middle gap counts."""
    laws = torch.full((6, 8), 0.2 / 6)
    laws[:, 1], laws[:, 2] = 0.6, 0.2
    canvas = request([[0, 0, 7, 7, 7, 7]], [2], block_length=2)
    got = run(table(laws), "threshold:tau=0.5+prophet:early=9,mid=1,late=9", canvas)
    assert got.nfe == (2,)
    assert got.trace.commit_step[0].tolist() == [-1, -1, 0, 0, 1, 1]
    slow = run(table(laws), "sequential+prophet:early=9,mid=1,late=9", canvas)
    assert slow.trace.commit_step[0].tolist() == [-1, -1, 0, 1, 2, 2]
