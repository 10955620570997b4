"""`retrieval`: the chunks whose mean keys match the last query best are read."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from pardec.models.caches.compact_cache import text_keys
from pardec.models.caches.kv_cache import KVCache
from pardec.samplers.speculative.cache.retrieval import Retrieval
from pardec.samplers.speculative.sparse_kv import Choice, CommittedSlots
from tests.samplers.ar_toys import prompts, run, toy_ar
from tests.samplers.spec_checks import refused_specs


def naive_chunks(q: Tensor, k: Tensor, size: int, budget: int) -> list[list[int]]:
    """The chunks that each key head reads: q [H, D], k [S, K, D]."""
    kv, share = k.shape[1], len(q) // k.shape[1]
    chosen = []
    for head in range(kv):
        total = [0.0] * (len(k) // size)
        for query in q[head * share : (head + 1) * share]:
            means = [k[size * at : size * (at + 1), head].mean(0) for at in range(len(total))]
            weights = [float((query @ mean / len(query) ** 0.5).exp()) for mean in means]
            total = [old + weight / sum(weights) for old, weight in zip(total, weights, strict=True)]
        best = sorted(range(1, len(total)), key=lambda at: -total[at])
        chosen.append(sorted([0, *best[: budget // size - 1]]))
    return chosen


def test_retrieval_chooses_the_chunks_of_the_plain_version() -> None:
    rng, lengths = np.random.RandomState(0), np.array([23, 7, 2, 12])
    cache = KVCache(layers=2, batch=4, capacity=24, kv_heads=2, head_dim=4, dtype=torch.float64)
    queries = tuple(torch.from_numpy(rng.standard_normal((4, 1, 6, 4))) for _ in range(2))
    for k in cache.k:
        k.copy_(torch.from_numpy(rng.standard_normal(k.shape)))
        for row, length in enumerate(lengths):
            k[row, length:] = torch.nan  # after the text
    choice = Retrieval(budget=9, chunk=3).choose(CommittedSlots(cache, np.arange(4), lengths, queries))
    assert choice.first.tolist() == [21, 6, 0, 12]
    assert choice.counts is not None
    assert choice.counts.tolist() == [[9, 6, 0, 9]] * 2
    for layer, slots in enumerate(choice.chosen):
        for row, length in enumerate(lengths // 3 * 3):
            wanted = naive_chunks(
                queries[layer][row, 0], text_keys(cache, layer, torch.arange(4), 24)[row, :length], 3, 9
            )
            for head, chunks in enumerate(wanted if length else [[], []]):
                expected = [3 * chunk + at for chunk in chunks for at in range(3)]
                assert [slot for slot in slots[row, :, head].tolist() if slot >= 0] == expected


def test_chunks_are_chosen_after_the_prompt_and_again_after_every_refresh_rounds() -> None:
    lengths: list[list[int]] = []
    choose = Retrieval.choose

    def recorded(self: Retrieval, slots: CommittedSlots) -> Choice:
        lengths.append(slots.length.tolist())
        return choose(self, slots)

    with patch.object(Retrieval, "choose", recorded):
        run(toy_ar(3, 8), "sequential@retrieval:budget=4,chunk=2,refresh=3", prompts((12, 9), vocab=8), 10)
    assert lengths == [[12, 9], [15, 12], [18, 15], [21, 18]]


test_bad_parameters = refused_specs(
    [("budget=4", "budget must be at least 8"), ("chunk=0", "chunk must"), ("refresh=0", "refresh must")],
    family="ar",
    before="sequential@retrieval:",
)
