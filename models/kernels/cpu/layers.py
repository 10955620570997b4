"""The layers of a decoder by kernels in C, of float32 or bfloat16.

Norm, rotation and gate (layer.c) are one pass each where PyTorch takes several. What is computed is float32 in either
case, and rounded where the definitions round it. Successive layers (layers.c) are one call of these kernels and of
those of attention and matmuls; it gives the bits that the layers give operation by operation.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import attention, blocks, int8, library, panels
from .blocks import BlockWeight
from .int8 import Int8Weight
from .library import COUNT, POINTER, STEP, TYPES
from .packed import PackedWeight
from .panels import Panels

_OPERATIONS, _LAYERS = (Path(__file__).with_name(name) for name in ("layer.c", "layers.c"))
_NORM = (*[POINTER] * 3, COUNT, COUNT, COUNT, ctypes.c_float)
_GATE = (POINTER, POINTER, COUNT, COUNT, COUNT)
_ROTARY = (COUNT, POINTER, STEP, POINTER, POINTER, STEP, *[POINTER] * 4, *[COUNT] * 6)
_Steps = ctypes.c_ssize_t * 6
_CHAIN = (POINTER, COUNT, *[POINTER] * 7)
_DRAFT = (*[POINTER] * 4, COUNT, COUNT, POINTER, POINTER)
_BLOCKS, _PANELS, _INT8, _ROWS = range(4)  # layouts of a matrix, as in layers.c


def usable(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels can run now for states of this dtype on `device`."""
    fits = device.type == "cpu" and dtype in TYPES and not torch.is_grad_enabled() and not library.is_traced()
    return fits and library.allowed() and norm() is not None


def norm_c(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., E] normalised and multiplied by `weight` [E], in x's dtype."""
    x = x.contiguous()
    out = torch.empty_like(x)
    if weight.dtype is not x.dtype:
        weight = weight.to(x.dtype)
    width = weight.shape[0]
    run = norm()
    run(x.data_ptr(), weight.data_ptr(), out.data_ptr(), TYPES[x.dtype], x.numel() // width, width, eps)
    return out


def swiglu_c(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [..., M] of `gate_up` [..., 2 M]."""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = torch.empty((*gate_up.shape[:-1], width), dtype=gate_up.dtype)
    run = gate()
    run(gate_up.data_ptr(), out.data_ptr(), TYPES[gate_up.dtype], out.numel() // width, width)
    return out


def apply_rotary_c(
    qkv: Tensor, cos: Tensor, sin: Tensor, heads: int, target: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Rotated queries and keys, [B, Q, H or K, D]; `target`, if given, receives keys and values, [B, Q, K, D] each.

    Args:
        qkv: [B, Q, H + 2 K, D], queries, keys and values of each head; the last two dimensions lie together.
        cos: [B or 1, Q, 1, R] float32; `sin` the same, with the sign of the half-split.
        heads: H.
    """
    batch, queries, total, dim = qkv.shape
    kv, rotated = (total - heads) // 2, cos.shape[-1]
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    q = torch.empty((batch, queries, heads, dim), dtype=qkv.dtype)
    k, v = (torch.empty((batch, queries, kv, dim), dtype=qkv.dtype), None) if target is None else target
    steps = _Steps(*k.stride()[:3], *(k if v is None else v).stride()[:3])
    apart = 0 if cos.shape[0] == 1 else queries * rotated
    tables = cos.data_ptr(), sin.data_ptr(), apart
    outputs = q.data_ptr(), k.data_ptr(), None if v is None else v.data_ptr(), steps
    run = rotation()
    run(TYPES[qkv.dtype], qkv.data_ptr(), total * dim, *tables, *outputs, batch, queries, heads, kv, dim, rotated)
    return q, k


def norm() -> Any:
    """The compiled norm; None where there is none."""
    return library.kernel(_OPERATIONS, "pardec_norm", _NORM)


def gate() -> Any:
    """The compiled gate, from the library of the norm."""
    return library.kernel(_OPERATIONS, "pardec_gate", _GATE)


def rotation() -> Any:
    """The compiled rotation, from the library of the norm."""
    return library.kernel(_OPERATIONS, "pardec_turn", _ROTARY)


class _Section(ctypes.Structure):
    _fields_ = (("weights", POINTER), ("scale", POINTER), ("apart", STEP), ("kind", COUNT), ("rows", COUNT))


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("sections", ctypes.POINTER(_Section)),
        ("bias", POINTER),
        *((name, COUNT) for name in ("count", "layout", "rounded", "rows", "length")),
    )


class _Layer(ctypes.Structure):
    _fields_ = (
        *((name, POINTER) for name in ("attention_norm", "mlp_norm", "q_norm", "k_norm")),
        *((name, _Matrix) for name in ("qkv", "out", "gate_up", "down")),
        ("epsilon", ctypes.c_float),
        *((name, COUNT) for name in ("heads", "kv_heads", "dim")),
    )


class _Forward(ctypes.Structure):
    _fields_ = (
        ("run", POINTER),
        *((name, COUNT) for name in ("type", "batch", "queries", "wanted", "turned")),
        *((name, POINTER) for name in ("cosine", "sine")),
        ("apart", STEP),
        *((name, POINTER) for name in ("k", "v")),
        ("steps", STEP * 6),
        *((name, COUNT) for name in ("first", "slots")),
        ("mask", POINTER),
        ("mask_steps", STEP * 2),
        *((name, COUNT) for name in ("last", "causal")),
        ("picked", POINTER),
        ("ends", POINTER),
        ("threads", COUNT),
        ("spread", STEP),
    )


class _Table(ctypes.Structure):
    _fields_ = (("rows", _Matrix), ("scale", ctypes.c_float))


class _End(ctypes.Structure):
    _fields_ = (
        ("table", _Table),
        ("norm", POINTER),
        ("head", _Matrix),
        ("epsilon", ctypes.c_float),
        ("taps", POINTER),
        ("count", COUNT),
        ("tapped", POINTER),
        ("apart", STEP),
    )


class _Pairs(ctypes.Structure):
    _fields_ = (
        ("table", _Table),
        ("epsilon", ctypes.c_float),
        ("embed_norm", POINTER),
        ("state_norm", POINTER),
        ("joined", _Matrix),
        ("norm", POINTER),
        ("head", _Matrix),
        ("ids", POINTER),
        ("norm_residual", COUNT),
        ("norm_output", COUNT),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    """Weights and sizes of a layer whose attention and gated MLP (SiLU) both add to its states."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    mlp_norm: Tensor
    epsilon: float
    heads: int
    kv_heads: int
    dim: int
    attention_norm: Tensor | None = None  # None: the inputs of attention are given
    head_norms: tuple[Tensor, Tensor] | None = None  # gains of the norms of queries and keys
    qkv_bias: Tensor | None = None
    gate_up_bias: Tensor | None = None

    def fit(self, dtype: torch.dtype) -> bool:
        """Whether the kernels take these weights with states of `dtype`."""
        matrices = self.qkv, self.out, self.gate_up, self.down
        if dtype not in TYPES or not all(_takes(each, dtype) for each in matrices):
            return False
        rows = self.mlp_norm, self.attention_norm, *(self.head_norms or ()), self.qkv_bias, self.gate_up_bias
        return all(each is None or (each.dtype == dtype and each.is_contiguous()) for each in rows)


class LayersInC:
    """The layers of a decoder, of one shape, for `pardec_layers`."""

    def __init__(self, layers: Sequence[LayerWeights]) -> None:
        self._weights, self._kept = layers, list[Any]()
        self._layers = (_Layer * len(layers))(*map(self._layer, layers))

    def _layer(self, one: LayerWeights) -> _Layer:
        norms = one.attention_norm, one.mlp_norm, *(one.head_norms or (None, None))
        biases = one.qkv_bias, None, one.gate_up_bias, None
        matrices = zip((one.qkv, one.out, one.gate_up, one.down), biases, strict=True)
        sizes = one.epsilon, one.heads, one.kv_heads, one.dim
        return _Layer(*map(_address, norms), *(_matrix(weight, bias, self._kept) for weight, bias in matrices), *sizes)

    @property
    def address(self) -> int:
        """The address of the layers in memory."""
        return ctypes.addressof(self._layers)

    @property
    def count(self) -> int:
        """The number of layers."""
        return len(self._weights)

    @property
    def width(self) -> int:
        """The width of the states E."""
        return len(self._weights[0].out)

    def fits(self, dtype: torch.dtype) -> bool:
        """Whether the kernels are compiled, and take the weights with states of `dtype`."""
        return compiled() and all(each.fit(dtype) for each in self._weights)

    def forward(
        self,
        h: Tensor,
        tables: tuple[Tensor, Tensor],
        batch: int,
        slots: int,
        *,
        layers: range = range(1),
        inputs: Tensor | None = None,
        picked: Tensor | None = None,
        kv: tuple[Sequence[Tensor], Sequence[Tensor]] | None = None,
        first: int = 0,
        mask: Tensor | None = None,
        ends: Tensor | None = None,
        causal: bool = False,
    ) -> Tensor:
        """The states [N, E] after `layers`, of states h [N, E], contiguous and of the type of all that follows.

        Args:
            tables: cos and sin [B or 1, Q, 1, R] float32, contiguous, sin with the sign of the half-split.
            batch: B. Of one row, N may be less than B Q: its last queries alone are wanted.
            slots: S, the slots that are read.
            layers: successive indices.
            inputs: [Q, I] what attention reads of all queries, where the layer has no norm for it; contiguous.
            picked: [B, M] int64, contiguous: the queries that go on after attention, of a layer that runs alone; what
                comes out is [B M, E], and `mask` is theirs.
            kv: keys and values [B, >= S, K, D] of each layer's cache; None: queries see the forward's own.
            first: the slot of the first query's keys and values.
            mask: [B, N / B, M] float32, 0 or -inf: which of the last M slots each query sees; None: all.
            ends: [B] int64, contiguous: the slots that each row reads; None: all.
            causal: queries see the slots up to their own, with `first` 0 and no mask.
        Raises MemoryError.
        """
        cos, sin = tables
        queries, count = cos.shape[1], len(h) if picked is None else picked.numel()
        one = _Forward(ctypes.addressof(_kernels()[0]), TYPES[h.dtype], batch, queries, count // batch, cos.shape[-1])
        one.cosine, one.sine, one.apart = cos.data_ptr(), sin.data_ptr(), 0 if cos.shape[0] == 1 else cos[0].numel()
        if kv is not None:
            k, v = ((POINTER * len(store))(*(part.data_ptr() for part in store)) for store in kv)
            one.k, one.v = ctypes.addressof(k), ctypes.addressof(v)
            one.steps = (STEP * 6)(*kv[0][layers[0]].stride()[:3], *kv[1][layers[0]].stride()[:3])
        one.first, one.slots, one.causal, one.ends = first, slots, causal, _address(ends)
        one.picked = _address(picked)
        if mask is not None:
            one.mask, one.last, one.mask_steps = mask.data_ptr(), mask.shape[-1], (STEP * 2)(*mask.stride()[:2])
        one.threads, one.spread = torch.get_num_threads(), library.SPREAD
        out = h.new_empty(count, h.shape[1])
        start, stop = layers[0], layers[-1] + 1
        if _kernels()[1](self._layers, start, stop, ctypes.byref(one), h.data_ptr(), _address(inputs), out.data_ptr()):
            raise MemoryError(f"no memory for layers of {batch} rows of {queries} queries")
        return out


class ChainInC:
    """Forwards of one row over its cache as one call: all layers, the final norm, and the head where it is packed."""

    def __init__(
        self,
        layers: LayersInC,
        kv: tuple[Sequence[Tensor], Sequence[Tensor]],
        table: tuple[Tensor, float],
        norm: tuple[Tensor, float],
        head: Tensor | None,
        taps: Sequence[int],
    ) -> None:
        """Everything is float32. `kv`: keys and values [1, C, K, D] of each layer's cache; `table`: the embeddings and
        their scale; `taps`: layers, rising, whose outputs `forward` returns; `head`: packed, or None.
        """
        self._all, self._kept = layers, list[Any]()
        self._one = _over_cache(kv, self._kept)
        array = (COUNT * len(taps))(*taps)
        matrix = _Matrix() if head is None else _matrix(head, None, self._kept)
        self.embeds = is_table(table[0])  # whether it begins with tokens
        rows = _table(*table, self._kept) if self.embeds else _Table()
        self._end = _End(rows, norm[0].data_ptr(), matrix, norm[1], ctypes.addressof(array), len(taps))
        self._kept += [array, norm, head]
        self._logits = 0 if head is None else len(head)
        self._masks: dict[int, Tensor] = {}

    def forward(
        self, tokens: Tensor, h: Tensor | None, tables: tuple[Tensor, Tensor], start: int
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The states after the norm [T, E], the `taps` side by side [T, ...], and the logits [T, V], or None each.

        Args:
            tokens: [T] int64, contiguous.
            h: [T, E] their embeddings, contiguous; None where it `embeds`.
            tables: cos and sin [P, 1, R] float32 of all positions, contiguous, sin with the sign of the half-split.
            start: the position, and the slot, of the first token; the slots before it are read.
        Raises MemoryError, and IndexError for what is no token.
        """
        count, one, end = len(tokens), self._one, self._end
        cos, sin = tables
        one.queries = one.wanted = count
        one.turned = turned = cos.shape[-1]
        one.cosine, one.sine = (table.data_ptr() + 4 * start * turned for table in (cos, sin))
        one.first, one.slots, one.last, one.mask = start, start + count, 0, None
        if count > 1:
            if count not in self._masks:
                self._masks[count] = torch.full((count, count), -torch.inf).triu_(1)
            one.mask, one.last, one.mask_steps = self._masks[count].data_ptr(), count, (STEP * 2)(0, count)
        one.threads = torch.get_num_threads()
        width = self._all.width
        states, normed = torch.empty(2, count, width)
        tapped = torch.empty(count, end.count * width) if end.count else None
        logits = torch.empty(count, self._logits) if self._logits else None
        end.tapped, end.apart = _address(tapped), end.count * width
        read = tokens.data_ptr(), _address(h)
        arguments = ctypes.byref(one), ctypes.byref(end), *read, states.data_ptr(), normed.data_ptr()
        _check(_chain()(self._all.address, self._all.count, *arguments, _address(logits)), tokens)
        return normed, tapped, logits


@dataclass(frozen=True, slots=True, eq=False)
class PairWeights:
    """Weights around the layer of a drafter of pairs of a token and the state before it; float32 or packed."""

    table: Tensor  # embeddings, packed in blocks or plain
    head: Tensor
    epsilon: float
    scale: float = 1.0  # of the embeddings
    norms: tuple[Tensor, Tensor] | None = None  # of an embedding and of a state
    joined: tuple[Tensor, Tensor | None] | None = None  # without `norms`: the matrix of both side by side, and its bias
    norm: Tensor | None = None  # before the head
    ids: Tensor | None = None  # [N] int64 the token of each row of the head; None: they are in order
    norm_residual: bool = False  # whether the layer adds to the state after its norm
    norm_output: bool = False  # whether the state after the head's norm is fed back

    def fit(self) -> bool:
        """Whether the kernels take these weights, and compute the same bits as PyTorch's operations."""
        matrices = [self.head] if self.joined is None else [self.head, self.joined[0]]
        rows = self.norm, *(self.norms or ()), None if self.joined is None else self.joined[1]
        return (
            is_table(self.table)
            and len(self.table) >= (len(self.head) if self.ids is None else int(self.ids.max()) + 1)
            and all(isinstance(each, PackedWeight) and _takes(each, torch.float32) for each in matrices)
            and all(each is None or (each.dtype == torch.float32 and each.is_contiguous()) for each in rows)
        )


class PairsInC:
    """Greedy chains of one row by a drafter of pairs with a single layer over its cache, as one call."""

    def __init__(self, layer: LayersInC, kv: tuple[Sequence[Tensor], Sequence[Tensor]], weights: PairWeights) -> None:
        """Everything is float32. `kv`: keys and values [1, C, K, D] of the cache."""
        self._layer, self._kept = layer, [weights]
        self._one = _over_cache(kv, self._kept)
        joined = _Matrix() if weights.joined is None else _matrix(*weights.joined, self._kept)
        norms = map(_address, weights.norms or (None, None))
        table = _table(weights.table, weights.scale, self._kept), weights.epsilon
        head = _address(weights.norm), _matrix(weights.head, None, self._kept), _address(weights.ids)
        self._by = _Pairs(*table, *norms, joined, *head, weights.norm_residual, weights.norm_output)

    def draft(
        self, tokens: Tensor, states: Tensor, tables: tuple[Tensor, Tensor], start: int, count: int
    ) -> tuple[Tensor, Tensor]:
        """The fed `tokens` and after them `count` drafted ones, [W + count], and the sum of their logits, [].

        Args:
            tokens: [W] int64, the last of which the first drafted token follows.
            states: [W, E] the state before each of them, contiguous.
            tables: cos and sin [P, 1, R] float32 of all positions, contiguous, sin with the sign of the half-split.
            start: the slot, at least 1, and the position of the first pair; the slots before it are read.
        Raises MemoryError, and IndexError for what is no token.
        """
        one, fed, turned = self._one, len(tokens), tables[0].shape[-1]
        one.turned, one.first, one.threads = turned, start, torch.get_num_threads()
        one.cosine, one.sine = (table.data_ptr() + 4 * start * turned for table in tables)
        whole, highest = torch.empty(fed + count, dtype=torch.int64), torch.empty(())
        whole[:fed] = tokens
        arguments = self._layer.address, ctypes.addressof(one), ctypes.addressof(self._by), states.data_ptr()
        _check(_draft()(*arguments, fed, count, whole.data_ptr(), highest.data_ptr()), tokens)
        return whole, highest


def compiled() -> bool:
    """Whether all kernels are compiled that successive layers run."""
    return _kernels()[1] is not None


def _takes(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether the kernels multiply states of `dtype` with this matrix."""
    if weight.requires_grad:
        return False
    if isinstance(weight, (BlockWeight, Int8Weight)):
        return True
    if isinstance(weight, Panels):
        return dtype == torch.float32
    plain = type(weight) is nn.Parameter and weight.is_cpu and weight.dtype == dtype == torch.float32
    return plain and len(weight) >= panels.WIDTH and weight.stride(0) == 1 and panels.kernel() is not None


def _matrix(weight: Tensor, bias: Tensor | None, kept: list[Any]) -> _Matrix:
    """The matrix for C, whose memory `kept` keeps."""
    rows, columns = weight.shape
    rounded = False
    if isinstance(weight, BlockWeight):
        layout, rounded = _BLOCKS, weight.activations == "int8"
        sections = [_Section(at, None, 0, kind, count) for kind, count, at in weight.sections]
    elif isinstance(weight, Panels):
        layout = _PANELS
        sections = [_Section(weight.packed.data_ptr(), None, 0, weight.kind, rows)]
    elif isinstance(weight, Int8Weight):
        layout = _INT8
        sections = [_Section(weight.packed.data_ptr(), weight.scale.data_ptr(), 0, 0, rows)]
    else:
        layout = _PANELS
        sections = [_Section(weight.data_ptr(), None, weight.stride(1), 0, rows)]
    array = (_Section * len(sections))(*sections)
    kept.append(array)
    return _Matrix(array, _address(bias), len(sections), layout, rounded, rows, columns)


def is_table(weight: Tensor) -> bool:
    """Whether the kernels look up rows of this matrix."""
    plain = type(weight) is nn.Parameter and weight.dtype == torch.float32 and weight.stride(1) == 1
    return isinstance(weight, BlockWeight) or plain


def _table(weight: Tensor, scale: float, kept: list[Any]) -> _Table:
    """Embeddings for C, whose memory `kept` keeps."""
    if isinstance(weight, BlockWeight):
        return _Table(_matrix(weight, None, kept), scale)
    array = (_Section * 1)(_Section(weight.data_ptr(), None, weight.stride(0), 0, len(weight)))
    kept.append(array)
    return _Table(_Matrix(array, None, 1, _ROWS, False, *weight.shape), scale)


def _check(failed: int, tokens: Tensor) -> None:
    """Raises the error of a chain that failed."""
    if failed > 0:
        raise MemoryError(f"no memory for a chain of {len(tokens)} tokens")
    if failed < 0:
        raise IndexError(f"the model has no embeddings of some of the tokens {tokens.tolist()}")


def _over_cache(kv: tuple[Sequence[Tensor], Sequence[Tensor]], kept: list[Any]) -> _Forward:
    """A forward of one row of float32 states, for C, over keys and values [1, C, K, D] of each layer."""
    k, v = ((POINTER * len(store))(*(part.data_ptr() for part in store)) for store in kv)
    steps = (STEP * 6)(*kv[0][0].stride()[:3], *kv[1][0].stride()[:3])
    one = _Forward(ctypes.addressof(_kernels()[0]), TYPES[torch.float32], 1, steps=steps)
    one.k, one.v, one.spread = ctypes.addressof(k), ctypes.addressof(v), library.SPREAD
    kept += [kv, k, v]
    return one


def _address(x: Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


@cache
def _kernels() -> tuple[Any, Any]:
    """The addresses of the kernels, in the order of layers.c, and the function that calls them; None without one."""
    ours = library.kernel(_LAYERS, "pardec_layers", (POINTER, COUNT, COUNT, *[POINTER] * 4))
    matmuls = blocks.kernel(), panels.kernel(), int8.kernel()
    others = norm(), gate(), rotation(), attention.kernel(), blocks.rows_kernel()
    if ours is None or any(each is None for each in (*others, panels.kernel())):  # panels.c has plain weights too
        return None, None
    found = (None if each is None else ctypes.cast(each, POINTER).value for each in (*matmuls, *others))
    return (POINTER * (len(matmuls) + len(others)))(*found), ours


def _chain() -> Any:
    """The compiled forward of a chain, from the library of the layers."""
    return library.kernel(_LAYERS, "pardec_chain", _CHAIN)


def _draft() -> Any:
    """The compiled drafting of a chain, from the library of the layers."""
    return library.kernel(_LAYERS, "pardec_draft", _DRAFT)
