"""Aggressive decoding against an alignment that goes through the whole output each time."""

from __future__ import annotations

import random

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.speculative.draft.aggressive import Aggressive, Alignment
from tests.reference import naive_lookup
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.drafting import cyclic, gained, greedy_holds

SOURCE = [11, 12, 13, 14, 15, 16, 12, 13, 17]


def ahead(output: list[int], most: int = 4) -> list[int]:
    return Alignment(np.array(SOURCE), most).ahead(np.array(output)).tolist()


def test_the_rest_of_the_source_is_drafted_from_its_beginning() -> None:
    assert ahead([]) == SOURCE
    assert ahead([11, 12]) == SOURCE[2:]
    assert ahead(SOURCE) == []


def test_behind_another_token_the_draft_goes_on_where_the_ending_stands_once() -> None:
    assert ahead([11, 12, 99]) == []  # 99 stands nowhere
    assert ahead([11, 12, 99, 14]) == [15, 16, 12, 13, 17]  # one replaced: 14 stands once
    assert ahead([11, 12, 99, 13]) == []  # 13 stands twice in the rest, 99 13 nowhere
    assert ahead([11, 12, 14]) == [15, 16, 12, 13, 17]  # one left out
    assert ahead([11, 99, 12]) == []  # one put in: 12 stands twice in the rest
    assert ahead([11, 99, 12, 13, 14]) == [15, 16, 12, 13, 17]
    assert ahead([17]) == []  # at its end
    assert ahead([13, 17, 11]) == []  # what is behind is never gone back to


def test_drafts_are_those_of_an_alignment_made_anew() -> None:
    followed = 0
    for seed in range(80):
        drawn = random.Random(seed)
        source = [drawn.randrange(6) for _ in range(drawn.randint(1, 30))]
        alignment, output, at = Alignment(np.array(source), 3), [], 0
        for _ in range(10):
            for _ in range(drawn.randint(1, 5)):
                if drawn.random() < 0.8 and at < len(source):
                    output = [*output, source[at]]
                    at += 1
                else:
                    output = [*output, drawn.randrange(6)]
                    at += drawn.randint(0, 2)
            expected = naive_lookup.aggressive(source, output, 3)
            assert alignment.ahead(np.array(output)).tolist() == expected
            followed += bool(expected)
    assert followed > 100


def test_greedy_decoding_is_unchanged() -> None:
    assert greedy_holds("aggressive") > 1.0


def test_a_prompt_that_the_model_repeats_takes_one_forward_more() -> None:
    done = run(cyclic(), "aggressive:k=32", [[0, 1, 2, 3, 4, 5, 6]], 7)
    assert rows(done)[0] == [*range(7), *range(7)]
    assert done.nfe == (2,)
    assert done.trace.drafted[0] == (0, 5)  # cut to what may still be accepted before the token that comes free


def test_a_given_text_is_the_source_of_every_row() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    given = ["Copy the list: 3 1 4 1 5 9.", "Copy the list: 4 7 1."]
    plain = model.generate(given, sampler="sequential", max_new_tokens=16)
    made = model.generate(given, sampler=f'aggressive:source="{plain.text[0]}"', max_new_tokens=16)
    assert made.tokens == plain.tokens
    assert made.nfe[0] == 2
    assert made.trace.drafted[1][1] > 0


def test_a_source_needs_a_tokenizer() -> None:
    with pytest.raises(SpecError, match="aggressive: source is text, and toy has no tokenizer"):
        run(toy_ar(), 'aggressive:source="a b"', [[1, 2]], 2)


def test_copying_a_list_takes_long_steps() -> None:
    assert gained("aggressive", "lists", "copy") > 3.0


@pytest.mark.parametrize("name", ["k", "max_ngram"])
def test_nothing_to_draft_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"aggressive: {name} must be at least 1, got 0"):
        Aggressive(**{name: 0})
