"""The deviation of lossy decoding, measured with the model itself."""

from __future__ import annotations

import math

import pytest

import pardec
from pardec.models.errors import SpecError

PROMPTS = ["Write the numbers from 3 to 9: ", "Ann has 3 apples and buys 4. How many?"]


def test_an_exact_answer_deviates_nowhere() -> None:
    model = pardec.load("tiny-llama")
    for sampler in ("sequential", "lookup", "sequential@streaming"):  # the window is wider than the texts
        measured = model.deviation(model.generate(PROMPTS, sampler=sampler, max_new_tokens=16))
        assert measured.agreement == [1.0, 1.0]
        assert max(measured.nats) < 1e-4


def test_a_lossy_one_is_measured_token_by_token() -> None:
    model = pardec.load("tiny-llama")
    result = model.generate(PROMPTS, sampler="sequential@streaming:sink=1,window=8", max_new_tokens=16)
    measured = model.deviation(result)
    for row, start in enumerate(result.prompts):
        right, apart = [], []
        for at in range(start, start + len(result.tokens[row])):
            logprobs = model.logits(result.sequences[row, None, :at])[0, -1].log_softmax(-1)
            token = int(result.sequences[row, at])
            right.append(int(logprobs.argmax()) == token)
            apart.append(abs(float(logprobs[token]) - math.log(result.trace.commit_score[row, at])))
        assert measured.agreement[row] == pytest.approx(sum(right) / len(right))
        assert measured.nats[row] == pytest.approx(sum(apart) / len(apart), abs=1e-4)
    assert max(measured.nats) > 0.1


def test_masked_results_are_refused() -> None:
    masked = pardec.load("tiny-dream")
    with pytest.raises(SpecError, match="only the result of an autoregressive model"):
        masked.deviation(masked.generate("1+1=", max_new_tokens=4))
