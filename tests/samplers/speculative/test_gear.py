"""`gear`: few bits, the largest errors stored exactly, and the remaining error at low rank.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import numpy as np

from tests.reference import naive_stores as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import check_tokens, in_chunks


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    keys, values = (naive.gear(2, 0.1, 2, token=token) for token in (False, True))

    def encode(k: np.ndarray, v: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
        return in_chunks(keys, 6, k), in_chunks(values, 6, v)

    check_tokens("gear:bits=2,chunk=6,rank=2,sparsity=0.1", 6, 1, 0, encode)


test_bad_parameters = refused_specs(
    [("bits=16", "bits must be at most 8"), ("chunk=200", "chunk must lie in")], family="ar", before="sequential@gear:"
)
