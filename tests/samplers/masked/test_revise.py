"""wino, remdm and edit: the rule of each paper, what they reduce to, and what the loop keeps while tokens change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.events import Finished, Step
from pardec.samplers.masked.canvas import Canvas, Revision, Update
from pardec.samplers.registry import resolve
from tests.reference import naive_revise as naive
from tests.samplers.toys import BLOCK, EOS, MASK, altered, events, fill, prompts, request, run, same, toy

LENGTHS, NEW = (3, 6, 1), (10, 12, 7)


def agree(got: Finished, row: int, tokens: list[int], when: dict[int, int], nfe: int) -> None:
    length = len(tokens)
    assert got.tokens[row, :length].tolist() == tokens
    assert {p: int(s) for p, s in enumerate(got.trace.commit_step[row, :length]) if s >= 0} == when
    assert got.nfe[row] == nfe


def compare(spec: str, rule: Any, family: str, size: int, seed: int, **parameters: Any) -> tuple[Finished, int]:
    """Runs both on every row; how far the result is from that of the select alone."""
    model, given = toy(family, seed=seed, sharp=1.2), prompts(LENGTHS, seed=seed)
    got = fill(model, spec, given, NEW, block_length=size)
    for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
        agree(got, row, *rule(model, [*prompt, *[MASK] * new], len(prompt), size, MASK, **parameters))
    plain = fill(model, spec.split("+")[-1] if "+" in spec else "threshold:tau=0.4", given, NEW, block_length=size)
    return got, int((got.tokens != plain.tokens).sum()) + int(got.nfe != plain.nfe)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("size", [BLOCK, 8])
@pytest.mark.covers(1)
def test_wino_follows_its_paper(family: str, size: int) -> None:
    changed = 0
    for seed in range(3):
        _, differs = compare("wino:draft=0.4,verify=0.8", naive.wino, family, size, seed, draft=0.4, verify=0.8)
        changed += differs
    assert changed, "nothing was ever revoked: the test shows nothing"


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_remdm_reopens_late_and_a_number_of_times(family: str) -> None:
    spec, numbers = "remdm:at=0.75,rounds=3,tokens=2+threshold:tau=0.4", {"at": 0.75, "rounds": 3, "count": 2}
    for seed in range(3):
        got, _ = compare(spec, naive.remdm, family, BLOCK, seed, tau=0.4, **numbers)
        plain = fill(toy(family, seed=seed, sharp=1.2), "threshold:tau=0.4", prompts(LENGTHS, seed=seed), NEW)
        assert all(more > less for more, less in zip(got.nfe, plain.nfe, strict=True))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("post", [0, 1, 16])
@pytest.mark.covers(1)
def test_edit_overwrites_while_it_decodes_and_after(family: str, post: int) -> None:
    changed = 0
    for seed in range(4):
        spec = f"edit:tau=0.45,post={post}+threshold:tau=0.4"
        _, differs = compare(spec, naive.edit, family, BLOCK, seed, tau=0.4, sure=0.45, post=post)
        changed += differs
    assert changed, "nothing was ever edited: the test shows nothing"


@pytest.mark.parametrize("cache", ["none", "prefix", "dual", "dual:refresh=2"])
@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "shifted-sdar"])
@pytest.mark.parametrize(
    ("spec", "base"),
    [
        ("threshold:tau=0.4+wino:verify=0", "threshold:tau=0.4"),
        ("wino:draft=0.4,verify=0", "threshold:tau=0.4"),
        ("factor+wino:verify=0", "factor"),
        ("threshold:tau=0.4+remdm:rounds=0", "threshold:tau=0.4"),
        ("threshold:tau=0.4+edit:tau=1", "threshold:tau=0.4"),
    ],
)
def test_what_revises_nothing_is_its_base(spec: str, base: str, family: str, cache: str) -> None:
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    one, other = (fill(model, f"{text}@{cache}", given, NEW) for text in (spec, base))
    assert all(same(one, row, other, row) for row in range(3))


def test_wino_names_the_select_it_brings() -> None:
    assert str(resolve("wino:draft=0.7").spec).startswith("confidence:of=raw+threshold:tau=0.7,")
    assert "factor" in str(resolve("wino+factor").spec)


CACHED = ("none", "prefix", "dual", "dual:refresh=3")
REVISING = ("wino:draft=0.4,verify=0.7", "remdm:at=0.5+threshold:tau=0.4", "edit:tau=0.4+factor")


@pytest.mark.parametrize("cache", CACHED)
@pytest.mark.parametrize("spec", REVISING)
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_a_ragged_batch(spec: str, cache: str) -> None:
    """Two families of four each, of both ways to see; every stage and every cache meets all four."""
    distributions: list[tuple[str, dict[str, Any]]] = [
        ("llada", {}),
        ("shifted-sdar", {}),
        ("dream", {"temperature": 0.7}),
        ("sdar", {"cfg": 1.5}),
    ]
    half = 2 * ((REVISING.index(spec) + CACHED.index(cache)) % 2)
    for family, distribution in distributions[half : half + 2]:
        model, given = toy(family, sharp=1.2), prompts(LENGTHS)
        whole = fill(model, f"{spec}@{cache}", given, NEW, **distribution)
        for row in range(3):
            alone = fill(model, f"{spec}@{cache}", [given[row]], NEW[row], seeds=[100 + row], **distribution)
            assert same(alone, 0, whole, row)


def test_with_a_refresh_at_every_step_a_cache_changes_nothing_for_revising_stages() -> None:
    for spec in ("wino:draft=0.4,verify=0.7", "remdm:at=0.5+threshold:tau=0.4", "edit:tau=0.4+threshold:tau=0.4"):
        model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
        one, other = (fill(model, f"{spec}@{cache}", given, NEW) for cache in ("none", "dual:refresh=1"))
        assert all(same(one, row, other, row) for row in range(3))


def test_an_end_token_stops_a_row_only_when_it_can_no_longer_change() -> None:
    """The end token that a row is stopped at stands in a block that is left, or in a row with nothing left to do."""
    bias = torch.zeros(20).index_fill(0, torch.tensor([EOS]), 4.0)
    model = altered(toy(sharp=1.2), lambda logits: logits + bias)
    stopped = 0
    for spec in ("wino:draft=0.3,verify=0.5+eos", "edit:tau=0.4+threshold:tau=0.3+eos"):
        told = events(model, spec, request([[1, 2, *[MASK] * 12]], [2], stop_ids=(EOS,)))
        last = told[-1]
        assert isinstance(last, Finished)
        row = last.tokens[0].tolist()
        assert EOS in row
        if last.reasons[0] == "stop":
            stopped += 1
            steps = [event for event in told if isinstance(event, Step)]
            assert row.index(EOS) < steps[-1].settled[0]
    assert stopped


def test_what_is_settled_never_changes_and_revisions_are_told() -> None:
    taken_back = 0
    for spec in ("wino:draft=0.35,verify=0.8", "remdm:at=0.5,rounds=5+threshold:tau=0.4", "edit:tau=0.4+factor"):
        told = events(toy("dream", sharp=1.2), spec, request([[1, 2, *[MASK] * 14], [4, *[MASK] * 9]], [2, 1]))
        last = told[-1]
        assert isinstance(last, Finished)
        for event in told:
            if isinstance(event, Step):
                assert event.revised is not None
                taken_back += int(event.revised.sum())
                for at, row in enumerate(event.rows):
                    end = int(event.settled[at])
                    assert (event.tokens[at, :end] == last.tokens[row, :end]).all()
    assert taken_back


def test_given_tokens_are_never_revised() -> None:
    canvas = [[MASK, 3, MASK, 5, MASK, MASK, 7, MASK, MASK, 2]]
    for spec in ("wino:draft=0.3,verify=1", "remdm:at=0.1,rounds=9,tokens=9+threshold", "edit:tau=0+threshold:tau=0.3"):
        got = run(toy("dream", sharp=1.2), spec, request(canvas, [0]))
        for place in (1, 3, 6, 9):
            assert got.tokens[0, place] == canvas[0][place]
            assert got.trace.commit_step[0, place] == -1


def test_revisions_join() -> None:
    held = Canvas([torch.tensor([1, MASK, MASK, MASK])], [1], mask_id=MASK, pad_id=0, block_length=3)
    yes, no = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    full = lambda value: torch.full((1, 3), value)  # noqa: E731
    held.commit(Update(torch.ones(1, 3, dtype=torch.bool), full(4), full(0.5)))
    one = Revision(reopen=yes, rewrite=Update(yes, full(5), full(0.6)))
    other = Revision(rewrite=Update(no, full(6), full(0.7)), hold=np.array([True]))
    held.commit(Update(torch.zeros(1, 3, dtype=torch.bool), full(4), full(0.5)), revision=one.merge(other))
    assert held.tokens[0, :4].tolist() == [1, MASK, MASK, 6]
    assert held.commit_step[0, :4].tolist() == [-1, -2, -2, 1]
    assert held.hold_block.tolist() == [True]


@pytest.mark.parametrize(
    "spec",
    [
        "wino:draft=1.2",
        "wino:verify=-0.1",
        "remdm:at=0",
        "remdm:rounds=-1",
        "remdm:tokens=0",
        "edit:tau=2",
        "edit:post=-1",
    ],
)
def test_parameters_out_of_range_are_refused(spec: str) -> None:
    with pytest.raises(SpecError):
        resolve(spec)
