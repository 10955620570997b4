"""`causal`: a causal forward stores finished text and predicts the first token of the next block.

The family's rule, without a cache, is its plain version in tests/models/families/test_nemotron.py.
"""

from __future__ import annotations

import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.cache_checks import queried
from tests.samplers.toys import MASK, fill, prompts, request, run, toy


def test_what_is_computed_by_hand() -> None:
    """All, since the prompt predicts the token at 5; 5..8 three times; 5..8 for the token at 9; then 9..10."""
    got = fill(toy("nemotron"), "sequential@causal", prompts((5,)), 6)
    spans = [(0, 9), *[(5, 9)] * 3, (5, 9), (9, 11)]
    assert queried(got) == [tuple(range(*span)) for span in spans]
    assert got.trace.commit_step[0, 5] == 0
    assert got.trace.commit_step[0, 9] == 4


def test_the_first_token_of_a_block_is_taken_however_unsure() -> None:
    got = fill(toy("nemotron"), "threshold:tau=1@causal", prompts((5,)), 8)
    assert got.trace.commit_step[0, [5, 9]].tolist() == [0, 4]
    got = fill(toy("nemotron"), "threshold:tau=0@causal", prompts((5,)), 8)
    assert got.trace.commit_step[0, 5:].tolist() == [0, 1, 1, 1, 2, 3, 3, 3]


def test_a_block_whose_first_token_is_given_is_begun_by_the_forward_that_stores_the_text_before_it() -> None:
    """No causal forward has to predict it; the K/V of 5..8 are those of its final tokens all the same."""
    row = [1, 2, 3, 4, 5, *[MASK] * 4, 6, *[MASK] * 3]
    got = run(toy("nemotron"), "sequential@causal", request([row], [5]))
    spans = [(0, 9), *[(5, 9)] * 3, (5, 13), *[(9, 13)] * 2]
    assert queried(got) == [tuple(range(*span)) for span in spans]


def test_a_row_without_a_prompt_begins_with_its_first_block() -> None:
    got = fill(toy("nemotron"), "threshold:tau=0@causal", prompts((0,)), 8)
    assert queried(got) == [tuple(range(*span)) for span in [(0, 4), (0, 4), (4, 8)]]
    assert got.trace.commit_step[0].tolist() == [0, 0, 0, 0, 1, 2, 2, 2]


@pytest.mark.parametrize("family", ["llada", "sdar", "wedlm"])
def test_other_families_are_refused(family: str) -> None:
    with pytest.raises(SpecError, match="the cache 'causal' is for"):
        pardec.Model(toy(family)).prepare(input_ids=[[1, 2]], sampler="threshold@causal", max_new_tokens=4)
    assert resolve("sequential@causal").exact == "greedy"
