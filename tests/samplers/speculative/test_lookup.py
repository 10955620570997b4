"""Prompt lookup compared with a search of the whole text, and with transformers'."""

from __future__ import annotations

import random
import time
from typing import Literal

import numpy as np
import pytest
import torch
from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

from pardec.samplers.speculative.draft.lookup import Lookup
from tests.reference import naive_lookup
from tests.samplers.ar_toys import rows, run
from tests.samplers.drafter_checks import cyclic, drafts_alone_what_it_drafts_in_a_batch, gained, greedy_holds

PREFER: tuple[Literal["first", "last", "longest"], ...] = ("first", "last", "longest")


def grown(seed: int) -> list[list[int]]:
    """One text after each of several rounds."""
    drawn = random.Random(seed)
    alphabet, text, stages = drawn.choice([1, 2, 3, 5]), [], []
    for _ in range(12):
        text = text + [drawn.randrange(alphabet) for _ in range(drawn.randint(1, 9))]
        stages.append(text)
    return stages


@pytest.mark.parametrize("prefer", PREFER)
def test_drafts_are_those_of_a_search_of_the_whole_text(prefer: Literal["first", "last", "longest"]) -> None:
    for seed in range(60):
        drafter = Lookup(k=1 + seed % 11, max_ngram=1 + seed % 4, prefer=prefer)
        index = drafter.index()
        for text in grown(seed):
            expected = naive_lookup.lookup(text, drafter.k, drafter.max_ngram, prefer)
            assert drafter.guess(np.array(text), index, drafter.k).tolist() == expected, (seed, text)


def test_the_first_place_is_what_transformers_takes() -> None:
    theirs = PromptLookupCandidateGenerator(num_output_tokens=10, max_matching_ngram_size=2, max_length=10_000)
    drafter, found = Lookup(k=10, max_ngram=2, prefer="first"), 0
    for seed in range(60):
        index = drafter.index()
        for text in grown(seed):
            expected, _ = theirs.get_candidates(torch.tensor([text]))
            ours = drafter.guess(np.array(text), index, drafter.k).tolist()
            assert ours == expected[0, len(text) :].tolist()
            found += len(ours) > 0
    assert found > 300


def test_by_hand() -> None:
    text = np.array([7, 1, 2, 5, 1, 2, 6, 9, 1, 2])
    draft = {
        prefer: Lookup(prefer=prefer, k=4).guess(text, Lookup(prefer=prefer).index(), 4).tolist() for prefer in PREFER
    }
    assert draft == {"first": [5, 1, 2, 6], "last": [6, 9, 1, 2], "longest": [6, 9, 1, 2]}
    further = np.array([3, 1, 2, 5, 4, 1, 2, 6, 3, 1, 2])
    assert Lookup(prefer="longest").guess(further, Lookup(prefer="longest").index(), 2).tolist() == [5, 4]
    assert Lookup(max_ngram=2).guess(further, Lookup(max_ngram=2).index(), 2).tolist() == [6, 3]


@pytest.mark.parametrize("prefer", PREFER)
def test_greedy_decoding_is_unchanged(prefer: str) -> None:
    assert greedy_holds(f"lookup:prefer={prefer}") > 1.2


@pytest.mark.parametrize("prefer", PREFER)
def test_a_period_is_taken_in_whole_drafts(prefer: str) -> None:
    k, new = 10, 1 + 22 * 11
    done = run(cyclic(), f"lookup:k={k},prefer={prefer}", [list(range(7)) * 3], new)
    assert rows(done)[0] == [i % 7 for i in range(21 + new)]
    rounds = 1 + (new - 1) // (k + 1)
    assert done.nfe[0] == rounds  # the first match of a period ends with the text no sooner than k tokens on


def test_a_row_drafts_alone_what_it_drafts_in_a_batch() -> None:
    drafts_alone_what_it_drafts_in_a_batch("lookup:k=3")


def test_copying_a_list_takes_long_steps() -> None:
    assert gained("lookup", "lists", "copy") > 3.0


def test_the_index_costs_the_same_however_long_the_text() -> None:
    drawn = np.random.RandomState(0).randint(0, 50, 40_000)
    drafter = Lookup()
    index = drafter.index()
    drafter.guess(drawn[:-2_000], index, 10)
    start = time.perf_counter()
    for end in range(len(drawn) - 2_000, len(drawn), 4):
        drafter.guess(drawn[:end], index, 10)
    assert (time.perf_counter() - start) / 500 < 1e-3  # a search of the text takes several times that
