"""Makes a decoder of published tensors: every tensor is used exactly once, or named in an error."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from ..decoder import Decoder
from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..families import FamilySpec
from ..files.weights import Published, mismatches, read
from ..kernels import layout
from ..kernels.cpu.blocks import BlockWeight
from ..kernels.cpu.packed import as_parameter
from ..layers.empty_weights import empty_weights
from .unread import check_unread, draft_patterns, has_own_head

ROUTER = (
    "router_weight",
    "router_bias",
    "router_scale",
    "router_expert_scale",
)  # always in float32, and never quantized

_OPTIONAL = ("_bias", "q_norm", "k_norm")  # ends of the names of parameters that some configs of a family leave out

Weight = Tensor | list[Tensor]  # a parameter, or the matrices of a stack of experts
Finish = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a published tensor: a parameter's rows from `start` on, of one expert or of all."""

    parameter: str
    start: int
    shape: tuple[int, ...]
    expert: int | None = None


def empty(config: DecoderConfig) -> Decoder:
    """A decoder on the meta device."""
    with empty_weights():
        return Decoder(config).eval()


def targets(spec: FamilySpec, decoder: Decoder, published: Container[str] = ()) -> dict[str, Target]:
    """The target of every tensor that a checkpoint of this family and shape must hold.

    Of the family's layouts of files, it is the one that `published` has tensors of.
    """
    names = names_of(spec, decoder.config, published)
    expected: dict[str, Target] = {}
    for name, parameter in decoder.named_parameters():  # a tied head appears once, as the embedding
        layer, generic = _generic(name)
        stems = names.get(generic)
        if stems is None:
            raise ModelError(f"the family {spec.name} has no published name for {name}")
        *stack, rows, columns = parameter.shape if parameter.dim() > 1 else (*parameter.shape, 0)
        parts = (stems,) if isinstance(stems, str) else stems
        sizes = (rows,) if len(parts) == 1 else decoder.config.fused_rows(name)
        start = 0
        for stem, size in zip(parts, sizes, strict=False):  # shorter where values are keys
            stem, shape = stem.replace("{i}", layer), (size, columns) if columns else (size,)
            if "{e}" in stem:
                for expert in range(stack[0]):
                    expected[stem.replace("{e}", str(expert))] = Target(name, start, shape, expert)
            else:
                expected[stem] = Target(name, start, (*stack, *shape))
            start += size
    return expected


def names_of(spec: FamilySpec, config: DecoderConfig, published: Container[str]) -> dict[str, str | tuple[str, ...]]:
    """The family's names, in the layout of files that `published` has tensors of."""
    names = dict(spec.names)
    names |= next((each for each in spec.layouts if _has_layout(each, config.layers, published)), {})
    if config.tied and names["embed.weight"] not in published and names["head.weight"] in published:
        names["embed.weight"] = names["head.weight"]  # the one tensor, under its other name
    return names


def as_published(spec: FamilySpec, config: DecoderConfig, published: Mapping[str, Published]) -> DecoderConfig:
    """The config that the tensors imply, whatever the file says of a tied head."""
    names = names_of(spec, config, published)
    head = str(names["head.weight"])
    own = has_own_head(config, published, str(names["embed.weight"]), head)
    if own and not spec.own_head:
        raise ModelError(
            f"config.json ties the head to the embedding, and {head} in the file differs from it",
            "the published code leaves such a head out: correct weight_tying",
        )
    return replace(config, tied=False) if own else config


def check(
    spec: FamilySpec, expected: dict[str, Target], published: dict[str, Published], config: DecoderConfig
) -> dict[str, Published]:
    """The tensors to read.

    Raises ModelError, with the names, for tensors that are missing, surplus, misshapen or not floating-point, and for
    unread ones that differ from what the decoder computes.
    """
    harmless = [*spec.harmless, *draft_patterns(config.layers, published)]
    if config.tied:  # some files repeat the tied embedding
        harmless.append(re.escape(str(names_of(spec, config, published)["head.weight"])))
    used = {name: entry for name, entry in published.items() if name in expected}
    if wrong := mismatches(published, used, {name: target.shape for name, target in expected.items()}, harmless):
        raise ModelError(
            f"the tensors do not match a {spec.name} model of this config; {wrong}",
            "check that config.json and the weights belong together",
        )
    check_unread(spec, config, published)
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
    finish: Finish | None = None,
    complete: Mapping[str, Weight] | None = None,
) -> None:
    """Read every tensor straight into its parameter; only one published tensor is in memory in addition to the weights.

    `memory(name)` returns the function that allocates a matrix of a parameter, given its shape, dtype and device.
    `finish(name, weight)` returns what to keep of a parameter, or of each expert's in a stack, once it is complete.
    `complete` has the parameters that are not to be read.
    """
    complete = complete or {}
    published = {name: entry for name, entry in published.items() if expected[name].parameter not in complete}
    shapes = {name: parameter.shape for name, parameter in decoder.named_parameters()}

    def allocate(name: str) -> Weight:
        """Memory of a parameter; experts that run one by one, on a CPU or quantized, are a list of matrices."""
        device = device_of(name)
        listed = device.type == "cpu" or finish is not None
        return _allocate(name, shapes[name], memory(name), dtype, device, listed=listed)

    weights = _read(spec, decoder.config, shapes, expected, published, allocate, partial(_finished, finish))
    for name, weight in (*complete.items(), *weights.items()):
        owner, _, leaf = name.rpartition(".")
        module = decoder.get_submodule(owner)
        delattr(module, leaf)  # a stack may come back as a list
        setattr(module, leaf, _parameter(weight))
    if decoder.config.tied:
        decoder.head.weight = decoder.embed.weight


def refill(
    spec: FamilySpec,
    decoder: Decoder,
    whole: Decoder,
    expected: dict[str, Target],
    published: dict[str, Published],
    *,
    dtype: torch.dtype,
    finish: Finish | None = None,
) -> None:
    """Reads every tensor into its parameter's existing memory, then updates tensors derived from parameters.

    `whole` is a decoder of the checkpoint's sizes on the meta device: `decoder` itself may have a share of each
    parameter. With `finish`, which `fill` had, one whole parameter is in memory beside the weights.
    """
    shapes = {name: parameter.shape for name, parameter in whole.named_parameters()}

    def present(name: str) -> Weight:
        weight = operator.attrgetter(name)(decoder)
        return list(weight) if isinstance(weight, nn.ParameterList) else weight

    def allocate(name: str) -> Weight:
        device = _first(present(name)).device
        return _allocate(name, shapes[name], torch.empty, dtype, device, listed=True)

    def replace(name: str, weight: Weight) -> Weight:
        old, new = present(name), _finished(finish, name, weight)
        for target, source in zip(_listed(old), _listed(new), strict=True):
            overwrite(target, source)
        return old

    room, complete = (present, partial(_finished, None)) if finish is None else (allocate, replace)
    _read(spec, whole.config, shapes, expected, published, room, complete)
    if decoder.head.again is not None:
        layout.fill(decoder.head.again, layout.dense(decoder.embed.weight))


def overwrite(weight: Tensor, source: Tensor) -> None:
    """Copies `source` to the memory of `weight`, which is quantized in the same way if it is."""
    if isinstance(weight, BlockWeight):
        if not isinstance(source, BlockWeight) or source.types != weight.types:
            raise ModelError("a new weight cannot be quantized as the old one is", "load the new checkpoint as a model")
        for own, new in zip(weight.packed, source.packed, strict=True):
            own.copy_(new)
        return
    parts = getattr(weight, "__tensor_flatten__", None)
    if parts is None:
        layout.fill(weight, source)
        return
    for part in parts()[0]:
        overwrite(getattr(weight, part), getattr(source, part))


def _read(
    spec: FamilySpec,
    config: DecoderConfig,
    shapes: Mapping[str, torch.Size],
    expected: dict[str, Target],
    published: dict[str, Published],
    allocate: Callable[[str], Weight],
    complete: Callable[[str, Weight], Weight],
) -> dict[str, Weight]:
    """Reads each parameter into memory from `allocate`, and passes it through `complete`."""
    missing = {name: shape.numel() for name, shape in shapes.items()}  # entries not read yet
    filled: dict[str, Weight] = {}

    def load(name: str, tensor: Tensor) -> None:
        target = expected[name]
        parameter = target.parameter
        if parameter not in filled:
            filled[parameter] = allocate(parameter)
        room, tensor = filled[parameter], spec.convert(parameter, tensor, config)
        if len(shapes[parameter]) < 3:
            layout.fill(cast(Tensor, room), tensor, target.start)
        else:
            experts = range(len(room)) if target.expert is None else [target.expert]
            for expert, matrix in zip(experts, tensor if target.expert is None else [tensor], strict=True):
                layout.fill(room[expert], matrix, target.start)
        missing[parameter] -= tensor.numel()
        if not missing[parameter]:
            filled[parameter] = complete(parameter, filled[parameter])

    read(published, load)
    return filled


def _allocate(
    name: str,
    shape: torch.Size,
    make: Callable[..., Tensor],
    dtype: torch.dtype,
    device: torch.device,
    *,
    listed: bool,
) -> Weight:
    kind = torch.float32 if name.rpartition(".")[2] in ROUTER else dtype
    if len(shape) == 3 and listed:
        return [make(shape[1:], dtype=kind, device=device) for _ in range(shape[0])]
    return make(shape, dtype=kind, device=device)


def _finished(finish: Finish | None, name: str, weight: Weight) -> Weight:
    if finish is None:
        return weight
    if isinstance(weight, list):
        return _restacked([finish(name, one) for one in weight])
    return finish(name, weight)


def _listed(weight: Weight) -> list[Tensor]:
    return weight if isinstance(weight, list) else [weight]


def _first(weight: Weight) -> Tensor:
    return _listed(weight)[0]


def matmul_memory(name: str) -> Callable[..., Tensor]:
    """The function that allocates a parameter in the fastest layout for matmuls; the embedding is looked up by rows."""
    return torch.empty if name == "embed.weight" else layout.empty


def copy_tied_head(decoder: Decoder) -> None:
    """Keeps a second copy of a tied embedding, in the matmul layout for the head, where that is faster."""
    weight = decoder.embed.weight
    if decoder.config.tied:
        decoder.head.again = layout.repacked(weight)


def _restacked(experts: list[Tensor]) -> Weight:
    """The matrices of a stack, as one tensor where a grouped matmul can use it."""
    plain = all(type(one) in (Tensor, nn.Parameter) and one.is_cuda for one in experts)
    return torch.stack(experts) if plain else experts


def _parameter(weight: Weight) -> nn.Parameter | nn.ParameterList:
    if isinstance(weight, list):
        return nn.ParameterList([as_parameter(one) for one in weight])
    return as_parameter(weight)


def _has_layout(names: Mapping[str, str | tuple[str, ...]], layers: int, published: Container[str]) -> bool:
    """Whether some layer has all of the `names` that belong to a layer, but for biases and norms of heads."""
    always = [each for name, each in names.items() if "{i}" in name and not name.endswith(_OPTIONAL)]
    stems = [stem.replace("{e}", "0") for each in always for stem in ((each,) if isinstance(each, str) else each)]
    return any(all(stem.replace("{i}", str(layer)) in published for stem in stems) for layer in range(layers))


def _generic(name: str) -> tuple[str, str]:
    """("3", "layers.{i}.qkv_weight") of "layers.3.qkv_weight"; ("", name) outside the layers."""
    match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
    return (match[1], "layers.{i}." + match[2]) if match else ("", name)
