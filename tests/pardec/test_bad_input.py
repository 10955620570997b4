"""Requests that cannot work are refused before the first forward, in one line with a hint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import pardec

TABLE: list[tuple[str, dict[str, Any], str]] = [
    ("no prompt", {}, "no prompt is given"),
    ("empty text", {"prompt": ""}, "prompt 0 is empty"),
    ("blank text in a list", {"prompt": ["a", "  "]}, "prompt 1 is empty"),
    ("empty list", {"prompt": []}, "list of prompts is empty"),
    ("a number", {"prompt": 5}, "a prompt must be text"),
    ("ids as a prompt", {"prompt": [1, 2]}, "whole numbers"),
    ("a tensor as a prompt", {"prompt": torch.tensor([[5]])}, "a prompt must be text"),
    ("text and messages mixed", {"prompt": ["a", {"role": "user", "content": "b"}]}, "prompt 1 is neither"),
    ("a message without a role", {"prompt": [{"content": "b"}]}, "prompt 0 is neither"),
    ("prompt and ids", {"prompt": "a", "input_ids": [[5]]}, "both a prompt and input_ids"),
    ("ids of one axis", {"input_ids": torch.tensor([5, 6])}, "LongTensor"),
    ("float ids", {"input_ids": torch.tensor([[5.0]])}, "LongTensor"),
    ("an empty row of ids", {"input_ids": [[5], []]}, "input_ids row 1 is empty"),
    ("no row of ids", {"input_ids": []}, "neither a LongTensor"),
    ("an id outside the vocabulary", {"input_ids": [[5, 361]]}, "id 361 at position 1, outside the vocabulary of 361"),
    ("a negative id", {"input_ids": [[-1]]}, "id -1"),
    ("the mask in a prompt", {"prompt": "a <mask>"}, "holds the mask token"),
    ("no tokens", {"prompt": "a", "max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
    ("negative new tokens", {"prompt": "a", "max_new_tokens": -3}, "got -3"),
    ("a fraction of a token", {"prompt": "a", "max_new_tokens": 2.5}, "got 2.5"),
    ("a block of nothing", {"prompt": "a", "block_length": 0}, "block_length must be a whole number of at least 1"),
    ("a block too long", {"prompt": "a", "block_length": 9, "max_new_tokens": 8}, "block_length=9 is longer than"),
    ("negative temperature", {"prompt": "a", "temperature": -0.1}, "temperature must be at least 0, got -0.1"),
    ("a temperature next to 0", {"prompt": "a", "temperature": 1e-41}, "0, or from 1e-06 to 1e+06"),
    ("a temperature past float32", {"prompt": "a", "temperature": 3.5e38}, "0, or from 1e-06 to 1e+06, got 3.5e+38"),
    ("guidance past any use", {"prompt": "a", "cfg": 1e30}, "cfg must be at most 1e+06, got 1e+30"),
    ("temperature not a number", {"prompt": "a", "temperature": float("nan")}, "temperature"),
    ("top_p of nothing", {"prompt": "a", "top_p": 0.0}, "top_p must be above 0 and at most 1"),
    ("top_p above one", {"prompt": "a", "top_p": 1.5}, "top_p"),
    ("top_k of nothing", {"prompt": "a", "top_k": 0}, "top_k must be a whole number of at least 1"),
    ("negative guidance", {"prompt": "a", "cfg": -1}, "cfg must be at least 0"),
    ("a misspelt keyword", {"prompt": "a", "max_new_token": 5}, "no argument 'max_new_token' (did you mean"),
    ("too many positions", {"prompt": "a", "max_new_tokens": 128}, "positions and random-dream has 128"),
    ("two seeds for three rows", {"prompt": ["a", "b", "a"], "seed": [1, 2]}, "2 seeds for 3 rows"),
    ("a seed in words", {"prompt": "a", "seed": "x"}, "seed must be a whole number"),
    ("an unknown grid", {"prompt": "a", "block_align": "left"}, "block_align"),
    ("an end token outside", {"prompt": "a", "stop_ids": [400]}, "stop_ids holds 400"),
    ("an end token outside, in a tensor", {"prompt": "a", "stop_ids": torch.tensor(400)}, "stop_ids holds 400"),
    ("endless answers", {"prompt": "a", "num_return_sequences": 10**9}, "num_return_sequences must be at most 65536"),
    ("a source without uniforms", {"prompt": "a", "source": 3}, "source has no method uniform"),
    ("a callback that is none", {"prompt": "a", "callback": 3}, "callback cannot be called"),
    ("an id for choices", {"prompt": "a", "allowed": [1]}, "allowed of row 0 has at index 0 1, which is not a list"),
    ("text for choices", {"prompt": "a", "allowed": {0: "he"}}, "has at index 0 'he', which is not a list of choices"),
    ("a text for all", {"prompt": "a", "allowed": "he"}, "allowed of row 0 is str"),
    ("an empty set", {"prompt": "a", "allowed": [None, []]}, "allowed of row 0 has at index 1 an empty set"),
    ("the mask alone", {"prompt": "a", "allowed": [[4, 4]]}, "at index 0 the mask token alone (id 4)"),
    ("an allowed id outside", {"prompt": "a", "allowed": {3: [5, 361]}}, "id 361, outside the vocabulary of 361"),
    ("a negative allowed id", {"prompt": "a", "allowed": {3: [-1]}}, "id -1, outside"),
    ("a fraction allowed", {"prompt": "a", "allowed": {3: [1.5]}}, "has at index 3 1.5, which is neither"),
    ("two tokens in one", {"prompt": "a", "allowed": [["he", "18"]]}, "'18', which is not a single token: it splits"),
    ("no token", {"prompt": "a", "allowed": [["he", ""]]}, "'', which is not a single token"),
    ("unknown text", {"prompt": "a", "allowed": [["é"]]}, "allowed of row 0 has at index 0 'é'"),
    ("an index too high", {"prompt": "a", "allowed": {64: [5]}}, "index 64, and 64 positions are generated"),
    ("an index in words", {"prompt": "a", "allowed": {"0": [5]}}, "names index '0'"),
    ("too many choices", {"prompt": "a", "max_new_tokens": 2, "allowed": [None] * 3}, "has 3 items, and 2 positions"),
    ("allowed for two rows", {"prompt": "a", "allowed": [{0: [5]}, None]}, "constraints for 2 rows, and there are 1"),
    ("a row of a wrong kind", {"prompt": ["a", "b"], "allowed": [{0: [5]}, 7]}, "allowed of row 1 is int"),
    ("nonsense from a call", {"prompt": "a", "allowed": lambda r, i: i or None}, "allowed(0, 1) returned 1, which"),
    ("an empty set from a call", {"prompt": "a", "allowed": lambda r, i: []}, "allowed(0, 0) returned an empty set"),
    ("a label", {"prompt": "a", "label": 3}, "label is for image models"),
    ("images", {"prompt": "a", "num_images": 2}, "num_images is for image models"),
    ("a template without gaps", {"template": "answer"}, "template 0 has no position to fill"),
    ("an empty template", {"template": []}, "template is neither"),
    ("three templates for two", {"prompt": ["a", "b"], "template": ["<mask>"] * 3}, "3 templates for 2 prompts"),
    ("an unknown sampler", {"prompt": "a", "sampler": "threshhold"}, "did you mean 'threshold'"),
    ("a misspelt parameter", {"prompt": "a", "sampler": "threshold:tua=1"}, "unknown parameter 'tua'"),
    ("two selects", {"prompt": "a", "sampler": "threshold+fixed"}, "2 select methods"),
    ("an unknown preset", {"prompt": "a", "sampler": "preset:fast"}, "unknown preset 'fast'"),
    ("a sampler that is none", {"prompt": "a", "sampler": 3}, "a sampler must be a spec string"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_refused_before_the_first_forward(
    model: pardec.Model, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.setattr("pardec.samplers.masked.loop.decode", lambda *_: pytest.fail("a forward was made"))
    with pytest.raises(pardec.PardecError) as caught:
        model.generate(**arguments)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)
    with pytest.raises(pardec.PardecError):
        model.stream(**arguments)


@pytest.mark.parametrize("ids", [torch.tensor([5]), torch.zeros(0, 3, dtype=torch.int64), [[5]], torch.tensor([[361]])])
def test_logits_refuses_what_is_no_batch_of_ids(model: pardec.Model, ids: Any) -> None:
    with pytest.raises(pardec.SpecError):
        model.logits(ids)


def test_text_needs_a_tokenizer_and_messages_a_template(model: pardec.Model) -> None:
    deaf = pardec.Model(replace(model.language_model, tokenizer=None))
    with pytest.raises(pardec.SpecError, match="without a tokenizer"):
        deaf.generate("a")
    assert deaf.generate(input_ids=[[5, 6]], max_new_tokens=2).text is None
    template, model.tokenizer.chat_template = model.tokenizer.chat_template, None
    try:
        with pytest.raises(pardec.SpecError, match="no chat template"):
            model.generate([{"role": "user", "content": "a"}])
    finally:
        model.tokenizer.chat_template = template


def test_a_masked_model_refuses_what_is_for_next_token_models() -> None:
    masked = pardec.load("tiny-dream", device="cpu")
    for given in ({"sampler": "lookup"}, {"logits_processor": [lambda ids, scores: scores]}):
        with pytest.raises(pardec.SpecError, match="masked|any order"):
            masked.generate("a", **given)
