"""`rotatekv`: K/V are rotated before they are encoded in few bits; the first tokens stay exact.

What holds for every cache that encodes older K/V is test_stores_contract.py.
"""

from __future__ import annotations

import numpy as np
import torch

from pardec.samplers.speculative.cache.rotatekv import Rotated
from tests.reference import naive_stores as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.store_checks import check_tokens, of_family, target, taught, through


def rotated(keys: np.ndarray, values: np.ndarray, first: int) -> tuple[np.ndarray, np.ndarray]:
    """The K/V that `rotatekv` reads; keys are encoded before rotary embedding, channels in the first chunk's order."""
    frequencies = np.array(target().decoder.config.frequencies)  # type: ignore[attr-defined]
    plain = naive.rotary(keys, 1, frequencies, back=True)
    order = naive.channel_order(plain[: max(first, 4)], 1)
    read = naive.rotated(2, 4, 0.8, 1, order)(plain)
    return naive.rotary(read, 1, frequencies), naive.rotated(2, 4, 0.8, 1)(values)


def test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch() -> None:
    check_tokens("rotatekv:bits=2,group=4,chunk=4,residual=3", 4, 3, 1, rotated)


def test_keys_of_several_heads_are_rotated_together_and_values_head_by_head() -> None:
    x = torch.randn(2, 6, 2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    order = naive.channel_order(x.flatten(0, 1).numpy(), 2)
    for codec, read in (
        (Rotated(4, 4, heads=2, reorder=True), naive.rotated(4, 4, 1.0, 2, order)),
        (Rotated(4, 4), naive.rotated(4, 4, 1.0, 1)),
    ):
        expected = np.stack([read(chunk.numpy()) for chunk in x])
        np.testing.assert_allclose(through(codec, x).numpy(), expected, rtol=0, atol=1e-6)


def test_keys_are_rotated_by_a_power_of_two_of_heads_at_most_as_many_as_asked() -> None:
    x = torch.randn(1, 4, 4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    three, two = (Rotated(4, 4, heads=heads, reorder=True) for heads in (3, 2))
    assert torch.equal(through(three, x), through(two, x))


def test_rotation_alone_changes_nothing() -> None:
    for case in ("phi3 that slides, rotated in part", "gemma3"):
        model = of_family(case)
        tokens = torch.randint(0, 61, (2, 22), generator=torch.Generator().manual_seed(1))
        plain = taught(model, "", tokens, [9, 14])
        gap = taught(model, "rotatekv:bits=16,chunk=4,residual=2", tokens, [9, 14]) - plain
        assert gap.abs().max() < 1e-5 * plain.abs().max()


test_bad_parameters = refused_specs(
    [("bits=5", "bits must be one of"), ("residual=-1", "residual must")], family="ar", before="sequential@rotatekv:"
)
