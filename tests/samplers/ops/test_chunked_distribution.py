"""Logits in chunks give the results of logits in memory, in every stage, within the limit of rows at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.samplers.ops import chunked_distribution
from pardec.samplers.ops.chunked_distribution import ChunkedDistribution, join
from pardec.samplers.ops.distribution import DenseDistribution

PROMPTS = ["Tom has 18 cups. He loses 4. How many cups does Tom have now?", "Ann has 8 cups."]


@pytest.fixture(scope="module")
def model() -> pardec.Model:
    return pardec.load("tiny-dream", device="cpu")


@pytest.mark.parametrize(
    ("spec", "more"),
    [
        ("threshold:tau=0.9", {}),
        ("threshold:tau=0.9@dual", {"cfg": 1.5}),
        ("credit+threshold:tau=0.9+localleap+prophet:region=all@prefix", {}),
        ("entropy+fixed:steps=8", {"temperature": 0.8}),
        ("margin+threshold", {"temperature": 0.7, "top_p": 0.9, "top_k": 20}),
        ("threshold:tau=0.7+wino", {}),
        ("smoothing+threshold:tau=0.8@vicinity", {}),
        ("klass", {"allowed": {0: ["8", "5"], 1: None}}),
        ("threshold:tau=0.9@dkv", {"seed": 4, "temperature": 0.5}),
        ("threshold:tau=0.7+wino", {"repetition_penalty": 1.4, "min_new_tokens": 6}),
        ("threshold@dual", {"repetition_penalty": 1.4, "min_p": 0.1, "temperature": 0.7}),
    ],
)
def test_every_stage_sees_what_it_would(
    spec: str, more: dict[str, object], model: pardec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = {"sampler": spec, "max_new_tokens": 12, "block_length": 12, **more}
    held = model.generate(PROMPTS, **arguments)  # type: ignore[arg-type]
    monkeypatch.setattr(chunked_distribution, "CHUNK_BYTES", 5 * 4 * model.language_model.vocab_size)  # five rows
    pieced = model.generate(PROMPTS, **arguments)  # type: ignore[arg-type]
    assert torch.equal(held.sequences, pieced.sequences)
    assert held.nfe == pieced.nfe
    torch.testing.assert_close(
        torch.tensor(held.trace.commit_score), torch.tensor(pieced.trace.commit_score), rtol=1e-4, atol=1e-5
    )


def test_no_more_rows_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, vocab = torch.randn(23, 11), 11
    monkeypatch.setattr(chunked_distribution, "CHUNK_BYTES", 4 * vocab * 4)
    asked: list[int] = []

    def make(index: Tensor) -> Tensor:
        asked.append(len(index))
        return rows[index].clone()

    place = torch.randint(0, 23, (2, 9), generator=torch.Generator().manual_seed(1))
    distribution, whole = ChunkedDistribution(make, 23, vocab, place), DenseDistribution(rows, place)
    for name in ("ids", "top1", "top2", "mass", "entropy"):
        torch.testing.assert_close(getattr(distribution.confidence, name), getattr(whole.confidence, name))
    tokens = torch.randint(0, vocab, (2, 9, 3), generator=torch.Generator().manual_seed(2))
    assert torch.equal(distribution.logits_of(tokens), whole.logits_of(tokens))
    assert torch.equal(ChunkedDistribution(make, 23, vocab, place).greedy[0], whole.greedy[0])
    uniform = torch.rand(2, 9, vocab, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    noise = uniform.flatten(0, 1)
    for places in (np.arange(18), np.array([1, 2, 3, 5, 8, 13]), np.arange(0)):
        assert torch.equal(
            distribution.draw(places, lambda some: noise[some]), whole.draw(places, lambda some: noise[some])
        )
    table = torch.randn(vocab, 4)
    torch.testing.assert_close(distribution.expected(lambda p: p @ table), whole.expected(lambda p: p @ table))
    halved, plain = distribution.mapped(lambda x: x / 2), whole.mapped(lambda x: x / 2)
    torch.testing.assert_close(halved.confidence.entropy, plain.confidence.entropy)
    assert max(asked) == 4
    assert torch.equal(distribution.logits, whole.logits)  # only this one asks for all


def test_groups_join_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.randn(12, 7)
    first, second = (
        DenseDistribution(rows[:6].view(2, 3, 7)),
        ChunkedDistribution(lambda i: rows[6:][i], 6, 7, torch.arange(6).view(2, 3)),
    )
    order = torch.tensor([2, 0, 3, 1])
    expected = rows.view(4, 3, 7)[order]
    distribution = join([first, second], order)
    assert isinstance(distribution, ChunkedDistribution)
    assert torch.equal(distribution.logits, expected)
    assert torch.equal(distribution.greedy[0], expected.argmax(-1))
    assert torch.equal(join([first, DenseDistribution(rows[6:].view(2, 3, 7))], order).logits, expected)
    monkeypatch.setattr(chunked_distribution, "CHUNK_BYTES", 8 * 7 * 4)  # each alone is held, all of them are not
    assert isinstance(join([first, DenseDistribution(rows[6:].view(2, 3, 7))], order), ChunkedDistribution)
