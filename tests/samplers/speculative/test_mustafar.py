"""`mustafar`: the largest entries of each token's K/V are kept.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import numpy as np
import torch

from pardec.samplers.speculative.cache.mustafar import Pruned
from tests.reference import naive_stores as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import check_tokens


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    def encode(k: np.ndarray, v: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        return naive.pruned(0.5)(k), naive.pruned(0.5)(v)

    check_tokens("mustafar:sparsity=0.5,chunk=4,residual=3", 4, 3, 0, encode)


def test_of_equal_entries_the_first_stay() -> None:
    parts = Pruned(0.5).encode(torch.tensor([1.0, -1, 1, 1, -1, 1, 1, 1]).view(1, 1, 1, 8), {})
    assert (parts["bitmap"].flatten().tolist(), parts["values"].flatten().tolist()) == ([0b00001111], [1, -1, 1, 1])


test_bad_parameters = refused_specs(
    [("sparsity=1", "sparsity must lie in")], family="ar", before="sequential@mustafar:"
)
