"""Codecs of chunks of K/V: error bounds that always hold, cases without error, and the papers' claims."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pardec.models.errors import CacheError
from pardec.models.kv_stores.contracts import ChunkShape, Codec, Exact, Store, layout_bytes
from pardec.models.kv_stores.groups import BITS, dequantize, group_size, pack, packed_size, quantize, unpack
from pardec.samplers.speculative.cache.gear import Gear, LowRankResidual, _largest
from pardec.samplers.speculative.cache.int8 import TokenInt8
from pardec.samplers.speculative.cache.kivi import Kivi, PerChannel, PerToken
from pardec.samplers.speculative.cache.mustafar import Mustafar, Pruned
from pardec.samplers.speculative.cache.rotatekv import Rotated, RotateKV, hadamard, rotate
from tests.reference import naive_stores as naive
from tests.samplers.speculative import test_gear as gear
from tests.samplers.speculative import test_kivi as kivi
from tests.samplers.speculative import test_rotatekv as rotatekv
from tests.samplers.store_checks import through

few = settings(max_examples=25, deadline=None)
numbers = st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=12)


def keys(count: int = 4, tokens: int = 32, heads: int = 4, dim: int = 64) -> Tensor:
    """Random numbers like keys: two channels of each head are large in all tokens, with one sign."""
    x = torch.randn(count, tokens, heads, dim, generator=torch.Generator().manual_seed(0))
    x[..., 5] = x[..., 5] + 12
    x[..., -3] = x[..., -3] - 9
    return x


def error(codec: Codec, x: Tensor) -> float:
    """The mean squared error, relative to the mean square of x."""
    return float((through(codec, x) - x).square().mean() / x.square().mean())


@few
@given(st.data())
def test_codes_come_back_from_their_bytes(data: st.DataObject) -> None:
    bits = data.draw(st.sampled_from(BITS))
    codes = torch.tensor(data.draw(st.lists(st.integers(0, 2**bits - 1), min_size=1, max_size=20)), dtype=torch.uint8)
    packed = pack(codes[None], bits)
    assert packed.shape == (1, packed_size(len(codes), bits))
    assert torch.equal(unpack(packed, bits, len(codes))[0], codes)
    assert packed_size(8, bits) == bits


def test_the_first_code_is_in_the_lowest_bits() -> None:
    for bits in BITS:
        codes = torch.arange(8) % 2**bits
        whole = sum(int(code) << bits * at for at, code in enumerate(codes))
        assert pack(codes.to(torch.uint8)[None], bits)[0].tolist() == list(whole.to_bytes(bits, "little"))


@few
@given(numbers, st.sampled_from(BITS))
def test_no_number_is_off_by_more_than_half_a_scale(values: list[float], bits: int) -> None:
    x = torch.tensor(values, dtype=torch.float64)[None, None]
    parts = quantize(x, bits)
    gap = (dequantize(parts, bits, len(values), torch.float64) - x).abs().max()
    assert gap <= float(parts["scale"].double()) / 2 * (1 + 1e-9)
    wanted = naive.group(x[0, 0].numpy(), bits)  # whose minimum is not rounded down to a step of float16
    assert np.allclose(dequantize(parts, bits, len(values), torch.float64)[0, 0], wanted, atol=1e-7)


@few
@given(st.integers(-50, 50), st.integers(1, 9), st.sampled_from(BITS))
def test_equally_spaced_and_equal_numbers_are_exact(first: int, step: int, bits: int) -> None:
    levels = min(2**bits, 16)
    spaced = first + step * torch.tensor([0, levels - 1, *range(levels)]).double()
    if levels == 2**bits:
        assert torch.equal(
            dequantize(quantize(spaced[None, None], bits), bits, len(spaced), torch.float64)[0, 0], spaced
        )
    equal = torch.full((1, 1, 5), float(first))
    assert torch.equal(dequantize(quantize(equal, bits), bits, 5, torch.float32), equal)
    tiny = torch.full((1, 1, 3), 1e-40)
    assert dequantize(quantize(tiny, bits), bits, 3, torch.float32).abs().max() < 1e-7


def test_numbers_that_cannot_be_kept_are_refused() -> None:
    for wrong in (float("inf"), -float("inf"), float("nan"), 1e6):
        x = torch.ones(1, 4, 1, 8)
        x[0, 1, 0, 3] = wrong
        gear = LowRankResidual(PerChannel(2), 0.1, 1, by_token=False)
        for codec in (TokenInt8(), PerChannel(4), PerToken(4, 8), Rotated(2, 8), gear):
            with pytest.raises(CacheError, match="cannot be quantized"):
                through(codec, x * 1e3 if wrong == 1e6 else x)


def every_codec_is_its_formula() -> None:
    x = keys(2, 6, 2, 8).double()
    cases: list[tuple[Codec, naive.Read]] = [(TokenInt8(), naive.int8), (Pruned(0.7), naive.pruned(0.7))]
    for bits in BITS:
        cases += [(PerChannel(bits), naive.by_channel(bits)), (PerToken(bits, 4), naive.by_token(bits, 4))]
        cases += [
            (Rotated(bits, 4, heads=2, clip=0.8), naive.rotated(bits, 4, 0.8, 2)),
            (
                Rotated(bits, 4, heads=2, reorder=True),
                naive.rotated(bits, 4, 1.0, 2, naive.channel_order(x.flatten(0, 1).numpy(), 2)),
            ),
            (LowRankResidual(PerChannel(bits), 0.1, 2, by_token=False), naive.gear(bits, 0.1, 2, token=False)),
        ]
    for codec, read in cases:
        expected = np.stack([read(chunk.numpy()) for chunk in x])
        np.testing.assert_allclose(through(codec, x).numpy(), expected, rtol=0, atol=1e-6, err_msg=str(codec))


def test_rotations_are_their_own_inverse_whatever_divides_the_channels() -> None:
    assert np.allclose(hadamard(16), naive.hadamard(16))
    for dim, heads in ((64, 4), (20, 3), (96, 6), (7, 2)):
        x = keys(1, 3, heads, 64)[..., :dim]
        torch.testing.assert_close(through(Rotated(16, 64, heads=4, reorder=True), x), x, atol=1e-5, rtol=1e-5)
    assert torch.allclose(rotate(rotate(torch.eye(8), 4), 4), torch.eye(8), atol=1e-6)
    assert group_size(192, 64) == 64


@pytest.mark.seeds("arXiv:2402.02750")
def test_keys_have_outliers_in_channels_so_a_channel_is_their_group() -> None:
    """KIVI: at 2 bits, keys lose far less per channel than per token; without outlier channels they do not.

    Its bytes are those of the codes, and a scale and a minimum in two bytes each for every group of 32.
    """
    every_codec_is_its_formula()
    assert Kivi(2).store == Store(PerChannel(2), PerToken(2, 32), 32, 128)
    assert Kivi(16).store == Store(Exact(), Exact(), 32, 128)
    assert [group_size(count, 32) for count in (31, 32, 33, 40, 64)] == [31, 32, 11, 20, 32]
    kivi.test_each_token_is_that_of_a_loop_that_encodes_its_past_from_scratch()
    x, plain = keys(), torch.randn(4, 32, 4, 64, generator=torch.Generator().manual_seed(1))
    assert error(PerChannel(2), x) < 0.25 * error(PerToken(2, 32), x)
    assert error(PerChannel(2), plain) == pytest.approx(error(PerToken(2, 32), plain), rel=0.1)
    for bits in (2, 4):
        for codec in (PerChannel(bits), PerToken(bits, 32)):
            per_token = layout_bytes(codec.layout(ChunkShape(32, 3, 64, torch.float32))) / 32
            assert per_token == 3 * 64 * (bits / 8 + 4 / 32)


@pytest.mark.seeds("arXiv:2501.16383")
def test_rotation_spreads_outliers_and_order_gathers_what_is_left() -> None:
    """RotateKV, 2 bits, outliers in few channels: rotation reduces the error, reordered channels reduce it further."""
    every_codec_is_its_formula()
    rotatekv.test_keys_are_rotated_by_a_power_of_two_of_heads_at_most_as_many_as_asked()
    alike = Rotated(2, 4, reorder=True).calibrate(torch.zeros(1, 4, 1, 4))["order"]
    assert alike.tolist() == [0, 1, 2, 3], "channels of equal sums keep their order"
    x = keys()
    plain, rotated = error(PerToken(2, 64), x), error(Rotated(2, 64, heads=4), x)
    ordered = error(Rotated(2, 64, heads=4, reorder=True), x)
    assert ordered < rotated < 0.8 * plain
    assert error(Rotated(16, 64, heads=4, reorder=True), x) < 1e-10
    for bits, clip in ((2, 0.8), (3, 1.0), (4, 1.0)):  # as published: .8 at 2 bits, and the first token exact
        store = RotateKV(bits).store
        assert store.keys == Rotated(bits, 64, heads=4, clip=clip, reorder=True)
        assert store.values == Rotated(bits, 64, clip=clip)
        assert store.sinks == 1
        assert store.before_rotation


@pytest.mark.seeds("arXiv:2403.05527")
def test_outliers_and_a_low_rank_take_most_of_the_error_away() -> None:
    """GEAR: exact outliers and the low-rank term each reduce the error of 2 bits; both together reduce it more."""
    every_codec_is_its_formula()
    gear.test_outliers_stand_where_they_were_in_the_longest_chunk_of_the_widest_heads()
    store = Gear().store  # as published: 2 bits, 2 per cent, rank 4, chunks of 20
    assert (store.keys, store.chunk) == (LowRankResidual(PerChannel(2), 0.02, 4, by_token=False), 20)
    assert isinstance(store.values, LowRankResidual)
    assert (store.values.sparsity, store.values.rank, store.values.by_token) == (0.02, 4, True)
    equal = torch.tensor([[1.0, 1.001, 0.5, 1.002, 1.0]])  # as bfloat16 has them, but for the third
    assert _largest(equal, 3).tolist() == [[0, 1, 3]]
    x = keys(4, 20, 4, 64)
    x[:, 3, 2, 7] = 30.0  # an entry that no channel explains
    drawn = torch.Generator().manual_seed(2)
    x = x + torch.randn(4, 20, 1, 1, generator=drawn) * torch.randn(4, 1, 4, 64, generator=drawn) / 2

    def lost(sparsity: float, rank: int) -> float:
        return error(LowRankResidual(PerChannel(2), sparsity, rank, by_token=False), x)

    both, quantized = lost(0.02, 4), error(PerChannel(2), x)
    assert both < min(lost(0.02, 0), lost(0, 4)) < max(lost(0.02, 0), lost(0, 4)) < quantized
    assert both < 0.5 * quantized
    assert lost(0.02, 20) < 1e-3 * quantized


@pytest.mark.seeds("arXiv:2505.22913")
def test_the_largest_entries_carry_most_and_take_their_share_of_the_bytes() -> None:
    """Mustafar: the (1 - s) D largest entries per token and head stay exact; no other choice of as many loses less."""
    every_codec_is_its_formula()
    assert Mustafar().store == Store(Pruned(0.5), Pruned(0.5), 32, 32)
    assert Mustafar(0.5, residual=8, chunk=16).store == Store(Pruned(0.5), Pruned(0.5), 16, 8)
    x = keys()
    for sparsity, kept in ((0.5, 32), (0.7, 20)):
        read = through(Pruned(sparsity), x)
        assert ((read != 0).sum(-1) == kept).all()
        assert torch.equal(read[read != 0], x[read != 0])
        least_kept = read.abs().masked_fill(read == 0, torch.inf).amin(-1)
        assert (x.abs().masked_fill(read != 0, 0).amax(-1) <= least_kept).all()
        size = layout_bytes(Pruned(sparsity).layout(ChunkShape(32, 4, 64, torch.bfloat16)))
        assert size == 32 * 4 * (64 / 8 + 2 * kept)
    assert error(Pruned(0.5), x) < 0.05
    ties = torch.ones(1, 1, 1, 8)
    assert through(Pruned(0.5), ties)[0, 0, 0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
