"""Weights of quantized checkpoints, made whole while they are read: FP8 and packed 4-bit integers, on any device.

    fp8                 W = q s     s of each block of `weight_block_size`, or one of the matrix; `<name>_scale_inv`;
                                    of a stack of experts, for each of its matrices
    compressed-tensors  float-quantized: W = q s, s of the matrix, of each row or of each block; `<name>_scale`
                        pack-quantized: W = q s, symmetric, s of each row or group of columns; q is the
                        unsigned number minus 8, in `<name>_packed` [N, K / 8] from the lowest bits on, its shape
                        in `<name>_shape`

Computed in float32. The model then runs as if the result had been published; states are not rounded to 8 bits, as
kernels for such checkpoints do. The formats are those of transformers' FP8 and of compressed-tensors; every other one
is refused by name.
"""

from __future__ import annotations

import re
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
_FP8_SCALES = ("weight_scale_inv",)
SCALES = re.compile(r".*\.weight_scale(_inv)?")  # names of the scales of a matrix


@dataclass(frozen=True)
class Scheme:
    """How each quantized matrix of a checkpoint is stored, and made whole."""

    stored: str  # what its numbers are called, after the matrix's stem
    beside: tuple[str, ...]  # and what is stored beside them, scales first
    matrix: _Matrix

    @property
    def described(self) -> str:
        """The number format, and the rows and columns that share a scale."""
        rows, columns = self.matrix.block
        kind = "packed 4-bit integers" if self.stored == "weight_packed" else "8-bit floating-point numbers"
        return f"{kind}, a scale for {rows or 'all'} rows and {columns or 'all'} columns"


# What may stand in a config: keys that change nothing in the weights, or whose values are checked.
_FP8_KEYS = frozenset((
    *("quant_method", "activation_scheme", "weight_block_size", "expert_dtype", "scale_fmt", "fmt", "dequantize"),
    *("modules_to_not_convert", "modules_to_convert", "ignored_layers"),
))  # fmt: skip
_COMPRESSED_KEYS = frozenset((
    *("quant_method", "config_groups", "format", "quantization_status", "ignore", "version", "kv_cache_scheme"),
    *("sparsity_config", "transform_config", "global_compression_ratio", "run_compressed"),
))  # fmt: skip
_GROUP_KEYS = frozenset(("targets", "weights", "input_activations", "output_activations", "format"))
_WEIGHT_KEYS = frozenset((
    *("num_bits", "type", "symmetric", "strategy", "group_size", "block_structure", "dynamic", "actorder"),
    *("observer", "observer_kwargs", "scale_dtype", "zp_dtype"),  # zero points are those of schemes without symmetry
))  # fmt: skip


def scheme_of(name: str, config: Any) -> Scheme:
    """The scheme of a `quantization_config`. Raises ModelError for one that is not known."""
    if not isinstance(config, Mapping):
        raise ModelError(f"{name} has quantization_config={config!r}, which is no object", _HINT)
    method = config.get("quant_method")
    if method == "fp8":
        _refuse_unknown(name, "", config, _FP8_KEYS)
        _demand(name, config, "activation_scheme", ("dynamic", None))
        _demand(name, config, "expert_dtype", ("fp8", None))
        _demand(name, config, "scale_fmt", ("float", None))
        return Scheme("weight", _FP8_SCALES, _Matrix(name, _sides(name, config, "weight_block_size")))
    if method == "compressed-tensors":
        form, block = _scheme(name, config)
        if form == "float-quantized":
            return Scheme("weight", ("weight_scale",), _Matrix(name, block))
        return Scheme("weight_packed", ("weight_scale", "weight_shape"), _PackedMatrix(name, block))
    raise ModelError(f"{name} is quantized by {method!r}, which is not supported", _HINT)


def whole_weights(name: str, config: Any, published: dict[str, Published]) -> dict[str, Published]:
    """The tensors of a checkpoint with this `quantization_config`, under the names of the unquantized ones.

    Raises ModelError for a scheme that is not known, for scales without a weight, and for a checkpoint without scales.
    """
    return _joined(published, scheme_of(name, config))


def _scheme(name: str, config: Mapping[str, Any]) -> tuple[str, Block]:
    """The format of a compressed-tensors checkpoint and the block of a scale, which are the same in all matrices."""
    _refuse_unknown(name, "", config, _COMPRESSED_KEYS)
    groups = config.get("config_groups") or {}
    schemes = list(groups.values()) if isinstance(groups, dict) else []
    for key in ("sparsity_config", "transform_config", "kv_cache_scheme"):
        _demand(name, config, key, (None, {}))
    _demand(name, config, "quantization_status", ("compressed", None))
    each = {(str(scheme.get("format") or config.get("format")), _block(name, scheme, config)) for scheme in schemes}
    if len(each) != 1:
        raise ModelError(f"{name} is quantized in {len(each) or 'no'} schemes, and exactly one is supported", _HINT)
    return each.pop()


def _block(name: str, scheme: Mapping[str, Any], config: Mapping[str, Any]) -> Block:
    """The block that a scale is for. Raises ModelError for a scheme that is not known."""
    _refuse_unknown(name, "", scheme, _GROUP_KEYS)
    weights, states = scheme.get("weights") or {}, scheme.get("input_activations") or {}
    _refuse_unknown(name, "weights.", weights, _WEIGHT_KEYS)
    form = {"format": scheme.get("format") or config.get("format")}
    _demand(name, form, "format", ("float-quantized", "pack-quantized"))
    floats = form["format"] == "float-quantized"
    _demand(name, weights, "num_bits", (8 if floats else _BITS,))
    _demand(name, weights, "type", ("float" if floats else "int",))
    _demand(name, weights, "symmetric", (True,))
    _demand(name, weights, "dynamic", (False, None))
    _demand(name, weights, "actorder", (None, "weight", "static"))
    _demand(name, weights, "strategy", ("tensor", "channel", "block") if floats else ("group", "channel"))
    _demand(name, states, "dynamic", (True, None))
    _demand(name, scheme, "output_activations", (None, {}))
    if weights["strategy"] == "block":
        return _sides(name, weights, "block_structure")
    return {"tensor": (None, None), "channel": (1, None), "group": (1, weights.get("group_size"))}[weights["strategy"]]


def _sides(name: str, config: Mapping[str, Any], key: str) -> Block:
    """The rows and columns of a block; without the key one block is the whole matrix."""
    sides = config.get(key)
    if sides is None:
        return None, None
    if not (
        isinstance(sides, list | tuple) and len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)
    ):
        raise ModelError(f"{name} is quantized with {key}={sides!r}, which is no pair of sizes", _HINT)
    return sides[0], sides[1]


def _demand(name: str, config: Mapping[str, Any], key: str, known: tuple[Any, ...]) -> None:
    value = config.get(key)
    if value not in known:
        raise ModelError(f"{name} is quantized with {key}={value!r}, which is not supported", _HINT)


def _refuse_unknown(name: str, where: str, config: Mapping[str, Any], known: frozenset[str]) -> None:
    """Raises ModelError for a key that is not `known`, unless its value is neutral: None, False or empty."""
    for key in sorted(config.keys() - known):
        _demand(name, {where + key: config[key]}, where + key, (None, False, {}, []))


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
        """`numbers` [N, K], or of each expert [E, N, K], times the scale of each block."""
        blocks = (*(1 for _ in numbers.shape[:-2]), *self.block)
        sizes = [size if block is None else block for size, block in zip(numbers.shape, blocks, strict=True)]
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


def _joined(published: dict[str, Published], scheme: Scheme) -> dict[str, Published]:
    """Replaces the stored tensors of each quantized weight by the whole weight."""
    matrix, stored = scheme.matrix, _stored(published, scheme)
    taken = {part for parts in stored.values() for part in parts}
    missing = sorted(taken - published.keys())
    if missing or not stored:
        what = missing[0] if missing else f"a tensor named {scheme.beside[0]}"
        raise ModelError(f"{matrix.name} is quantized, and lacks {what}", _HINT)
    whole = {each: entry for each, entry in published.items() if each not in taken}
    dtype = next((entry.dtype for entry in whole.values() if entry.dtype is not None), torch.bfloat16)
    for name, parts in stored.items():
        numbers = published[parts[0]]
        shape = numbers.shape if len(parts) == 2 else _shape(published, parts[2])
        make = partial(_made, matrix, parts[0], shape, {part: published[part] for part in parts})
        whole[name] = Published(numbers.file, shape, dtype, made=make)
    return whole


def _stored(published: Mapping[str, Published], scheme: Scheme) -> dict[str, tuple[str, ...]]:
    """The names of the numbers of each quantized weight, and of the tensors beside them, by the weight's name."""
    found: dict[str, tuple[str, ...]] = {}
    for each in published:
        if each.endswith(f".{scheme.beside[0]}"):
            stem = each.removesuffix(scheme.beside[0])
            found[stem + "weight"] = tuple(stem + part for part in (scheme.stored, *scheme.beside))
        elif scheme.beside == _FP8_SCALES and each.endswith("_scale_inv"):  # of a parameter, not of a layer's weight
            name = each.removesuffix("_scale_inv")
            found[name] = name, each
    return found


def _made(matrix: _Matrix, weight: str, shape: tuple[int, ...], parts: Mapping[str, Published]) -> Tensor:
    return matrix(weight, shape, tensors_of(parts, *parts))


def _shape(published: Mapping[str, Published], name: str) -> tuple[int, ...]:
    (shape,) = tensors_of(published, name)
    return tuple(int(size) for size in shape)
