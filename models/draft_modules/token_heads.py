"""Heads on a target's state, each of residual blocks and a linear, stored in the layout of fast matmuls.

g = x + silu(W x + b), some times;  logits = U g (+ c)
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from ..errors import ModelError, listed
from ..kernels import layout
from ..kernels.matmul import matmul
from ..model import LanguageModel
from .contracts import DraftFiles
from .parameters import multiplied

_PADDING = 256  # rows by which a head's vocabulary may differ from the target's: tables are padded to multiples


@dataclass(slots=True)
class HeadNames:
    """The published names of one head's tensors."""

    blocks: dict[int, str] = field(default_factory=dict)  # the stem of each block, by its index in the file
    out: str = ""  # the stem of the last linear
    entry: str = ""  # the stem of a linear parallel to the first block, for inputs wider than E


def counted(files: DraftFiles, heads: Sequence[HeadNames], *keys: str) -> str:
    """How many heads and blocks a file has, and the number in the first of these config keys where it differs.

    Warns where the config states more heads than there are.
    """
    blocks = max(len(head.blocks) for head in heads)
    found = f"{len(heads)} heads of {blocks} block{'s' if blocks > 1 else ''}"
    stated = next((files.config[key] for key in keys if key in files.config), None)
    if stated in (None, len(heads)):
        return found
    if type(stated) is int and stated > len(heads):
        warnings.warn(
            f"{files.name} has {found}, and the config says {stated} heads: a file may be missing",
            stacklevel=2,
        )
    return f"{found}; the config says {stated} heads"


class Block(nn.Module):
    """x + silu(W x + b)."""

    bias: nn.Parameter | None

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))

    def forward(self, x: Tensor) -> Tensor:
        return x + silu(matmul(x, self.weight, self.bias))


class Entry(Block):
    """Maps a wider input z to R z + c + silu(W z + b); the weight [2 E, Z] is R on top of W."""

    def forward(self, x: Tensor) -> Tensor:
        linear, gate = matmul(x, self.weight, self.bias).chunk(2, -1)
        return linear + silu(gate)


class Output(Block):
    """U x + c."""

    def forward(self, x: Tensor) -> Tensor:
        return matmul(x, self.weight, self.bias)


_B = TypeVar("_B", bound=Block)


class Head(nn.Module):
    """The blocks of one head, and its last linear, which several heads may share."""

    def __init__(self, blocks: Iterable[Block], out: Output) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.out = out

    def states(self, x: Tensor) -> Tensor:
        """[..., E] the input of the last linear."""
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.states(x))  # type: ignore[no-any-return]


def matrix(*parts: Tensor) -> Tensor:
    """A weight with the rows of all `parts`, copied to the layout in which matmuls are fastest."""
    first = parts[0]
    weight = layout.empty((sum(map(len, parts)), *first.shape[1:]), dtype=first.dtype, device=first.device)
    start = 0
    for tensor in parts:
        layout.fill(weight, tensor, start)
        start += len(tensor)
    return weight


def read_heads(
    files: DraftFiles,
    target: LanguageModel,
    heads: list[HeadNames],
    *,
    rows: int | None = None,
    row_index: Tensor | None = None,
    inputs: Sequence[int] = (),
) -> list[Head]:
    """The heads of these names, in order; a tensor that several share is in memory once.

    Raises ModelError for tensors that are missing or do not fit the target.

    Args:
        rows: those that every last linear is to have, by default the target's vocabulary.
        row_index: which of a longer last linear, by default the first.
        inputs: the widths that the heads read, by default the target's.
    """
    rows = target.vocab_size if rows is None else rows
    _check(files, target, heads, rows, row_index, inputs or [target.width] * len(heads))
    known: dict[tuple[Any, ...], Block] = {}

    def part(make: type[_B], *stems: str) -> _B:
        names = {f"{stem}.{kind}": f"{at}.{kind}" for at, stem in enumerate(stems) for kind in ("weight", "bias")}
        names = {name: to for name, to in names.items() if name in files.published or name.endswith(".weight")}
        tensors = files.read(names, target.dtype, target.device)
        if make is Output:
            tensors = {name: _fitted(tensor, rows, row_index) for name, tensor in tensors.items()}
        weight, bias = (
            [tensor for name, tensor in tensors.items() if name.endswith(kind)] for kind in ("weight", "bias")
        )
        key = (make, *map(_digest, (*weight, *bias)))
        if key not in known:
            known[key] = make(multiplied(files, matrix(*weight)), torch.cat(bias) if bias else None)
        return cast(_B, known[key])

    result = []
    for names in heads:
        stems = [names.blocks[at] for at in sorted(names.blocks)]
        blocks: list[Block] = [part(Entry, names.entry, stems.pop(0))] if names.entry else []
        result.append(Head([*blocks, *(part(Block, stem) for stem in stems)], part(Output, names.out)))
    return result


def _digest(tensor: Tensor) -> tuple[torch.Size, bytes]:
    values = tensor.detach().cpu().contiguous().view(torch.uint8).numpy()
    return tensor.shape, blake2b(values.data, digest_size=16).digest()


def _fitted(tensor: Tensor, rows: int, row_index: Tensor | None) -> Tensor:
    """The rows [rows, ...] of a last linear; rows of padding are dropped, and missing rows stay missing."""
    if len(tensor) <= rows:
        return tensor
    return tensor[:rows] if row_index is None else tensor[row_index]


def _check(
    files: DraftFiles,
    target: LanguageModel,
    heads: list[HeadNames],
    rows: int,
    row_index: Tensor | None,
    inputs: Sequence[int],
) -> None:
    """Raises ModelError for heads that are not complete, or do not fit the target."""
    if not heads or any(not names.out for names in heads):
        without = [str(at) for at, names in enumerate(heads) if not names.out]
        raise ModelError(
            f"{files.name}: heads {listed(without)} have no last linear" if heads else f"{files.name} has no heads",
            f"it has {listed(sorted(files.published)[:12])}",
        )
    shapes: Mapping[str, tuple[int, ...]] = {name: entry.shape for name, entry in files.published.items()}
    for at, names in enumerate(heads):
        if sorted(names.blocks) != sorted(heads[0].blocks):
            raise ModelError(
                f"{files.name}: head {at} has {len(names.blocks)} blocks, and head 0 has {len(heads[0].blocks)}",
                "all heads need the same number",
            )
    _check_alike(files, heads)
    for at, (names, width) in enumerate(zip(heads, inputs, strict=True)):
        stems = [names.blocks[index] for index in sorted(names.blocks)]
        for stem, columns in zip(stems, [width, *[target.width] * len(stems)], strict=False):
            actual = shapes.get(f"{stem}.weight", (target.width, columns))  # reading reports a missing one
            if actual != (target.width, columns):
                raise ModelError(
                    f"{files.name}: {stem}.weight is {list(actual)}, and {target.name} needs {[target.width, columns]}",
                    "use the target that the heads were trained on",
                )
        if names.entry:
            pair = [
                {kind for kind in ("weight", "bias") if f"{stem}.{kind}" in shapes} for stem in (names.entry, stems[0])
            ]
            if pair[0] != pair[1] or shapes[f"{names.entry}.weight"] != (target.width, width):
                raise ModelError(f"{files.name}: {names.entry} does not fit {stems[0]}", "the two must have one shape")
        out = shapes.get(f"{names.out}.weight", (rows, target.width))
        if len(out) != 2 or out[1] != target.width:
            raise ModelError(
                f"{files.name}: head {at} has {list(out)}, and the states of {target.name} have {target.width} entries",
                "use the target that the heads were trained on",
            )
        biases = [(stem, target.width) for stem in (*stems, *filter(None, [names.entry]))] + [(names.out, out[0])]
        for stem, size in biases:
            bias = shapes.get(f"{stem}.bias", (size,))
            if bias != (size,):
                raise ModelError(
                    f"{files.name}: {stem}.bias is {list(bias)}, and {[size]} is needed",
                    "use the target that the heads were trained on",
                )
        if row_index is None:
            fits = abs(rows - out[0]) <= min(_PADDING, rows // 4)
        else:
            fits = out[0] == rows or out[0] > int(row_index.max())
        if not fits:
            raise ModelError(
                f"{files.name}: head {at} predicts {out[0]} tokens, and {target.name} has {rows}",
                "use the target that the heads were trained on",
            )


def _check_alike(files: DraftFiles, heads: list[HeadNames]) -> None:
    """Raises ModelError where some heads lack a bias that others have, or predict another number of tokens."""
    published = files.published
    blocks = [stem for names in heads for stem in names.blocks.values()]
    for stems in (blocks, [names.out for names in heads]):
        lacking = [f"{stem}.bias" for stem in stems if f"{stem}.bias" not in published]
        if 0 < len(lacking) < len(stems):
            raise ModelError(f"{files.name} lacks {listed(lacking)}, and other heads have one", "export it again")
    rows = {entry.shape[:1] for names in heads if (entry := published.get(f"{names.out}.weight")) is not None}
    if len(rows) > 1:
        counts = listed(str(count) for (count,) in sorted(rows))
        raise ModelError(f"the heads of {files.name} predict different numbers of tokens: {counts}", "export it again")
