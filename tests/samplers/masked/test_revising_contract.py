"""The guarantees of the loop while stages revise tokens."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.events import Finished, Step
from tests.samplers.revise_checks import LENGTHS, NEW
from tests.samplers.toys import EOS, MASK, altered, events, fill, prompts, request, run, same, toy

REVISING = ("wino:draft=0.4,verify=0.7", "remdm:at=0.5+threshold:tau=0.4", "edit:tau=0.4+threshold:tau=0.4")


@pytest.mark.parametrize("spec", REVISING)
def test_a_cache_that_refreshes_at_every_step_changes_nothing(spec: str) -> None:
    model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
    one, other = (fill(model, f"{spec}@{cache}", given, NEW) for cache in ("none", "dual:refresh=1"))
    assert all(same(one, row, other, row) for row in range(3))


def test_an_end_token_stops_a_row_only_when_it_can_no_longer_change() -> None:
    """The end token that stops a row is in a finished block, or in a row that no stage can change any more."""
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
