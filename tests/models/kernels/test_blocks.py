"""Packed block-quantized weights: equal to the gguf package bit by bit, and their matmuls to the definitions."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.kernels.cpu import blocks
from pardec.models.kernels.cpu.blocks import BlockWeight

ROWS, COLUMNS = 70, 512  # two panels and a part of one
GUARDS = {"Q4_0": 1, "Q5_0": 1, "Q8_0": 1, "IQ4_NL": 1, "Q4_1": 2, "Q5_1": 2, "Q4_K": 2, "Q5_K": 2}  # float16 scales

kernel = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")


def stored(kind: str, rows: int = ROWS, columns: int = COLUMNS, seed: int = 0) -> Tensor:
    """Random bytes of a GGUF tensor, with scales of about 0.05."""
    draw, own = np.random.default_rng(seed), blocks.TYPES[kind]
    raw = draw.integers(0, 256, (rows, columns // own.block, own.size), dtype=np.uint8)
    shape = (rows, columns // own.block, 1)
    for number in range(GUARDS.get(kind, 0)):
        raw[..., 2 * number : 2 * number + 2] = (draw.standard_normal(shape) * 0.05).astype(np.float16).view(np.uint8)
    if kind == "Q6_K":
        raw[..., 208:] = (draw.standard_normal(shape) * 0.05).astype(np.float16).view(np.uint8)
    if kind == "MXFP4":
        raw[..., 0] = draw.integers(118, 126, shape[:2])
    return torch.from_numpy(raw.reshape(rows, -1))


def dequantized(kind: str, raw: Tensor) -> Tensor:
    return torch.from_numpy(gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType[kind]))


def weight(kind: str, activations: blocks.Activations = "float32", dtype: torch.dtype = torch.float32) -> BlockWeight:
    return blocks.joined([(kind, stored(kind))], COLUMNS, dtype, activations)


def rounded(x: Tensor) -> Tensor:
    """x [M, K] in int8 in groups of 32, as float64."""
    groups = x.double().unflatten(-1, (-1, 32))
    d = (groups.float().abs().amax(-1, keepdim=True) / 127).double()
    return ((groups / d).float().round().double() * d).flatten(1)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
@pytest.mark.parametrize("kind", blocks.TYPES)
def test_packed_weights_are_those_of_the_gguf_package_bit_by_bit(
    kind: str, kernels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARDEC_KERNELS", kernels)
    own, plain = weight(kind), dequantized(kind, stored(kind))
    assert torch.equal(own.dense, plain)
    index = torch.tensor([[ROWS - 1, 0], [3, 3]])
    assert torch.equal(own.rows(index), plain[index])
    for beyond in (-1, ROWS):
        with pytest.raises(IndexError, match=f"rows must lie in 0..{ROWS - 1}"):
            own.rows(torch.tensor([beyond]))


@pytest.mark.parametrize("kind", blocks.TYPES)
def test_they_take_the_bytes_of_the_file(kind: str) -> None:
    raw = stored(kind, 64)
    assert blocks.pack(kind, raw).nbytes <= raw.nbytes * 1.03


@kernel
@pytest.mark.parametrize("kind", blocks.TYPES)
def test_packing_in_c_is_that_of_the_definition(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was in the memory before."""
    monkeypatch.setattr(blocks, "room", lambda size: torch.full((size,), 255, dtype=torch.uint8))
    packed = blocks.pack(kind, stored(kind))
    monkeypatch.setattr(blocks.library, "allowed", lambda: False)
    assert torch.equal(packed, blocks.pack(kind, stored(kind)))


@kernel
@pytest.mark.parametrize("kind", blocks.TYPES)
@pytest.mark.parametrize("count", [1, 3, 9])
def test_matmuls_of_float32_are_those_of_the_dequantized_matrix(kind: str, count: int) -> None:
    torch.manual_seed(count)
    x, plain = torch.randn(count, COLUMNS), dequantized(kind, stored(kind))
    exact = x.double() @ plain.double().T
    own = (x @ plain.T - exact).norm()
    assert (weight(kind).matmul(x) - exact).norm() <= 2 * own


@kernel
@pytest.mark.parametrize("kind", blocks.TYPES)
@pytest.mark.parametrize("count", [1, 9, 40])
def test_matmuls_of_int8_are_those_of_rounded_states(kind: str, count: int) -> None:
    torch.manual_seed(count)
    x, plain = torch.randn(count, COLUMNS), dequantized(kind, stored(kind)).double()
    out, exact = weight(kind, "int8").matmul(x), rounded(x) @ plain.T
    assert torch.allclose(out.double(), exact, rtol=0, atol=1e-5 * float((x.double().abs() @ plain.abs().T).max()))
    assert 1e-3 < (out - x.double() @ plain.T).norm() / exact.norm() < 0.02  # states are rounded


@kernel
@pytest.mark.parametrize("kind", blocks.TYPES)
@pytest.mark.parametrize("activations", ["float32", "int8"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_gives_the_same_bits_alone_and_in_a_batch(kind: str, activations: Any, dtype: torch.dtype) -> None:
    own, x = weight(kind, activations, dtype), torch.randn(134, COLUMNS).to(dtype)
    out = own.matmul(x)
    for start, count in ((0, 1), (3, 2), (9, 3), (20, 7), (64, 6), (1, 16), (31, 29), (2, 65), (126, 8), (1, 130)):
        assert torch.equal(own.matmul(x[start : start + count]), out[start : start + count])


@kernel
def test_the_largest_codes_do_not_overflow() -> None:
    raw = stored("Q8_0")
    raw.view(ROWS, -1, 34)[..., 2:] = 128  # -128, which quantizers do not write
    raw.view(ROWS, -1, 34)[..., :2] = torch.tensor([0, 0x3C], dtype=torch.uint8)  # a scale of 1
    own = blocks.joined([("Q8_0", raw)], COLUMNS, torch.float32, "int8")
    for count in (1, 4, 16):
        assert (own.matmul(torch.full((count, COLUMNS), -127.0)) == 128 * 127 * COLUMNS).all()


@kernel
@pytest.mark.parametrize("activations", ["float32", "int8"])
def test_bases_strides_and_several_types(activations: Any) -> None:
    tensors = [("Q4_K", stored("Q4_K", 40)), ("Q6_K", stored("Q6_K", 33)), ("Q6_K", stored("Q6_K", 20, seed=1))]
    own = blocks.joined(tensors, COLUMNS, torch.float32, activations)
    assert own.types == ("Q4_K", "Q6_K")
    assert own.shape == (93, COLUMNS)
    x = torch.randn(5, 2 * COLUMNS)[:, ::2]
    plain = own.matmul(x.contiguous())
    assert torch.equal(own.matmul(x), plain)
    base, bias = torch.randn(5, 93), torch.randn(93)
    assert torch.equal(own.matmul(x, base), plain + base)
    assert torch.equal(own.matmul(x, bias), plain + bias)
    out = torch.empty(5, 100)[:, :93]
    own.matmul_into(out, x)
    assert torch.equal(out, plain)


@kernel
def test_what_is_no_number_stays_none() -> None:
    for activations in ("float32", "int8"):
        x = torch.zeros(2, COLUMNS)
        x[1, 40] = float("nan")
        out = weight("Q4_0", activations).matmul(x)  # type: ignore[arg-type]
        assert (out[0] == 0).all()
        assert out[1].isnan().all()


def test_rows_are_looked_up_without_the_whole_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = [("Q4_K", stored("Q4_K", 40)), ("Q6_K", stored("Q6_K", 33))]
    own = blocks.joined(tensors, COLUMNS, torch.float32, "float32")
    whole, index = own.dense, torch.tensor([[3, 72], [40, 39]])
    monkeypatch.setattr(BlockWeight, "dense", None)
    assert torch.equal(torch.nn.functional.embedding(index, own), whole[index])
    assert torch.equal(own.rows(index[0]), whole[index[0]])


@pytest.mark.parametrize("kind", blocks.TYPES)
def test_scales_that_are_no_numbers_are_found(kind: str) -> None:
    assert blocks.is_finite(weight(kind))
    raw, own = stored(kind), blocks.TYPES[kind]
    at = 208 if kind == "Q6_K" else 0
    last = raw.view(ROWS, -1, own.size)[-1, -1, at:]
    last[:2] = torch.tensor([255, 255] if kind == "MXFP4" else [0, 0x7C], dtype=torch.uint8)
    last[2:] |= 1
    found = blocks.joined([("Q8_0", stored("Q8_0", 5)), (kind, raw)], COLUMNS, torch.float32, "float32")
    assert not found.dense.isfinite().all()
    assert not blocks.is_finite(found)


def test_copies_hold_the_same_numbers() -> None:
    own = torch.nn.Parameter(weight("Q5_1", "int8"), requires_grad=False)
    for again in (copy.deepcopy(own), pickle.loads(pickle.dumps(own))):
        assert isinstance(again, BlockWeight)
        assert again.activations == "int8"
        assert torch.equal(again.dense, own.dense)
    with pytest.raises(NotImplementedError, match="read-only"):
        own.data.zero_()


def test_without_a_kernel_the_definition_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "kernel", lambda: None)
    x, plain = torch.randn(3, COLUMNS), dequantized("Q4_1", stored("Q4_1"))
    assert torch.equal(weight("Q4_1").matmul(x), x @ plain.T)
    exact = rounded(x) @ plain.double().T
    assert torch.allclose(weight("Q4_1", "int8").matmul(x).double(), exact, rtol=1e-4, atol=1e-3)
