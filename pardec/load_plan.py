"""Plans a model before it is loaded: its memory, and an estimate of its speed, from the headers of its files alone.

    seconds of a token = layers * rest of a layer + sum over matrices of bytes / rate of a matmul of one row
    seconds of a forward of P positions = layers * rest + sum over matrices of 2 P entries / rate of a matmul of P rows

The rates of each type of weights are measured here, in some hundred ms, with made-up matrices as large as the model's
or 64 MB. The rest of a layer, which is all but its matmuls, is that of a small decoder with one token. Sampling,
drafting, and attention to a long context are not in the estimates.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pardec.models.decoder_config import DecoderConfig
from pardec.models.errors import CapacityError
from pardec.models.kernels import layout
from pardec.models.kernels.cpu import blocks
from pardec.models.kernels.cpu.blocks import TYPES, WIDTH, BlockWeight
from pardec.models.kernels.matmul import matmul
from pardec.models.kv_stores.cache import stored_bytes
from pardec.models.loading import assemble
from pardec.models.loading.outline import Matrix, Outline, outline
from pardec.models.parallel.placement import short
from pardec.models.plan import Plan, Visible
from pardec.samplers.speculative.cache.int8 import Int8

from .bench.floor import best
from .memory_plan import size_text

POSITIONS = 96  # positions of the forward whose time is estimated
_LARGEST, _SMALL = 64 << 20, 1 << 20  # bytes of a matrix that one row is multiplied with, entries where many are
_SPAN = 1000  # positions of the cache whose bytes are said, unless the caller names a number


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The memory of a model in bytes, and estimates of its speed.

    Attributes:
        matrices: how many matrices there are of each type in memory.
        plain: for a GGUF file, how many matrices of each type in the file do not stay packed. why_plain: the reason,
            where it is one for all of them.
        weights: bytes of all weights. peak: the same and the largest tensor while it is read.
        cache: bytes of keys and values of `rows` rows of `positions` positions, by how they are kept.
        read: bytes of weights that a forward of one token reads. bandwidth: bytes of them per second.
        tokens_per_second: estimate for one row decoded token by token; None for a masked model.
        forward_s: estimated seconds of a forward of 96 positions.
    """

    model: str
    family: str
    device: str
    dtype: str
    threads: int
    activations: str | None
    parameters: int
    matrices: dict[str, int]
    plain: dict[str, int]
    why_plain: str
    weights: int
    peak: int
    rows: int
    positions: int
    cache: dict[str, int]
    read: int
    bandwidth: float
    tokens_per_second: float | None
    forward_s: float

    def document(self) -> dict[str, Any]:
        """The plan as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.matrices.items())
        said = f", activations {self.activations}" if self.activations else ""
        lines = [
            f"{self.model}: {self.family}, {self.parameters:,} parameters, on {self.device}, {self.dtype}{said}",
            f"{'weights':>20}  {size_text(self.weights):>8}  matrices: {kinds}",
        ]
        if self.plain:
            left = ", ".join(f"{count} {kind}" for kind, count in self.plain.items())
            lines.append(f"{'':>20}  {'':>8}  not packed: {left}" + (f" ({self.why_plain})" if self.why_plain else ""))
        lines.append(f"{'peak while loading':>20}  {size_text(self.peak):>8}")
        of = "a row" if self.rows == 1 else f"{self.rows:,} rows"
        for kind, count in self.cache.items():
            lines.append(
                f"{f'{self.positions:,} positions':>20}  {size_text(count):>8}  keys and values of {of}: {kind}"
            )
        threads = f"{self.threads} thread" + ("s" if self.threads > 1 else "")
        lines.append(f"estimated from matmuls measured now ({threads}), without sampling and a long context:")
        if self.tokens_per_second is not None:
            lines.append(
                f"{'one row':>20}  {_number(self.tokens_per_second)} tokens per second, each of which reads"
                f" {size_text(self.read)} of weights ({self.bandwidth / 1e9:.1f} GB/s)"
            )
        rate = f"{1000 * self.forward_s:.0f} ms per forward, {POSITIONS / self.forward_s:,.0f} positions per second"
        lines.append(f"{f'{POSITIONS} positions':>20}  {rate}")
        return "\n".join(lines)


def plan_loading(
    name_or_path: str | os.PathLike[str],
    *,
    rows: int = 1,
    positions: int | None = None,
    **loading: Any,
) -> LoadPlan:
    """Plans a local model that `load` would load with the same arguments, `loading`. No weight is read.

    Args:
        rows, positions: of the keys and values whose memory is said; of each row, prompt and answer together.

    Raises:
        ModelError: for what cannot be loaded, and for models whose memory the headers do not tell.
        CapacityError: for more positions than the model has.
    """
    made = outline(name_or_path, **loading)
    if positions is None:
        positions = _SPAN
    elif made.limit is not None and positions > made.limit:
        raise CapacityError(
            f"a row needs {positions} positions and {made.name} has {made.limit}", "plan a shorter prompt or answer"
        )
    plain = Counter(matrix.stored for matrix in made.matrices if made.is_gguf and not matrix.packed)
    one, many = _rates(made)
    read = sum(matrix.bytes * matrix.read for matrix in made.matrices)
    rest = made.config.layers * _overhead(made)
    token = rest + sum(matrix.bytes * matrix.read / one(matrix) for matrix in made.matrices if matrix.read)
    forward = rest + sum(_operations(matrix) / many(matrix) for matrix in made.matrices if not matrix.rows)
    return LoadPlan(
        made.name,
        made.family,
        str(made.device),
        short(made.dtype),
        torch.get_num_threads() if made.device.type == "cpu" else 1,
        made.activations,
        made.parameters,
        dict(Counter(matrix.types for matrix in made.matrices).most_common()),
        dict(plain.most_common()),
        made.why_plain,
        made.weight_bytes,
        made.weight_bytes + made.loading,
        rows,
        positions,
        _cache(made, rows * positions),
        round(read),
        read / (token - rest),
        None if made.masked else 1 / token,
        forward,
    )


def _cache(made: Outline, positions: int) -> dict[str, int]:
    """Bytes of keys and values, by dtype; and of an AR model in the cache int8."""
    kinds = dict.fromkeys((made.dtype, torch.float32, torch.bfloat16))
    found = {short(kind): made.cache_bytes(positions, kind) for kind in kinds}
    found = {kind + ("" if kind == short(made.dtype) else f" (dtype={kind})"): size for kind, size in found.items()}
    if made.attention == "causal" and made.config.least_window is None:
        layers = [made.config.of(layer) for layer in range(made.config.layers)]
        shapes = [(layer.kv_heads, layer.head_dim) for layer in layers]
        sizes = [
            stored_bytes(Int8().store, shapes, made.dtype, rows=1, capacity=slots, scratch=0) for slots in (4096, 8192)
        ]
        found["int8 (the cache @int8)"] = (sizes[1] - sizes[0]) * positions // 4096
    return found


def _operations(matrix: Matrix) -> float:
    """Operations with `matrix` in a forward of `POSITIONS`; of a stack of experts, only chosen experts count."""
    return 2 * POSITIONS * prod(matrix.shape) * (matrix.read if len(matrix.shape) == 3 else 1)


def _overhead(made: Outline) -> float:
    """Seconds of a layer for one token without its matmuls, measured on a layer whose matrices are tiny."""
    layers, size = 8, 64
    frequencies = tuple(1e4 ** (-i / 16) for i in range(16))
    shape = DecoderConfig(
        vocab=size, width=size, layers=layers, heads=2, kv_heads=2, head_dim=32, mlp_width=size, norm_eps=1e-6,
        frequencies=frequencies,
    )  # fmt: skip
    decoder = assemble.empty(shape).to_empty(device=made.device).to(made.dtype).requires_grad_(False)
    for weight in decoder.parameters():
        weight.fill_(0.01)
    plan = Plan.full(torch.zeros(1, 1, dtype=torch.long, device=made.device), Visible.causal())
    with torch.inference_mode():
        return best(lambda: decoder(plan).logits(), made.device) / layers


Rate = Callable[[Matrix], float]


def _rates(made: Outline) -> tuple[Rate, Rate]:
    """Measures matmuls for each type of matrix: bytes per second with one row, operations per second with many."""
    largest: dict[str, Matrix] = {}
    for matrix in made.matrices:
        if matrix.types not in largest or prod(matrix.shape) > prod(largest[matrix.types].shape):
            largest[matrix.types] = matrix
    total = sum(matrix.bytes for matrix in made.matrices)
    one: dict[str, float] = {}
    many: dict[str, float] = {}
    with torch.inference_mode():
        for types, matrix in largest.items():
            columns = matrix.shape[-1]
            each = matrix.bytes / prod(matrix.shape)  # bytes of an entry
            weight, size = _sample_matrix(made, types.split("+"), columns, int(min(total, _LARGEST) / each / columns))
            x = torch.full((1, columns), 0.5, dtype=made.dtype, device=made.device)
            one[types] = size / best(partial(matmul, x, weight), made.device)
            weight, _ = _sample_matrix(made, types.split("+"), columns, max(64, _SMALL // columns))
            x = torch.full((POSITIONS, columns), 0.5, dtype=made.dtype, device=made.device)
            many[types] = 2 * POSITIONS * weight.numel() / best(partial(matmul, x, weight), made.device)
    return (lambda matrix: one[matrix.types]), (lambda matrix: many[matrix.types])


def _sample_matrix(made: Outline, types: Sequence[str], columns: int, rows: int) -> tuple[Tensor, int]:
    """A matrix of about `rows` rows, and its bytes; its values are finite and not zero."""
    if types[0] not in TYPES:
        plain = layout.empty((max(rows, 1), columns), dtype=made.dtype, device=made.device)
        layout.fill(plain, torch.full((len(plain), columns), 0.5, dtype=made.dtype, device=made.device))
        return nn.Parameter(plain, requires_grad=False), plain.numel() * made.dtype.itemsize
    panels = max(1, rows // len(types) // WIDTH)
    packed = [torch.full((panels, blocks.panel_bytes(kind, columns)), 0x31, dtype=torch.uint8) for kind in types]
    activations: blocks.Activations = "int8" if made.activations == "int8" else "float32"
    counts = (panels * WIDTH,) * len(types)
    weight = BlockWeight(tuple(types), counts, columns, made.dtype, activations, *packed)
    return weight, weight.stored_bytes


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
