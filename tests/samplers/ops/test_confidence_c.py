"""The C kernel for the likeliest token, compared with the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers.ops.confidence import argmax, greedy, greedy_c, picks, probability_of
from pardec.samplers.speculative.contracts import TargetDistributions

pytestmark = pytest.mark.usefixtures("in_c")


@pytest.mark.parametrize("shape", [(1,), (3, 15), (2, 5, 16), (4, 31), (0, 9), (7, 33), (2, 361), (3, 20000)], ids=str)
@pytest.mark.parametrize("spread", [0.01, 3.0, 300.0])
def test_the_highest_and_its_probability(shape, spread):
    held = torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(0)) * spread
    held[..., shape[-1] :] = float("nan")
    logits = held[..., : shape[-1]]
    ids, probability = greedy_c(logits)
    assert torch.equal(ids, logits.argmax(-1))
    torch.testing.assert_close(probability.double(), logits.double().softmax(-1).amax(-1), rtol=1e-5, atol=0)


def test_threads_change_nothing(in_two_threads):
    logits = torch.randn(9, 100, generator=torch.Generator().manual_seed(0))
    (ids, probability), expected = in_two_threads(lambda: greedy_c(logits)), greedy_c(logits)
    assert torch.equal(ids, expected[0])
    assert torch.equal(probability, expected[1])


@pytest.mark.parametrize("places", [(3, 9), (3, 30), (30, 3), (16, 17), (0, 39)])
def test_the_lowest_of_equals_is_named(places):
    logits = torch.zeros(2, 40)
    logits[0, list(places)] = 5.0
    assert greedy_c(logits)[0].tolist() == [min(places), 0]


def test_what_is_ruled_out_has_no_part():
    logits = torch.full((1, 40), -torch.inf)
    logits[0, [7, 25]] = torch.tensor([1.0, 2.0])
    ids, probability = greedy_c(logits)
    assert ids.item() == 25
    torch.testing.assert_close(probability, logits.softmax(-1)[:, 25])


def test_what_is_no_number_is_not_hidden():
    logits = torch.zeros(3, 40)
    logits[1, 20] = float("nan")
    assert greedy_c(logits)[1].isnan().tolist() == [False, True, False]


def test_it_is_what_greedy_takes(monkeypatch):
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        found = greedy(logits)
        monkeypatch.setenv("PARDEC_KERNELS", "reference")
        expected = greedy(logits)
    assert torch.equal(found[0], expected[0])
    torch.testing.assert_close(found[1], expected[1])


@torch.inference_mode()
def test_scores_of_picks_and_of_other_tokens_have_the_bits_of_their_own_pass():
    raw = torch.randn(2, 3, 500, generator=torch.Generator().manual_seed(0))
    ids, share = picks(raw)
    assert torch.equal(ids, argmax(raw))
    assert share is not None
    for nodes, tokens in (
        ([1, 4], ids.flatten()[[1, 4]]),
        ([5, 0], torch.tensor([3, 7])),
        ([2, 3], ids.flatten()[[2, 4]]),
    ):
        made = TargetDistributions(raw, raw, greedy=True)
        assert torch.equal(made.pick, argmax(raw))
        expected = probability_of(raw, torch.tensor(nodes), tokens)
        rows, columns = np.divmod(nodes, 3)
        assert made.score(rows, columns, tokens.numpy()).tolist() == expected.tolist()
    assert picks(raw.bfloat16())[1] is None
    changed = TargetDistributions(raw, raw.flip(-1), greedy=True)
    assert torch.equal(changed.pick, argmax(raw.flip(-1)))
