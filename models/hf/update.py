"""Replaces weights in place, for a model that runs through transformers."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, listed, one_line
from ..files.weights import Published, read, unwrapped
from ..layers.quantize import quantize_linears, quantizer
from ..loading.assemble import overwrite
from ..model import LanguageModel
from ..parallel.placement import out_of_memory
from .adapt import check_info
from .causal_lm import HFAdapter
from .hf_logging import silence


def replacement(model: LanguageModel, published: dict[str, Published]) -> Callable[[], None]:
    """A function that writes these tensors to the model's parameters.

    The library loads them into a second model, on the CPU, as it would load files: so they may have the names of files
    or those of its modules. Raises ModelError, as loading does, for tensors that do not match by name or shape; a
    config.json beside them is not compared.
    """
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
