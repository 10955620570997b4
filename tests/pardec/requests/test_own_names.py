"""Names of other libraries that mean the same as an argument of `generate`."""

from __future__ import annotations

from typing import Any

import pytest

import pardec
from pardec.requests.settings import own_names

PROMPT = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-dream"])
@pytest.mark.parametrize(
    ("theirs", "own"),
    [
        ({"max_tokens": 5}, {"max_new_tokens": 5}),
        ({"max_completion_tokens": 5}, {"max_new_tokens": 5}),
        (
            {"n": 2, "do_sample": True, "max_tokens": 5},
            {"num_return_sequences": 2, "temperature": 1.0, "max_new_tokens": 5},
        ),
        ({"do_sample": True, "temperature": 0.5}, {"temperature": 0.5}),
        ({"do_sample": False, "temperature": 0}, {}),
        ({"stop_strings": ["="], "max_tokens": 20}, {"stop": ["="], "max_new_tokens": 20}),
        ({"eos_token_id": [], "max_tokens": 9}, {"stop_ids": [], "max_new_tokens": 9}),
        ({"min_tokens": 6, "max_tokens": 9}, {"min_new_tokens": 6, "max_new_tokens": 9}),
    ],
)
@pytest.mark.covers(1)
def test_answers_are_the_same_under_both_names(name: str, theirs: dict[str, Any], own: dict[str, Any]) -> None:
    model = pardec.load(name, device="cpu")
    assert model.generate(PROMPT, **theirs).tokens == model.generate(PROMPT, **own).tokens


def test_contradictions_are_refused() -> None:
    for wrong, word in (
        ({"max_tokens": 5, "max_new_tokens": 5}, "max_tokens is another name of max_new_tokens"),
        ({"do_sample": False, "temperature": 0.7}, "do_sample=False contradicts temperature=0.7"),
        ({"do_sample": True, "temperature": 0}, "do_sample=True contradicts"),
        ({"do_sample": 1}, "do_sample must be True or False"),
    ):
        with pytest.raises(pardec.SpecError, match=word):
            own_names(wrong)


def test_batches_take_them_too() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    rows = sorted(model.serve_batch([PROMPT, "Ann has 4 cups."], max_tokens=5), key=lambda row: row.index)
    assert [row.text for row in rows] == model.generate([PROMPT, "Ann has 4 cups."], max_new_tokens=5).text
    *_, last = model.stream(PROMPT, max_tokens=3)
    assert last is not None
