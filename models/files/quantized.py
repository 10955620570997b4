"""Weights of quantized checkpoints, made whole while they are read: FP8 and packed 4-bit integers, on any device.

    fp8                 W = q s     s of each block of `weight_block_size`, or one of the matrix; `<name>_scale_inv`
    compressed-tensors  float-quantized: W = q s, s of the matrix, of each row or of each block; `<name>_scale`
                        pack-quantized: W = q s, symmetric, s of each row or group of columns; q is the
                        unsigned number minus 8, in `<name>_packed` [N, K / 8] from the lowest bits on, its shape
                        in `<name>_shape`

Computed in float32. The model then runs as if the result had been published; states are not rounded to 8 bits, as
kernels for such checkpoints do. The formats are those of transformers' FP8 and of compressed-tensors; every other one
is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from .weights import Published, tensors_of

_BITS = 4
_PACK = 32 // _BITS
_HINT = "load the 16-bit checkpoint from which it was made"
Block = tuple[int | None, int | None]  # rows and columns of a matrix with one scale; None: all of them
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def whole_weights(name: str, config: Mapping[str, Any], published: dict[str, Published]) -> dict[str, Published]:
    """The tensors of a checkpoint with this `quantization_config`, under the names of the unquantized ones.

    Raises ModelError for a scheme that is not known, for scales without a weight, and for a checkpoint without scales.
    """
    method = config.get("quant_method")
    if method == "fp8":
        _demand(name, config, "activation_scheme", ("dynamic", None))
        _demand(name, config, "expert_dtype", ("fp8", None))
        _demand(name, config, "scale_fmt", ("float", None))
        rows, columns = config.get("weight_block_size") or (None, None)
        return _joined(published, "weight", ("weight_scale_inv",), _Matrix(name, (rows, columns)))
    if method == "compressed-tensors":
        form, block = _scheme(name, config)
        if form == "float-quantized":
            return _joined(published, "weight", ("weight_scale",), _Matrix(name, block))
        return _joined(published, "weight_packed", ("weight_scale", "weight_shape"), _PackedMatrix(name, block))
    raise ModelError(f"{name} is quantized by {method!r}, which is not supported", _HINT)


def _scheme(name: str, config: Mapping[str, Any]) -> tuple[str, Block]:
    """The format of a compressed-tensors checkpoint and the block of a scale, which are the same in all matrices."""
    groups = config.get("config_groups") or {}
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    for key in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        _demand(name, config, key, (None, {}))
    _demand(name, config, "quantization_status", ("compressed", None))
    each = {(str(scheme.get("format") or config.get("format")), _block(name, scheme, config)) for scheme in schemes}
    if len(each) != 1:
        raise ModelError(f"{name} is quantized in {len(each) or 'no'} schemes, and one is supported", _HINT)
    return each.pop()


def _block(name: str, scheme: Mapping[str, Any], config: Mapping[str, Any]) -> Block:
    """The block that a scale is for. Raises ModelError for a scheme that is not known."""
    weights, states = scheme.get("weights") or {}, scheme.get("input_activations") or {}
    form = {"format": scheme.get("format") or config.get("format")}
    _demand(name, form, "format", ("float-quantized", "pack-quantized"))
    floats = form["format"] == "float-quantized"
    _demand(name, weights, "num_bits", (8 if floats else _BITS,))
    _demand(name, weights, "type", ("float" if floats else "int",))
    _demand(name, weights, "symmetric", (True,))
    _demand(name, weights, "actorder", (None, "weight", "static"))
    _demand(name, weights, "strategy", ("tensor", "channel", "block") if floats else ("group", "channel"))
    _demand(name, states, "dynamic", (True, None))
    if weights["strategy"] == "block":
        rows, columns = weights["block_structure"]
        return int(rows), int(columns)
    return {"tensor": (None, None), "channel": (1, None), "group": (1, weights.get("group_size"))}[weights["strategy"]]


def _demand(name: str, config: Mapping[str, Any], key: str, known: tuple[Any, ...]) -> None:
    value = config.get(key)
    if value not in known:
        raise ModelError(f"{name} is quantized with {key}={value!r}, which is not supported", _HINT)


@dataclass(frozen=True)
class _Matrix:
    """How a matrix of 8-bit floating-point numbers is made whole."""

    name: str  # the checkpoint's name
    block: Block

    def __call__(self, weight: str, shape: tuple[int, ...], parts: list[Tensor]) -> Tensor:
        stored, scale = parts
        if stored.dtype not in _FP8:
            raise ModelError(f"{self.name}: {weight} has scales, and is of {stored.dtype} instead of an 8-bit type")
        return self.scaled(weight, stored.float(), scale)

    def scaled(self, weight: str, numbers: Tensor, scale: Tensor) -> Tensor:
        """`numbers` [N, K] times the scale of each block."""
        sizes = [size if block is None else block for size, block in zip(numbers.shape, self.block, strict=True)]
        counts = [-(-size // block) for size, block in zip(numbers.shape, sizes, strict=True)]
        along = [[length for length in lengths if length != 1] for lengths in (scale.shape, counts)]
        if along[0] != along[1] or not scale.is_floating_point():
            known = f"scales of {scale.dtype} {list(scale.shape)}, and blocks of {sizes} need numbers {counts}"
            raise ModelError(f"{self.name}: {weight} {list(numbers.shape)} has {known}")
        grid = scale.float().view(counts)
        for axis, (size, block) in enumerate(zip(numbers.shape, sizes, strict=True)):
            grid = grid.repeat_interleave(block, axis).narrow(axis, 0, size)
        return numbers * grid


class _PackedMatrix(_Matrix):
    """How a matrix of packed 4-bit integers is made whole."""

    def __call__(self, weight: str, shape: tuple[int, ...], parts: list[Tensor]) -> Tensor:
        packed, scale, _ = parts
        rows, columns = shape
        if packed.dtype != torch.int32 or packed.shape != (rows, -(-columns // _PACK)):
            held = f"{packed.dtype} {list(packed.shape)}"
            raise ModelError(f"{self.name}: {weight} is {held}, which does not hold {list(shape)} numbers of 4 bits")
        numbers = (packed[..., None] >> torch.arange(0, 32, _BITS)) & ((1 << _BITS) - 1)
        return self.scaled(weight, (numbers.flatten(1)[:, :columns] - (1 << (_BITS - 1))).float(), scale)


def _joined(
    published: dict[str, Published], stored: str, beside: tuple[str, ...], matrix: _Matrix
) -> dict[str, Published]:
    """Replaces the tensors `<stem>.<stored>` and those `beside` them by whole weights `<stem>.weight`."""
    stems = [each.removesuffix(beside[0]) for each in published if each.endswith("." + beside[0])]
    taken = {stem + part for stem in stems for part in (stored, *beside)}
    missing = sorted(taken - published.keys())
    if missing or not stems:
        what = missing[0] if missing else f"a tensor named {beside[0]}"
        raise ModelError(f"{matrix.name} is quantized, and lacks {what}", _HINT)
    whole = {each: entry for each, entry in published.items() if each not in taken}
    dtype = next((entry.dtype for entry in whole.values() if entry.dtype is not None), torch.bfloat16)
    for stem in stems:
        parts = {stem + part: published[stem + part] for part in (stored, *beside)}
        weight = stem + stored
        shape = published[weight].shape if len(parts) == 2 else _shape(published, stem + beside[1])
        make = partial(_made, matrix, weight, shape, parts)
        whole[stem + "weight"] = Published(published[weight].file, shape, dtype, made=make)
    return whole


def _made(matrix: _Matrix, weight: str, shape: tuple[int, ...], parts: Mapping[str, Published]) -> Tensor:
    return matrix(weight, shape, tensors_of(parts, *parts))


def _shape(published: Mapping[str, Published], name: str) -> tuple[int, ...]:
    (shape,) = tensors_of(published, name)
    return tuple(int(size) for size in shape)
