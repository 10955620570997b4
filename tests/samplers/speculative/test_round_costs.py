"""Seconds that plain decoding would have taken, from rounds without drafts, with scripted costs."""

from __future__ import annotations

import warnings
from unittest.mock import patch

import pytest

import pardec
from pardec.requests import answer_warnings
from pardec.samplers import pace
from pardec.samplers.events import Finished
from tests.samplers.speculative.test_auto import ScriptedClock


def generated(model: pardec.Model, sampler: str) -> tuple[Finished, list[str]]:
    """The end of a decode of 40 tokens, and the warnings of `generate`."""
    arguments = {"max_new_tokens": 40, "stop_ids": [], "sampler": sampler}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.generate("list 3 5 8 3 5 8", **arguments)
    *_, end = model.run(model.prepare("list 3 5 8 3 5 8", **arguments), steps=False)
    assert isinstance(end, Finished)
    return end, [str(each.message) for each in caught if each.category is answer_warnings.SlowDrafts]


@pytest.fixture
def model() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")


def test_a_drafter_that_costs_more_than_it_gains_is_said_once_with_both_figures(model: pardec.Model) -> None:
    with ScriptedClock(5.0), patch.object(answer_warnings, "_said", set()):
        assert generated(model, "sequential")[1] == []
        end, said = generated(model, "model:name=tiny-llama-draft,k=4")
        assert end.rounds_s is not None
        seconds, plain = end.rounds_s
        assert plain == pytest.approx(39)  # tokens after the prompt's round, one second each
        assert seconds > 39
        assert len(said) == 1
        assert f"took {seconds:.3g} s, and plain decoding would have taken 39 s" in said[0]
        assert generated(model, "model:name=tiny-llama-draft,k=4")[1] == []
        assert generated(model, 'auto:model="model:name=tiny-llama-draft,k=4"')[1] == []
        assert len(generated(model, 'auto:model="model:name=tiny-llama-draft,k=4",measured=false')[1]) == 1


def test_nothing_is_said_of_a_drafter_that_pays_or_where_plain_rounds_are_unknown(model: pardec.Model) -> None:
    for node, first in ((0.0, "sequential"), (5.0, None)):
        with ScriptedClock(node), patch.object(answer_warnings, "_said", set()):
            if first is not None:
                generated(model, first)
            end, said = generated(model, "model:name=tiny-llama-draft,k=4")
            assert said == []
            assert end.rounds_s is not None
            assert (end.rounds_s[1] is None) == (first is None)


def test_costs_are_kept_by_the_number_of_rows() -> None:
    assert [pace.size(rows) for rows in (1, 2, 3, 4, 7, 8)] == [1, 2, 2, 3, 3, 4]
