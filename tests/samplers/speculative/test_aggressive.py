"""Aggressive decoding compared with an alignment that is recomputed over the whole output each time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.speculative.draft.aggressive import Alignment
from tests.reference import naive_lookup
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.drafter_checks import cyclic, drafts_alone_what_it_drafts_in_a_batch, gained

SOURCE = [11, 12, 13, 14, 15, 16, 12, 13, 17]


def ahead(output: list[int], most: int = 4) -> list[int]:
    return Alignment(np.array(SOURCE), most).ahead(np.array(output)).tolist()


def the_rest_of_the_source_is_drafted_from_its_beginning() -> None:
    assert ahead([]) == SOURCE
    assert ahead([11, 12]) == SOURCE[2:]
    assert ahead(SOURCE) == []


def behind_another_token_the_draft_goes_on_where_the_ending_stands_once() -> None:
    assert ahead([11, 12, 99]) == []  # 99 stands nowhere
    assert ahead([11, 12, 99, 14]) == [15, 16, 12, 13, 17]  # one replaced: 14 stands once
    assert ahead([11, 12, 99, 13]) == []  # 13 stands twice in the rest, 99 13 nowhere
    assert ahead([11, 12, 14]) == [15, 16, 12, 13, 17]  # one left out
    assert ahead([11, 99, 12]) == []  # one put in: 12 stands twice in the rest
    assert ahead([11, 99, 12, 13, 14]) == [15, 16, 12, 13, 17]
    assert ahead([17]) == []  # at its end
    assert ahead([13, 17, 11]) == []  # what is after is never gone back to


def behind_a_replaced_token_the_draft_goes_on_at_once() -> None:
    alignment = Alignment(np.array(SOURCE), 4, agree=2)
    assert alignment.ahead(np.array([11, 12])).tolist() == SOURCE[2:]
    assert alignment.ahead(np.array([11, 12, 99])).tolist() == SOURCE[3:]
    # 12 stands three times in the rest: that it is where it is guessed tells which one it is
    alignment = Alignment(np.array([12, 13, *SOURCE]), 4, agree=2)
    assert alignment.ahead(np.array([12, 99, 11])).tolist() == SOURCE[1:]
    assert not alignment.follows
    assert alignment.ahead(np.array([12, 99, 11, 12])).tolist() == SOURCE[2:]
    assert alignment.follows
    assert Alignment(np.array(SOURCE), 4, agree=2).ahead(np.array([99])).tolist() == []  # nothing is followed yet
    # two tokens were left out: 15 is not where it is guessed, and 15 alone stands once
    assert Alignment(np.array(SOURCE), 4, agree=1).ahead(np.array([11, 14, 15])).tolist() == [16, 12, 13, 17]


def drafts_are_those_of_an_alignment_made_anew() -> None:
    followed = 0
    for seed in range(80):
        drawn = random.Random(seed)
        source = [drawn.randrange(6) for _ in range(drawn.randint(1, 30))]
        agree = seed % 3
        alignment, output, at = Alignment(np.array(source), 3, agree), [], 0
        for _ in range(10):
            for _ in range(drawn.randint(1, 5)):
                if drawn.random() < 0.8 and at < len(source):
                    output = [*output, source[at]]
                    at += 1
                else:
                    output = [*output, drawn.randrange(6)]
                    at += drawn.randint(0, 2)
            expected = naive_lookup.aggressive(source, output, 3, agree)
            assert alignment.ahead(np.array(output)).tolist() == expected
            followed += bool(expected)
    assert followed > 100


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


class Editor:
    """A logits processor that makes the model repeat the prompt with one token of ten replaced."""

    def __init__(self, prompt: list[int], vocab: int) -> None:
        self.size = len(prompt)
        self.text = [(token + 1) % vocab if at % 10 == 4 else token for at, token in enumerate(prompt)]

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        at = ids.shape[1] - self.size
        forced = torch.full_like(scores, -1e4)
        forced[:, self.text[min(at, self.size - 1)]] = 0
        return scores * 1e-3 + forced


@pytest.mark.seeds("arXiv:2205.10350")
def test_an_edit_of_a_tenth_takes_fewer_than_three_forwards_for_ten_tokens() -> None:
    """Text of 11 distinct tokens, so few suffixes occur once; without guessing replacements it takes more forwards."""
    the_rest_of_the_source_is_drafted_from_its_beginning()
    behind_another_token_the_draft_goes_on_where_the_ending_stands_once()
    behind_a_replaced_token_the_draft_goes_on_at_once()
    drafts_are_those_of_an_alignment_made_anew()
    drafts_alone_what_it_drafts_in_a_batch("aggressive:k=4", cyclic(), [range(7), [3, 4, 5, 6, 0, 1, 2], [5, 6, 0]])
    model, vocab = toy_ar(3, vocab=11), 11
    prompt = np.random.RandomState(0).randint(0, vocab, 100).tolist()
    edit: Any = Editor(prompt, vocab)
    plain = run(model, "sequential", [prompt], 100, processors=(edit,))
    assert rows(plain) == [[*prompt, *edit.text]]
    assert sum(one == other for one, other in zip(prompt, edit.text, strict=True)) == 90
    rates = []
    for more in ("", ":reference=true"):
        done = run(model, f"aggressive{more}", [prompt], 100, processors=(edit,))
        assert rows(done) == rows(plain)
        rates.append(done.nfe[0] / 100)
    assert rates[0] < 0.15
    assert rates[1] > 0.3
