"""min_p, repetition_penalty and min_new_tokens: transformers' distribution with every drafter; naive masked loops."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import pardec
from pardec.models.model import LanguageModel
from pardec.samplers.ops.distribution import filter_logits
from pardec.samplers.ops.penalties import penalize, token_counts, without_ends
from tests.samplers import toys
from tests.samplers.ar_toys import counted, floor, g_test, logits, rows, run, spread, toy_ar, variation
from tests.samplers.joint_distributions import SMALL, drafting

MODEL = toy_ar(3, 5)
PROMPTS = ((1, 3), (0, 2, 4, 0, 1))
END, NEW, DRAWS = 4, 3, 2500
ASKED: dict[str, Any] = {"min_p": 0.2, "top_k": 4, "top_p": 0.97, "repetition_penalty": 1.6, "min_new_tokens": NEW}
TEMPERATURE = 0.9


def processors(prompt: int, *, temperature: float) -> LogitsProcessorList:
    """The processors that transformers' `generate` creates for the same arguments, in its order."""
    made = [RepetitionPenaltyLogitsProcessor(ASKED["repetition_penalty"])]
    made += [MinNewTokensLengthLogitsProcessor(prompt, ASKED["min_new_tokens"], END)]
    if temperature:
        made += [TemperatureLogitsWarper(temperature), TopKLogitsWarper(ASKED["top_k"])]
        made += [TopPLogitsWarper(ASKED["top_p"]), MinPLogitsWarper(ASKED["min_p"])]
    return LogitsProcessorList(made)


@cache
def truth(prompt: tuple[int, ...]) -> np.ndarray:
    """The probability of every continuation, [V] * NEW."""
    vocab, chain = MODEL.vocab_size, processors(len(prompt), temperature=TEMPERATURE)
    found = np.zeros((vocab,) * NEW)
    for end in product(range(vocab), repeat=NEW):
        text, probability = list(prompt), 1.0
        for token in end:
            scores = chain(torch.tensor([text]), logits(MODEL, [text])[:, -1])
            probability *= float(scores.double().softmax(-1)[0, token])
            text.append(token)
            if not probability:
                break
        found[end] = probability
    return found


@pytest.mark.parametrize("drafter", ["sequential", "sjd", "recycling", "model"])
def test_draws_have_the_joint_distribution_that_transformers_processors_make(drafter: str) -> None:
    spec = f"{SMALL.get(drafter, drafter)}+speculative"
    with drafting(MODEL.vocab_size):
        done = run(
            MODEL,
            spec,
            PROMPTS * (DRAWS // 2),
            NEW,
            temperature=TEMPERATURE,
            seeds=range(DRAWS),
            **ASKED,
            stop_ids=(END,),
        )
    for at, prompt in enumerate(PROMPTS):
        distribution, counts = truth(prompt), counted(done, len(prompt), NEW, MODEL.vocab_size, slice(at, None, 2))
        assert (distribution == 0).any()
        assert distribution.sum() == pytest.approx(1)
        assert g_test(counts, distribution) < 4
        assert variation(counts, distribution) < floor(distribution, DRAWS // 2) + 4 * spread(distribution, DRAWS // 2)


@pytest.mark.parametrize("drafter", ["sequential", "lookup", "jacobi", "recycling", "earlyexit", "model"])
def test_greedy_rows_are_those_of_transformers_processors(drafter: str) -> None:
    new, shared = 12, {**ASKED, "min_new_tokens": 5}
    with drafting(MODEL.vocab_size):
        done = run(MODEL, f"{SMALL.get(drafter, drafter)}+greedy", PROMPTS, new, stop_ids=(END,), **shared)
    for row, prompt in zip(rows(done), PROMPTS, strict=True):
        chain, text = processors(len(prompt), temperature=0), list(prompt)
        chain[1] = MinNewTokensLengthLogitsProcessor(len(prompt), 5, END)
        while len(text) < len(prompt) + new and (len(text) == len(prompt) or text[-1] != END):
            text.append(int(chain(torch.tensor([text]), logits(MODEL, [text])[:, -1]).argmax()))
        assert row == text


def test_min_p_comes_after_the_other_filters_in_both_families() -> None:
    drawn = torch.randn(3, 2, 50, generator=torch.Generator().manual_seed(0)) * 3
    for order, first in (("top_k", TopKLogitsWarper(9)), ("top_p", TopPLogitsWarper(0.8))):
        second = TopPLogitsWarper(0.8) if order == "top_k" else TopKLogitsWarper(9)
        expected = drawn.flatten(0, 1) / 0.7
        for warper in (first, second, MinPLogitsWarper(0.15)):
            expected = warper(None, expected)
        found = filter_logits(drawn, temperature=0.7, top_k=9, top_p=0.8, min_p=0.15, order=order)  # type: ignore[arg-type]
        assert torch.equal(found.flatten(0, 1), expected)
        assert found.isfinite().sum() < filter_logits(drawn, temperature=0.7, top_k=9, top_p=0.8).isfinite().sum()


# --- masked models ---


def naive(model: LanguageModel, given: list[int], new: int, penalty: float, least: int) -> list[int]:
    """Confidence decoding of one row, one token per step: the most confident open position gets its argmax."""
    mask, shift = model.decoding_config.mask_id, model.decoding_config.shift
    assert mask is not None
    ends, start = model.decoding_config.eos_ids, len(given)
    canvas = given + [mask] * new
    while mask in canvas:
        raw = pardec.Model(model).logits(torch.tensor([canvas]))[0]
        standing_ids = {token for token in canvas if token != mask and token not in ends}
        best = None
        for at in (i for i, token in enumerate(canvas) if token == mask):
            scores = raw[at - shift].clone()
            for token in standing_ids:
                scores[token] = scores[token] / penalty if scores[token] > 0 else scores[token] * penalty
            scores[mask] = -torch.inf
            if at - start < least:
                scores[list(ends)] = -torch.inf
            probability, token = scores.softmax(-1).max(-1)
            if best is None or float(probability) > best[0]:
                best = (float(probability), at, int(token))
        assert best is not None
        canvas[best[1]] = best[2]
    return canvas


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_a_masked_row_is_that_of_a_naive_loop(family: str) -> None:
    model, given = toys.toy(family), toys.prompts([3, 5])
    for penalty, least in ((1.0, 0), (2.5, 0), (1.0, 6), (2.5, 4)):
        asked: dict[str, Any] = {"block_length": 8, "stop_ids": model.decoding_config.eos_ids, "min_new_tokens": least}
        asked |= {"repetition_penalty": penalty} if penalty != 1 else {}
        done = toys.fill(model, "confidence", given, 8, **asked)
        for row, prompt in enumerate(given):
            found = done.tokens[row, : len(prompt) + 8].tolist()
            assert found == naive(model, prompt, 8, penalty, least), (penalty, least)


def test_a_token_does_not_stand_in_its_own_way() -> None:
    tokens = torch.tensor([[1, 2, 2, 3, 0]])
    stands = torch.tensor([[True, True, True, True, False]])
    counts = token_counts(tokens, stands, 5, exempt=(3,))
    assert counts.tolist() == [[0, 1, 2, 0, 0]]
    scores = torch.tensor([2.0, 2.0, -2.0, 2.0, 2.0]).expand(1, 3, 5)
    found = penalize(scores, counts[:, None], torch.tensor([[1, 2, -1]]), 2.0)
    assert found.tolist() == [[[2, 2, -4, 2, 2], [2, 1, -4, 2, 2], [2, 1, -4, 2, 2]]]
    early = without_ends(scores, torch.tensor([[True, False, True]]), (3, 4))
    assert early.isinf().tolist() == [[[False] * 3 + [True] * 2, [False] * 5, [False] * 3 + [True] * 2]]


@pytest.mark.parametrize("spec", ["threshold:tau=0.3@dual", "wino@dual", "remdm+threshold:tau=0.3", "edit+threshold"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(1)
def test_masked_rows_are_the_same_alone_and_in_a_batch(spec: str, temperature: float) -> None:
    model, given = toys.toy(), toys.prompts([3, 5, 4])
    asked: dict[str, Any] = {"repetition_penalty": 1.7, "min_p": 0.1, "min_new_tokens": 3, "temperature": temperature}
    asked |= {"stop_ids": model.decoding_config.eos_ids, "block_length": 4}
    whole = toys.fill(model, spec, given, 8, seeds=(7, 8, 9), **asked)
    for row, prompt in enumerate(given):
        alone = toys.fill(model, spec, [prompt], 8, seeds=(7 + row,), **asked)
        assert toys.same(whole, row, alone, 0)
        end = model.decoding_config.eos_ids
        assert not set(end) & set(whole.tokens[row, len(prompt) : len(prompt) + 3].tolist())
