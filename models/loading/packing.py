"""The matrices of a GGUF file that stay packed in memory, as its blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import ArgumentError
from ..files.gguf.tensors import FileTensor
from ..files.sources import Source
from ..files.weights import Published
from ..kernels.cpu import blocks, library
from .assemble import ROUTER, Target, Weight


@dataclass(slots=True)
class Packing:
    """Packs the matrices of one model, and says which. Made by `choose_packing`."""

    activations: blocks.Activations
    asked: str | None = None  # the argument by which the caller asked for it
    matrices: Counter[str] = field(default_factory=Counter)  # packed, by types
    plain: Counter[str] = field(default_factory=Counter)  # dequantized, by types

    def chosen(
        self, decoder: nn.Module, expected: Mapping[str, Target], published: Mapping[str, Published]
    ) -> dict[str, list[FileTensor]]:
        """The tensors of each parameter that stays packed, because a kernel multiplies the type of every one of them.

        Raises ArgumentError where there are none, and the caller asked for them.
        """
        sources: dict[str, list[tuple[int, Published]]] = {}
        for name, entry in published.items():
            sources.setdefault(expected[name].parameter, []).append((expected[name].start, entry))
        chosen: dict[str, list[FileTensor]] = {}
        for name, parameter in decoder.named_parameters():
            if parameter.dim() < 2 or name not in sources or name.rpartition(".")[2] in ROUTER:
                continue
            parts = [entry for _, entry in sorted(sources[name], key=lambda each: each[0])]
            tensors = [entry.blocks for entry in parts if entry.blocks is not None and entry.change is None]
            kinds = "+".join(dict.fromkeys(tensor.kind for tensor in tensors))
            rows = sum(tensor.shape[-2] for tensor in tensors)  # rows of one matrix, also where each tensor is a stack
            if rows != parameter.shape[-2] or any(tensor.kind not in blocks.TYPES for tensor in tensors):
                self.plain[kinds] += 1
            else:
                self.matrices[kinds] += 1
                chosen[name] = tensors
        if self.asked is not None and not chosen:
            kinds = ", ".join(self.plain) or "no matrix"
            raise ArgumentError(
                f"{self.asked} cannot be followed: the file holds {kinds}, and no kernel multiplies these types",
                f"leave it out, or use a file of one of the types {', '.join(blocks.TYPES)}",
            )
        return chosen

    def weights(
        self, decoder: nn.Module, expected: Mapping[str, Target], published: Mapping[str, Published], dtype: torch.dtype
    ) -> dict[str, Weight]:
        """The packed matrices by parameter; of a stack of experts, one for each."""
        shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
        packed: dict[str, Weight] = {}
        for name, tensors in self.chosen(decoder, expected, published).items():
            *stack, _, columns = shapes[name]
            raws = [(tensor.kind, tensor.raw().view(*stack, tensor.shape[-2], -1)) for tensor in tensors]
            each = [[(kind, raw[index]) for kind, raw in raws] for index in range(stack[0])] if stack else [raws]
            joined: list[Tensor] = [blocks.joined(parts, columns, dtype, self.activations) for parts in each]
            packed[name] = joined if stack else joined[0]
        return packed

    def summary(self) -> str:
        """A summary in one line."""
        if not self.matrices:
            return f"no matrix packed ({', '.join(self.plain)})"
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.matrices.most_common())
        left = f", {self.plain.total()} plain ({', '.join(self.plain)})" if self.plain else ""
        return f"packed matrices: {kinds}{left}, activations {self.activations}"


def choose_packing(
    source: Source, device: torch.device, dtype: object, packed: bool | None, activations: str | None, **others: object
) -> tuple[Packing | None, str]:
    """How the blocks of a GGUF file are kept; or None and the reason why no block of `source` stays packed.

    Without `packed`, blocks stay packed on a CPU that has a kernel for them, unless the caller names a `dtype` for the
    weights or sets one of the `others`: arguments of `load` that change or move weights. Raises ArgumentError where
    `packed` or `activations` cannot be followed.
    """
    asked = f"packed={packed}" if packed else f"activations={activations}" if activations is not None else None
    given = next((name for name, value in others.items() if value is not None), None)
    reason = hint = ""
    if packed is False:
        reason, hint = "packed=False", "leave it out"
    elif source.gguf is None:
        reason = f"{source.name} is no GGUF file"
        hint = 'leave it out; quantize="int8" or quantize="int4" quantizes other models'
    elif device.type != "cpu":
        reason, hint = f"the model is on {device}, and packed weights are multiplied on a CPU", 'add device="cpu"'
    elif given is not None:
        reason, hint = f"{given}={others[given]} needs plain weights", f"leave {given} out"
        if given == "adapter":
            hint += ', or use quantize="int8", which packs merged weights'
    elif asked is None and dtype != "auto":
        reason = f"dtype={dtype}"
    elif packed is None and (not library.allowed() or blocks.kernel() is None):
        reason, hint = "there is no kernel for packed weights here", "install a C compiler, or leave it out"
    if not reason:
        return Packing("int8" if activations == "int8" else "float32", asked), ""
    if asked is not None:
        raise ArgumentError(f"{asked} cannot be followed: {reason}", hint)
    return None, reason
