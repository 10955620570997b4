"""`subblock`: a block is decoded part by part from left to right; a started part is computed alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.cache_checks import queried
from tests.samplers.toys import MASK, fill, prompts, request, run, same, toy


def test_what_is_computed_by_hand() -> None:
    """A block is computed with the one before it, then final; a part alone once its first token is known."""
    got = fill(toy("sdar", sharp=1.2), "leftmost+sequential@subblock:size=2", prompts((4,)), 8)
    spans = [(0, 8), (4, 6), (4, 8), (6, 8), (4, 12), (8, 10), (8, 12), (10, 12)]
    assert queried(got) == [tuple(range(*span)) for span in spans]
    got = fill(toy("sdar", sharp=1.2), "leftmost+sequential@subblock:size=2,reuse=false", prompts((4,)), 8)
    assert queried(got) == [tuple(range(*span)) for span in [(0, 8), *[(4, 8)] * 3, (4, 12), *[(8, 12)] * 3]]


def test_a_block_whose_first_token_is_given_is_computed_whole_at_first() -> None:
    row = [1, 2, 3, 4, *[MASK] * 4, 5, *[MASK] * 3]
    got = run(toy("sdar", sharp=1.2), "leftmost+sequential@subblock:size=2", request([row], [4], absolute=True))
    assert queried(got)[4:6] == [tuple(range(4, 12)), tuple(range(8, 12))]


@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
def test_a_part_is_complete_before_the_next_begins(family: str) -> None:
    for seed in range(3):
        got = fill(toy(family, seed=seed, sharp=1.2), "threshold:tau=0.4@subblock:size=2", prompts((4, 8)), 12)
        for row, start in enumerate((4, 8)):
            parts = got.trace.commit_step[row, start : start + 12].reshape(-1, 2)
            assert (np.diff([part.max() for part in parts]) > 0).all()
            assert all(later.min() > part.max() for part, later in pairwise(parts))


def test_where_predictions_are_shifted_a_blocks_first_token_comes_from_the_forward_before_it() -> None:
    """That forward computes the finished text only; with first_before=false the token is an ordinary candidate."""
    got = fill(toy("shifted-sdar"), "leftmost+sequential@subblock:size=4", prompts((4,)), 8)
    assert queried(got)[4:6] == [tuple(range(4, 8)), tuple(range(8, 12))]
    got = fill(toy("shifted-sdar"), "leftmost+sequential@subblock:size=4,first_before=false", prompts((4,)), 8)
    assert queried(got)[4] == tuple(range(4, 12))
    # That forward computed nothing of the new block, so that the next one computes all of it.
    got = fill(toy("shifted-sdar"), "leftmost+sequential@subblock:size=2", prompts((4,)), 8)
    spans = [(0, 8), (4, 8), (4, 8), (6, 8), (4, 8), (8, 12), (8, 12), (10, 12)]
    assert queried(got) == [tuple(range(*span)) for span in spans]
    # Nothing is finished before the first block of a row without a prompt: its first forward decides about all of it.
    got = fill(toy("shifted-sdar"), "threshold:tau=0@subblock:size=4", prompts((0,)), 8)
    assert got.trace.commit_step[0].tolist() == [0, 0, 0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("size", [4, 8])
@pytest.mark.parametrize("select", ["threshold:tau=0.4", "sequential"])
def test_a_part_as_long_as_the_block_is_the_block_cache(select: str, size: int) -> None:
    model, given, new = toy("sdar", sharp=1.2), prompts((5, 2, 9)), (10, 7, 4)
    one, other = (fill(model, f"{select}@{cache}", given, new) for cache in (f"subblock:size={size}", "block"))
    assert all(same(one, row, other, row) for row in range(3))


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="size must be at least 1, got 0"):
        resolve("threshold@subblock:size=0")
    for family in ("llada", "wedlm", "nemotron"):
        with pytest.raises(SpecError, match="subblock|block-causal"):
            pardec.Model(toy(family)).prepare(input_ids=[[1, 2]], sampler="threshold@subblock", max_new_tokens=4)
