"""`gear`: few bits, the largest errors stored exactly, and the remaining error at low rank.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import numpy as np
import torch

from pardec.models.kv_stores.contracts import ChunkShape
from pardec.samplers.speculative.cache.gear import Gear
from tests.reference import naive_stores as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import check_tokens, in_chunks, through


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    keys, values = (naive.gear(2, 0.1, 2, token=token) for token in (False, True))

    def encode(k: np.ndarray, v: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        return in_chunks(keys, 6, k), in_chunks(values, 6, v)

    check_tokens("gear:bits=2,chunk=6,rank=2,sparsity=0.1", 6, 1, 0, encode)


def test_outliers_stand_where_they_were_in_the_longest_chunk_of_the_widest_heads() -> None:
    x = torch.zeros(1, 128, 1, 512)
    x[0, :, 0, 300] = torch.arange(1.0, 129)  # in a chunk of zeros the outliers are these, up to index 65,324
    store = Gear(bits=8, rank=0, sparsity=128 / (128 * 512), chunk=128).store
    assert torch.equal(through(store.values, x), x)


def test_a_value_is_quantized_with_all_channels_of_its_token_whatever_the_chunk() -> None:
    for chunk in (1, 20):
        assert Gear(chunk=chunk).store.values.layout(ChunkShape(chunk, 3, 256, torch.float32))["scale"][0] == (
            3 * chunk,
        )


test_bad_parameters = refused_specs(
    [("bits=16", "bits must be at most 8"), ("chunk=200", "chunk must lie in")], family="ar", before="sequential@gear:"
)
