"""The C kernels that rank a row's tokens, or give chosen tokens' probabilities, compared with their definitions."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.ops.confidence import likeliest, likeliest_c, probability_c, probability_of

pytestmark = pytest.mark.usefixtures("in_c")


def logits_of(*shape, spread=3.0, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("shape", [(1,), (3, 15), (2, 5, 16), (4, 31), (0, 9), (2, 361), (3, 20000)], ids=str)
@pytest.mark.parametrize("count", [1, 4, 9])
@pytest.mark.parametrize("spread", [0.01, 3.0, 300.0])
def test_the_highest_in_order(shape, count, spread):
    logits, count = logits_of(*shape, spread=spread), min(count, shape[-1])
    log_probs, columns = likeliest_c(logits, count)
    expected = logits.double().log_softmax(-1).topk(count)
    assert torch.equal(columns, expected.indices)
    torch.testing.assert_close(log_probs.double(), expected.values, rtol=1e-6, atol=2e-6)


def test_equals_come_in_the_order_of_their_places():
    logits = torch.zeros(1, 40)
    logits[0, [33, 3, 20]] = 5.0
    assert likeliest_c(logits, 5)[1].tolist() == [[3, 20, 33, 0, 1]]


def test_what_is_ruled_out_comes_last():
    logits = torch.full((1, 40), -torch.inf)
    logits[0, [7, 25]] = torch.tensor([1.0, 2.0])
    log_probs, columns = likeliest_c(logits, 3)
    assert columns[0, :2].tolist() == [25, 7]
    assert len(set(columns[0].tolist())) == 3
    assert log_probs[0, 2] == -torch.inf


@pytest.mark.parametrize("at", [0, 2, 20, 39])
def test_what_is_no_number_is_not_hidden(at):
    logits = logits_of(3, 40)
    logits[1, at] = float("nan")
    assert likeliest_c(logits, 4)[0].isnan().all(1).tolist() == [False, True, False]
    found = probability_c(logits, torch.arange(3), torch.tensor([5, 5, 5]))
    assert found.isnan().tolist() == [False, True, False]


def test_a_row_alone_gives_the_bits_that_it_gives_in_a_batch():
    logits = logits_of(5, 1000)
    whole = likeliest_c(logits, 4)
    for row in range(5):
        alone = likeliest_c(logits[row : row + 1], 4)
        assert torch.equal(alone[0][0], whole[0][row])
        assert torch.equal(alone[1][0], whole[1][row])


@pytest.mark.parametrize("width", [1, 15, 16, 361, 20000])
def test_probabilities_of_chosen_tokens(width):
    logits = logits_of(2, 3, width)
    rows, ids = torch.tensor([5, 0, 3, 3]), torch.tensor([0, width - 1, width // 2, 0])
    expected = logits.double().softmax(-1).flatten(0, 1)[rows, ids]
    torch.testing.assert_close(probability_c(logits, rows, ids).double(), expected, rtol=1e-5, atol=1e-30)


def test_they_are_what_the_operations_take(monkeypatch):
    logits, rows, ids = logits_of(2, 50), torch.tensor([1, 0]), torch.tensor([49, 7])
    with torch.no_grad():
        found = *likeliest(logits, 60), probability_of(logits, rows, ids)
        monkeypatch.setenv("PARDEC_KERNELS", "reference")
        expected = *likeliest(logits, 60), probability_of(logits, rows, ids)
    for value, other in zip(found, expected, strict=True):
        torch.testing.assert_close(value, other)
