"""Replaces the weights of a loaded model in its memory, from a trainer's state dict or from a folder.

Everything is checked before the first number is written, so that a call that is refused changes nothing. Parameters
stay where they are, so that CUDA graphs, the layers' own references and what shares them see the new ones; what was
derived from the old ones (panels, quantized matrices, a head's copies) is made again in its place, and draft modules
bound to the model are loaded again when they are needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..continuous.contracts import ContinuousModel
from ..continuous.diffusion_head import DiffusionHead
from ..cuda_graphs.runner import native
from ..decoder import Decoder
from ..errors import ArgumentError, ModelError, listed, one_line
from ..families import FAMILIES, FamilySpec, mar, var
from ..files.configs import reading
from ..files.sources import Source
from ..files.weights import Published, in_memory, inspect, read, unwrapped, weight_files
from ..images.weight_files import check_names
from ..kernels import layout
from ..layers.quantize import quantize_linears, quantizer
from ..model import LanguageModel
from ..parallel import tensor_parallel
from ..parallel.placement import out_of_memory
from ..scales.contracts import ScaleModel
from ..trimmed import Trimmed
from . import assemble
from .assemble import overwrite
from .recognition import read_description, recognise
from .unread import same

Weights = Mapping[str, Tensor] | str | os.PathLike[str]


def load_weights(model: LanguageModel | ContinuousModel | ScaleModel, weights: Weights) -> None:
    """Replaces all weights of `model` in place, in its own dtype and on its own device.

    Args:
        weights: a state dict by the checkpoint's own names, or a folder (or weight file) in the published layout.

    Raises:
        ModelError: for tensors that are missing, surplus, misshapen or not floating-point, and for a model whose
            weights cannot be replaced. Nothing has been written then.

    If writing itself fails, as on a disk error, the weights are partly old and partly new until the next call; the
    version has risen.
    """
    file = None if isinstance(weights, Mapping) else _source(weights)
    published = _of_state(weights) if isinstance(weights, Mapping) else _of_files(file)
    if isinstance(model, ContinuousModel):
        if model.family != "mar":
            raise _kept(model)
        write = _mar(model, published, file)
    elif isinstance(model, ScaleModel):
        if model.family != "var":
            raise _kept(model)
        write = _var(model, published, file)
    elif (stack := _native_stack(model)) is not None:
        write = _native(model, stack, published, file)
    else:
        write = replacement(model, published)
    _forget(model)
    with torch.inference_mode():  # weights made in inference mode can be written only in that mode
        write()


def _forget(model: LanguageModel | ContinuousModel | ScaleModel) -> None:
    """Marks values computed from the old weights as stale, even if writing the new ones is interrupted."""
    if isinstance(model, ContinuousModel | ScaleModel):
        model.weights_version += 1
        return
    stack = _native_stack(model) or model.decoder
    stack.weights_version = model.weights_version + 1  # type: ignore[union-attr]
    model.draft_modules.clear()  # they may hold copies of its head
    model.head_read = False


# --- sources of tensors ---


def _source(path: str | os.PathLike[str]) -> Source:
    where = Path(os.path.expanduser(os.fspath(path)))
    if where.is_dir():
        return Source(where.name, where, where)
    if where.is_file():
        return Source(where.stem, where.parent, where.parent, where)
    raise ArgumentError(f"there are no weights at {where}", "pass a state dict, or a folder in the published layout")


def _of_files(source: Source | None) -> dict[str, Published]:
    assert source is not None, "of files"
    if (source.folder / "adapter_config.json").is_file():
        raise ArgumentError(
            f"{source.folder} holds an adapter, and load_weights takes whole weights",
            "merge it with pardec.load(base, adapter=...), or pass the state dict of merge_and_unload()",
        )
    return inspect(weight_files(source.folder) if source.file is None else [source.file])


def _of_state(state: Mapping[str, Tensor]) -> dict[str, Published]:
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            what = f"{name!r}: {type(tensor).__name__}"
            raise ArgumentError(
                f"a state dict maps names to tensors, and this one holds {what}", "pass model.state_dict()"
            )
        if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_meta:
            what = "is on the meta device" if tensor.is_meta else f"is a {type(tensor).__name__}"
            raise ArgumentError(f"{name} of the state dict {what}", "gather whole tensors first: full_tensor()")
    halves = [name for name in state if ".lora_" in name]
    if halves:
        raise ArgumentError(
            f"the state dict holds an adapter that is not merged: {listed(halves, 3)}",
            "pass the state dict of merge_and_unload()",
        )
    return in_memory(state)


def _check_floating(published: Mapping[str, Published]) -> None:
    foreign = [name for name, entry in published.items() if entry.dtype is None]
    if foreign:
        raise ModelError(f"{len(foreign)} tensors are not floating-point: {listed(foreign)}")


# --- native models ---


def _native_stack(model: LanguageModel) -> Decoder | None:
    return native(model.decoder.base if isinstance(model.decoder, Trimmed) else model.decoder)


def _native(
    model: LanguageModel, stack: Decoder, published: dict[str, Published], source: Source | None
) -> Callable[[], None]:
    spec = FAMILIES.get(model.family)
    if spec is None:
        raise ModelError(f"{model.name} was not loaded from a checkpoint, so the names of its weights are unknown")
    if any(weight.is_meta for weight in stack.parameters()):
        raise ModelError(
            f"some weights of {model.name} are offloaded from its devices and cannot be replaced",
            "load it without device_map, or in a smaller dtype, so that no layer is offloaded",
        )
    if model.packed:
        raise ModelError(
            f"the weights of {model.name} are packed as the blocks of its GGUF file, and cannot be replaced",
            "load it with packed=False",
        )
    # Whether the head is tied is the loaded model's own choice, not the config's.
    shape = replace(spec.decoder(model.config), tied=stack.config.tied)
    whole = assemble.empty(shape)
    if source is not None:
        _check_config(model, spec, source, published)
    published = unwrapped(published, assemble.targets(spec, whole))
    expected = assemble.targets(spec, whole, published)
    used = assemble.check(spec, expected, published, whole.config)
    if whole.config.tied:
        names = assemble.names_of(spec, whole.config, published)
        _check_tied(model.name, published, str(names["embed.weight"]), str(names["head.weight"]))
    own = {} if model.imaging is None else dict(model.imaging.weights)
    parts = {name.split(".")[0] for name in own}
    conditions = {name: entry for name, entry in published.items() if name.split(".")[0] in parts}
    check_names(model.name, conditions, {name: tuple(weight.shape) for name, weight in own.items()})
    _check_floating(conditions)
    finish: assemble.Finish | None = None
    if model.quantized is not None:
        finish = quantizer(model.quantized, model.device, model.dtype, model.activations)
    elif model.processes > 1:
        finish = tensor_parallel.shares(model.device, whole.config)

    def write() -> None:
        assemble.refill(spec, stack, whole, expected, used, dtype=model.dtype, finish=finish)
        read(conditions, lambda name, tensor: layout.fill(own[name], tensor))

    return write


def _check_config(model: LanguageModel, spec: FamilySpec, source: Source, published: Mapping[str, Published]) -> None:
    """Raises ModelError for a folder whose config.json describes another model: its weights would run wrongly."""
    if not (source.folder / "config.json").is_file() or source.file is not None:
        return
    with reading(source.name):
        config, _ = read_description(source)
        other, _ = recognise(config, published)
        same = other is spec and spec.decoder(config) == spec.decoder(model.config)
    if not same:
        raise ModelError(
            f"the config.json in {source.folder} does not describe the model {model.name}",
            "load that folder with pardec.load",
        )


def _check_tied(name: str, published: Mapping[str, Published], embed: str, head: str) -> None:
    """Raises ModelError where a tied embedding is published twice, with different values."""
    if embed in published and head in published and not same(published, embed, head):
        raise ModelError(
            f"{embed} and {head} differ, and in {name} they are one tensor", "train it with tied embeddings"
        )


# --- MAR and VAR ---


def _kept(model: ContinuousModel | ScaleModel) -> ModelError:
    return ModelError(f"the weights of {model.name} cannot be replaced in place", "load the new checkpoint as a model")


def _replaceable(model: ContinuousModel | ScaleModel, own: Mapping[str, Tensor], used: Mapping[str, Published]) -> None:
    """Raises ModelError unless the model's weights are in memory and the tensors have their names and shapes."""
    if any(weight.is_meta for weight in own.values()):
        raise ModelError(f"{model.name} has no weights in this process")
    check_names(model.name, used, {name: tuple(weight.shape) for name, weight in own.items()})
    _check_floating(used)


def _same(model: ContinuousModel | ScaleModel, source: Source, config: Mapping[str, object], *names: str) -> None:
    """Raises ModelError for a folder whose arguments of these names differ from the model's."""
    for name in names:
        if config[name] != model.config[name]:
            raise ModelError(
                f"{source.folder} has {name}={config[name]}, and {model.name} has {name}={model.config[name]}"
            )


def _mar(model: ContinuousModel, published: dict[str, Published], source: Source | None) -> Callable[[], None]:
    own = mar.named_weights(model)
    used = unwrapped(published, own)
    _replaceable(model, own, used)
    if source is not None:
        config = mar.describe(source.folder, used, source.file.stem if source.file else "")
        _same(model, source, config, "encoder_num_heads", "decoder_num_heads")

    def write() -> None:
        read(used, lambda name, tensor: layout.fill(own[name], tensor))
        assert isinstance(model.head, DiffusionHead), "of a MAR"
        model.head.refresh()

    return write


def _var(model: ScaleModel, published: dict[str, Published], source: Source | None) -> Callable[[], None]:
    own = var.named_weights(model)
    used = var.loaded(unwrapped(published, own), model.scales.sides)
    _replaceable(model, own, used)
    if source is not None:
        config = var.describe(source.folder, used, source.file.stem if source.file else "")
        _same(model, source, config, "num_heads", "patch_nums")
    return lambda: read(used, lambda name, tensor: layout.fill(own[name], tensor))


def replacement(model: LanguageModel, published: dict[str, Published]) -> Callable[[], None]:
    """A function that writes these tensors to the model's parameters.

    The library loads them into a second model, on the CPU, as it would load files: so they may have the names of files
    or those of its modules. Raises ModelError, as loading does, for tensors that do not match by name or shape; a
    config.json beside them is not compared.
    """
    from ..hf.causal_lm import HFAdapter  # imports transformers' models

    adapter = model.decoder
    if not isinstance(adapter, HFAdapter):
        raise ModelError(f"{model.name} was not loaded from a checkpoint, so the names of its weights are unknown")
    library = adapter.model
    present = library.state_dict(keep_vars=True)
    if any(weight.is_meta for weight in present.values()):
        raise ModelError(
            f"some weights of {model.name} are offloaded from its devices and cannot be replaced",
            "load it without device_map, or in a smaller dtype, so that no layer is offloaded",
        )
    published = unwrapped(published, present)
    floating = [name for name, weight in present.items() if weight.is_floating_point()]
    foreign = [name for name in floating if name in published and published[name].dtype is None]
    if foreign:
        raise ModelError(f"{len(foreign)} tensors are not floating-point: {listed(foreign)}")
    state = {name: entry.tensor.detach() for name, entry in published.items() if entry.tensor is not None}
    files = {name: entry for name, entry in published.items() if entry.tensor is None}
    read(files, lambda name, tensor: state.__setitem__(name, tensor.clone()))
    fresh = _loaded(library, state, model)
    if model.quantized is not None:
        again = quantizer(model.quantized, model.device, model.dtype, model.activations)
        quantize_linears(again, fresh, fresh.get_input_embeddings().weight)
    values = fresh.state_dict(keep_vars=True)

    def write() -> None:
        for name, weight in present.items():
            overwrite(weight, values[name])
        adapter.refresh()

    return write


def _loaded(library: Any, state: dict[str, Tensor], model: LanguageModel) -> Any:
    from ..hf.adapt import check_info
    from ..hf.hf_logging import silence

    config = deepcopy(library.config)
    try:
        with silence():
            fresh, info = type(library).from_pretrained(
                None,
                config=config,
                state_dict=state,
                dtype=model.dtype,
                device_map={"": torch.device("cpu") if model.quantized is None else model.device},
                attn_implementation="eager",
                output_loading_info=True,
            )
    except Exception as error:  # weights and models each fail in their own way
        if out_of_memory(error):
            raise
        raise ModelError(f"transformers cannot load these weights for {model.name}: {one_line(error)}") from error
    check_info(fresh, info)
    return fresh
