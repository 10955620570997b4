"""`next_sequence`: a window that begins with the last token slides over causal text.

The family's rule, without a cache, is its plain version in tests/models/families/test_sdlm.py.
"""

from __future__ import annotations

import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.query_parity import queried
from tests.samplers.toys import fill, prompts, toy


def test_what_is_computed_by_hand() -> None:
    """With outputs that predict the next token the window begins one earlier, and so does what is final."""
    got = fill(toy("sdlm"), "contiguous:tau=1@next_sequence", prompts((5,)), 6)
    spans = [(0, 8), (4, 9), (5, 10), (6, 10), (7, 10), (8, 10)]
    assert queried(got) == [tuple(range(*span)) for span in spans]
    got = fill(toy("nemotron"), "contiguous:tau=1@next_sequence", prompts((5,)), 6)
    spans = [(0, 9), (5, 10), (6, 11), (7, 11), (8, 11), (9, 11)]
    assert queried(got) == [tuple(range(*span)) for span in spans]


def test_whole_windows_are_blocks_in_as_many_forwards() -> None:
    got = fill(toy("sdlm"), "contiguous:tau=0@next_sequence", prompts((5, 2)), (10, 4))
    assert list(got.nfe) == [3, 1]
    assert got.trace.commit_step[0, 5:15].tolist() == [0] * 4 + [1] * 4 + [2] * 2


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="divides its steps among blocks, and a sliding window has no blocks"):
        resolve("fixed:steps=4@next_sequence")
    for family in ("llada", "sdar", "wedlm"):
        with pytest.raises(SpecError, match="the cache 'next_sequence' is for"):
            pardec.Model(toy(family)).prepare(input_ids=[[1, 2]], sampler="threshold@next_sequence", max_new_tokens=4)
    assert resolve("sequential@next_sequence").exact == "greedy"
