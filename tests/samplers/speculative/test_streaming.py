"""`streaming`: the first tokens of a text and a window of the last ones are read."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pardec
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import prompts, rows, run, toy_ar

VOCAB = 8
GIVEN, NEW = prompts((3, 6, 1, 9, 40), vocab=VOCAB), (20, 12, 30, 25, 20)


def target(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=dtype)


@pytest.mark.parametrize("drafter", ["lookup:k=3", "layerskip:k=3+template:widths=2-2-1"])
def test_every_drafter_gives_what_sequential_gives_through_the_same_window(drafter: str) -> None:
    """Each query sees its own window, whatever else is fed: the plain version says what that gives."""
    model, cache = target(torch.float64), "streaming:sink=2,window=6"
    done = run(model, f"{drafter}@{cache}", GIVEN, NEW)
    assert rows(done) == rows(run(model, f"sequential@{cache}", GIVEN, NEW))
    text = rows(done)[1]
    truth = naive(model.decoder, text, 2, 6, None)
    assert truth[len(GIVEN[1]) - 1 : -1].argmax(-1).tolist() == text[len(GIVEN[1]) :]


@pytest.mark.seeds("arXiv:2309.17453")
def test_a_query_reads_the_first_tokens_and_its_window_in_memory_of_constant_size() -> None:
    """As a mask over all keys and values gives it, on a trained model; plain attention while the text fits."""
    network = pardec.load("tiny-llama", device="cpu").language_model
    stage = registry.resolve("sequential@streaming:sink=4,window=20", "ar").cache
    assert stage is not None
    text = torch.from_numpy(np.random.RandomState(0).randint(0, 300, (2, 90)))
    order = torch.arange(90)
    seen = (order <= order[:, None]) & ((order < 4) | (order > order[:, None] - 20))
    with torch.inference_mode():
        cache = stage.new_cache(network, 2, 90)
        read = network.forward(Plan.full(text, Visible.causal()), cache).logits()
        masked = network.forward(Plan.full(text, Visible.mask(seen.expand(2, -1, -1)))).logits()
        plain = network.forward(Plan.full(text, Visible.causal())).logits()
    torch.testing.assert_close(read, masked, rtol=0, atol=1e-4)
    torch.testing.assert_close(read[:, :20], plain[:, :20], rtol=0, atol=1e-4)
    assert (read[:, 40:] - plain[:, 40:]).abs().max() > 0.5
    assert cache.nbytes == stage.new_cache(network, 2, 900).nbytes
