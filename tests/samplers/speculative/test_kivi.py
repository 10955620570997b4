"""`kivi`: keys per channel and values per token in few bits.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import numpy as np
import torch

from pardec.models.kv_stores.contracts import ChunkShape
from pardec.samplers.speculative.cache.kivi import PerChannel, PerToken
from tests.reference import naive_stores as naive
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import NEW, VOCAB, check_tokens, in_chunks, target, texts


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    def encode(k: np.ndarray, v: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        return in_chunks(naive.by_channel(2), 4, k), naive.by_token(2, 4)(v)

    check_tokens("kivi:bits=2,group=4,residual=3", 4, 3, 0, encode)


def test_of_several_heads_each_keeps_its_own() -> None:
    x = torch.randn(2, 6, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for codec in (PerChannel(8), PerToken(8, 4)):
        back = codec.decode(codec.encode(x, {}), {}, ChunkShape(6, 3, 8, x.dtype))
        assert (back - x).abs().max() < 0.02


def test_without_codes_all_numbers_are_those_of_the_plain_cache() -> None:
    model = toy_ar(3, VOCAB, 1.5, layers=3)
    for draft in ("sequential", "lookup", "earlyexit:layers=1,k=3+beam:nodes=6"):
        plain, stored = (run(model, draft + cache, texts(), NEW) for cache in ("", "@kivi:bits=16,group=4,residual=3"))
        assert rows(plain) == rows(stored)
        if draft == "sequential":
            assert (plain.trace.commit_score == stored.trace.commit_score).all()


def test_rounds_need_not_be_aligned() -> None:
    """Then a draft reads exact K/V where sequential decoding reads encoded ones, and longer drafts are accepted."""
    store = "kivi:bits=8,group=4,residual=1"
    free, aligned = (run(target(), f"lookup@{store},aligned={each}", texts(), NEW) for each in ("false", "true"))
    assert sum(free.nfe) <= sum(aligned.nfe)
    widest = max(len(fed) for row in free.trace.fed for fed in row[1:])
    assert max(len(fed) for row in aligned.trace.fed for fed in row[1:]) <= 4 < widest


test_bad_parameters = refused_specs(
    [("bits=5", "bits must be one of 2, 3, 4, 8 or 16"), ("residual=0", "residual must be at least 1")],
    family="ar",
    before="sequential@kivi:",
)
