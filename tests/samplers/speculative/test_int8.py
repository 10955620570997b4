"""`int8`: older K/V stored as bytes with one scale each.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import torch

from pardec.samplers.speculative.cache.int8 import TokenInt8
from tests.reference import naive_stores as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import check_tokens, through


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    check_tokens("int8:chunk=4,residual=3", 4, 3, 0, lambda k, v, first: (naive.int8(k), naive.int8(v)))


def test_no_number_is_off_by_more_than_half_a_scale() -> None:
    x = torch.randn(2, 4, 2, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    scale = x.abs().amax(-1, keepdim=True) / 127 * (1 + 2**-10)  # stored in float16, rounded up
    assert ((through(TokenInt8(), x) - x).abs() <= scale / 2 + 1e-6).all()


test_bad_parameters = refused_specs(
    [("chunk=0", "chunk must"), ("residual=-1", "residual must")], family="ar", before="sequential@int8:"
)
