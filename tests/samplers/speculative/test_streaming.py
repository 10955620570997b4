"""`streaming`: reads the first tokens of a text and a window of its last ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import pardec
from pardec.models.caches.kv_cache import KVCache
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from pardec.samplers.speculative.cache.streaming import Streaming
from pardec.samplers.speculative.sparse_kv import CommittedSlots
from tests.models import test_window_cache as windows
from tests.samplers.reading_drafts import same_window_for_every_drafter

test_every_drafter_gives_what_sequential_gives_through_the_same_window = same_window_for_every_drafter(
    "streaming", None
)


@pytest.mark.seeds("arXiv:2309.17453")
def test_a_query_reads_the_first_tokens_and_its_window_in_memory_of_constant_size() -> None:
    """Equal to a mask over all K/V, on a trained model; plain attention while the text fits."""
    windows.test_a_prompt_and_what_follows_are_those_of_the_plain_version(None)
    windows.test_rows_of_any_length_and_trees_are_those_of_rows_alone(None)
    cache = KVCache(layers=1, batch=3, capacity=8, kv_heads=1, head_dim=2, dtype=torch.float32)
    slots = CommittedSlots(cache, np.arange(3), np.array([7, 4, 1]), ())
    choice = Streaming(sink=2, window=3).choose(slots)
    assert choice.first.tolist() == [4, 2, 1]  # the last three, or all after the first two
    assert choice.chosen[0][..., 0].tolist() == [[0, 1], [0, 1], [0, -1]]
    assert choice.counts is not None
    assert choice.counts.tolist() == [[2, 2, 1]]
    assert int((choice.counts + slots.length - choice.first).max()) == Streaming(sink=2, window=3).most
    network = pardec.load("tiny-llama", device="cpu").language_model
    stage = registry.resolve("sequential@streaming:sink=4,window=20", "ar").cache
    assert stage is not None
    text = torch.from_numpy(np.random.RandomState(0).randint(0, 300, (2, 90)))
    order = torch.arange(90)
    seen = (order <= order[:, None]) & ((order < 4) | (order > order[:, None] - 20))
    with torch.inference_mode():
        window = stage.new_cache(network, 2, 90)
        read = network.forward(Plan.full(text, Visible.causal()), window).logits()
        masked = network.forward(Plan.full(text, Visible.mask(seen.expand(2, -1, -1)))).logits()
        plain = network.forward(Plan.full(text, Visible.causal())).logits()
    torch.testing.assert_close(read, masked, rtol=0, atol=1e-4)
    torch.testing.assert_close(read[:, :20], plain[:, :20], rtol=0, atol=1e-4)
    assert (read[:, 40:] - plain[:, 40:]).abs().max() > 0.5
    assert window.nbytes == stage.new_cache(network, 2, 900).nbytes
