"""presence_penalty, frequency_penalty and logit_bias by OpenAI's formula, with every drafter and in masked loops."""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from tests.samplers import toys
from tests.samplers.ar_toys import counted, floor, g_test, logits, rows, run, spread, toy_ar, variation
from tests.samplers.joint_distributions import SMALL, drafting

MODEL = toy_ar(3, 5)
PROMPTS = ((1, 3), (0, 2, 4, 0, 1))
NEW, DRAWS = 3, 2500
BIAS = ((1, 1.5), (2, -2.0))
ASKED: dict[str, Any] = {"presence_penalty": 0.8, "frequency_penalty": 0.7, "logit_bias": BIAS}


def changed(scores: Tensor, generated: list[int]) -> Tensor:
    """OpenAI's formula: mu[j] + bias[j] - c[j] * frequency - (c[j] > 0) * presence."""
    scores = scores.clone()
    for token, value in BIAS:
        scores[token] += value
    for token, count in Counter(generated).items():
        scores[token] -= count * ASKED["frequency_penalty"] + ASKED["presence_penalty"]
    return scores


@cache
def truth(prompt: tuple[int, ...]) -> np.ndarray:
    """The probability of every continuation, [V] * NEW."""
    found = np.zeros((MODEL.vocab_size,) * NEW)
    for answer in product(range(MODEL.vocab_size), repeat=NEW):
        probability, raw = 1.0, logits(MODEL, [[*prompt, *answer]])[0, len(prompt) - 1 :].double()
        for end, token in enumerate(answer):
            probability *= float((changed(raw[end], list(answer[:end])) / 0.9).softmax(-1)[token])
        found[answer] = probability
    return found


@pytest.mark.parametrize("drafter", ["sequential", "sjd", "recycling", "model"])
def test_draws_have_the_joint_distribution_of_the_formula(drafter: str) -> None:
    with drafting(MODEL.vocab_size):
        spec = f"{SMALL.get(drafter, drafter)}+speculative"
        done = run(MODEL, spec, PROMPTS * (DRAWS // 2), NEW, temperature=0.9, seeds=range(DRAWS), **ASKED)
    for at, prompt in enumerate(PROMPTS):
        expected, counts = truth(prompt), counted(done, len(prompt), NEW, MODEL.vocab_size, slice(at, None, 2))
        assert g_test(counts, expected) < 4
        assert variation(counts, expected) < floor(expected, DRAWS // 2) + 4 * spread(expected, DRAWS // 2)


@pytest.mark.parametrize("drafter", ["sequential", "lookup", "jacobi", "recycling", "earlyexit", "model"])
def test_greedy_rows_are_those_of_the_formula(drafter: str) -> None:
    new = 12
    with drafting(MODEL.vocab_size):
        done = run(MODEL, f"{SMALL.get(drafter, drafter)}+greedy", PROMPTS, new, **ASKED)
    for row, prompt in zip(rows(done), PROMPTS, strict=True):
        answer: list[int] = []
        while len(answer) < new:
            answer.append(int(changed(logits(MODEL, [[*prompt, *answer]])[0, -1], answer).argmax()))
        assert row == [*prompt, *answer]
        assert len(set(answer)) > 1


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_masked_row_is_that_of_a_naive_loop(family: str) -> None:
    model, given, new = toys.toy(family), toys.prompts([3, 5]), 8
    mask, ends = model.decoding_config.mask_id, model.decoding_config.eos_ids
    assert mask is not None
    asked: dict[str, Any] = {"block_length": new, "stop_ids": ends, **ASKED}
    done = toys.fill(model, "confidence", given, new, **asked)
    plain = toys.fill(model, "confidence", given, new, block_length=new, stop_ids=ends)
    assert not np.array_equal(done.tokens, plain.tokens)
    for row, prompt in enumerate(given):
        canvas = [*prompt, *[mask] * new]
        while mask in canvas:
            raw = pardec.Model(model).logits(torch.tensor([canvas]))[0]
            written = [token for token in canvas[len(prompt) :] if token != mask and token not in ends]
            best = (-1.0, 0, 0)
            for at in (at for at, token in enumerate(canvas) if token == mask):
                scores = changed(raw[at - model.decoding_config.shift], written)
                scores[mask] = -torch.inf
                probability, token = scores.softmax(-1).max(-1)
                best = max(best, (float(probability), at, int(token)), key=lambda each: each[0])
            canvas[best[1]] = best[2]
        assert done.tokens[row, : len(canvas)].tolist() == canvas


@pytest.mark.parametrize("spec", ["threshold:tau=0.3@dual", "wino@dual", "edit+threshold"])
def test_masked_rows_are_the_same_alone_and_in_a_batch(spec: str) -> None:
    model, given = toys.toy(), toys.prompts([3, 5, 4])
    asked: dict[str, Any] = {**ASKED, "temperature": 1.0, "stop_ids": model.decoding_config.eos_ids, "block_length": 4}
    whole = toys.fill(model, spec, given, 8, seeds=(7, 8, 9), **asked)
    for row, prompt in enumerate(given):
        assert toys.same(whole, row, toys.fill(model, spec, [prompt], 8, seeds=(7 + row,), **asked), 0)


def test_arguments_out_of_range_are_refused() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    for wrong, word in (
        ({"presence_penalty": 2.5}, "presence_penalty must be from -2 to 2"),
        ({"frequency_penalty": True}, "frequency_penalty must be"),
        ({"logit_bias": {1: 200}}, "logit_bias of token 1 must be from -100 to 100"),
        ({"logit_bias": {"a": 1}}, "'a', which is not the id"),
        ({"logit_bias": {10**6: 1}}, "not an id in the vocabulary"),
    ):
        with pytest.raises(pardec.SpecError, match=word):
            model.generate("Tom has 3 cups.", max_new_tokens=2, **wrong)  # type: ignore[arg-type]
