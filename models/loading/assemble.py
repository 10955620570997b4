"""From published tensors to a decoder: every tensor is used exactly once, or named in an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn

from ..decoder import Decoder
from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..families import FamilySpec
from ..kernels import layout
from .weights import Published, read


@dataclass(frozen=True, slots=True)
class Target:
    """Where a published tensor goes: the rows of a parameter from `start` on."""

    parameter: str
    start: int
    shape: tuple[int, ...]


def empty(config: DecoderConfig) -> Decoder:
    """A decoder on the meta device."""
    with init_empty_weights(), torch.device("meta"):  # the first alone allocates memory for a moment
        decoder = Decoder(config)
    if config.tied:  # making parameters empty unties them
        decoder.head.weight = decoder.embed.weight
    return decoder.eval()


def targets(spec: FamilySpec, decoder: Decoder) -> dict[str, Target]:
    """The target of every tensor that a checkpoint of this family and shape must hold."""
    expected: dict[str, Target] = {}
    for name, parameter in decoder.named_parameters():  # a tied head appears once, as the embedding
        layer, generic = _generic(name)
        stems = spec.names.get(generic)
        if stems is None:
            raise ModelError(f"family {spec.name} publishes no name for {name}")
        shape = tuple(parameter.shape)
        parts = (stems,) if isinstance(stems, str) else stems
        sizes = (shape[0],) if len(parts) == 1 else decoder.config.fused_rows(generic)
        start = 0
        for stem, size in zip(parts, sizes, strict=True):
            expected[stem.replace("{i}", layer)] = Target(name, start, (size, *shape[1:]))
            start += size
    return expected


def check(
    spec: FamilySpec, expected: dict[str, Target], published: dict[str, Published], tied: bool
) -> dict[str, Published]:
    """The tensors to read. Raises ModelError naming what is missing, surplus, misshapen or not floating-point."""
    harmless = list(spec.harmless)
    if tied:
        harmless.append(re.escape(str(spec.names["head.weight"])))  # some files repeat the tied embedding
    surplus = [
        name for name in published if name not in expected and not any(re.fullmatch(entry, name) for entry in harmless)
    ]
    missing = [name for name in expected if name not in published]
    used = {name: entry for name, entry in published.items() if name in expected}
    misshapen = [
        f"{name} {list(entry.shape)} instead of {list(expected[name].shape)}"
        for name, entry in used.items()
        if entry.shape != expected[name].shape
    ]
    foreign = [name for name, entry in used.items() if entry.dtype is None]
    problems = (
        ("missing", missing),
        ("not known", surplus),
        ("of the wrong shape", misshapen),
        ("not floating-point", foreign),
    )
    mismatches = [f"{len(names)} {kind}: {listed(names)}" for kind, names in problems if names]
    if mismatches:
        raise ModelError(
            f"the tensors do not match a {spec.name} model of this config; {'; '.join(mismatches)}",
            "check that config.json and the weights belong together",
        )
    return used


def fill(
    spec: FamilySpec,
    decoder: Decoder,
    expected: dict[str, Target],
    published: dict[str, Published],
    *,
    dtype: torch.dtype,
    device_of: Callable[[str], torch.device],
    memory: Callable[[str], Callable[..., Tensor]] = lambda name: torch.empty,
    finish: Callable[[str, Tensor], Tensor] = lambda name, weight: weight,
) -> None:
    """Read every tensor straight into its parameter; only one published tensor is in memory beside the weights.

    `memory(name)` returns the function that allocates a parameter, given its shape, dtype and device.
    `finish(name, weight)` returns what to keep of a parameter, as soon as it is complete.
    """
    shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}
    missing = {name: shape[0] for name, shape in shapes.items()}  # rows that are still to come
    filled: dict[str, Tensor] = {}

    def load(name: str, tensor: Tensor) -> None:
        target = expected[name]
        if target.parameter not in filled:
            filled[target.parameter] = memory(target.parameter)(
                shapes[target.parameter], dtype=dtype, device=device_of(target.parameter)
            )
        layout.fill(filled[target.parameter], spec.convert(target.parameter, tensor, decoder.config), target.start)
        missing[target.parameter] -= target.shape[0]
        if not missing[target.parameter]:
            filled[target.parameter] = finish(target.parameter, filled[target.parameter])

    read(published, load)
    for name, tensor in filled.items():
        owner, _, leaf = name.rpartition(".")
        setattr(decoder.get_submodule(owner), leaf, nn.Parameter(tensor, requires_grad=False))
    if decoder.config.tied:
        decoder.head.weight = decoder.embed.weight


def matmul_memory(name: str) -> Callable[..., Tensor]:
    """The function that allocates a parameter in the fastest layout for matmuls; the embedding is looked up by rows."""
    return torch.empty if name == "embed.weight" else layout.empty


def copy_tied_head(decoder: Decoder) -> None:
    """Keeps a second copy of a tied embedding, in the matmul layout for the head, where that is faster."""
    weight = decoder.embed.weight
    if decoder.config.tied:
        decoder.head.again = layout.repacked(weight)


def _generic(name: str) -> tuple[str, str]:
    """("3", "layers.{i}.qkv_weight") of "layers.3.qkv_weight"; ("", name) outside the layers."""
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    return (match[1], "layers.{i}." + match[2]) if match else ("", name)
