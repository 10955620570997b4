"""A LoRA that a model uses while it drafts for itself, and not while it verifies.

    W_o' = W_o + s B A   of each layer that the adapter names, in the drafting forwards alone

Nemotron-Labs-Diffusion publishes one for the outputs of its attention, in the folder `linear_spec_lora` beside its
weights. The changed matrices are kept beside the model's own: r (K + N) numbers become K N, which is what the forward
of a batch reads fastest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import nn

from ..caches.kv_cache import KVCache
from ..cuda_graphs.runner import native
from ..decoder import Decoder
from ..errors import ModelError, listed
from ..files.lora import Adapter, read_adapter
from ..files.sources import DRAFT_ADAPTER
from ..kernels import layout
from ..model import LanguageModel
from ..plan import Hidden, Plan

_OUTPUT = re.compile(r"(?:.*\.)?layers\.(\d+)\.self_attn\.o_proj\.weight")


@dataclass(frozen=True, eq=False)
class DraftAdapter:
    """A decoder with other attention output matrices in the forwards of `run`."""

    name: str
    decoder: Decoder
    outputs: dict[int, nn.Parameter] = field(repr=False)  # layer -> [E, H * D]

    def run(self, plan: Plan, cache: KVCache | None) -> Hidden:
        """`LanguageModel.run` with the adapter; graphs captured without it are not used."""
        layers = self.decoder.layers
        own = {layer: cast(nn.Parameter, layers[layer].out_weight) for layer in self.outputs}
        try:
            for layer, weight in self.outputs.items():
                layers[layer].out_weight = weight
            result: Hidden = self.decoder(plan, cache)
            return result
        finally:
            for layer, weight in own.items():
                layers[layer].out_weight = weight


def draft_adapter(model: LanguageModel, name: str | None = None) -> DraftAdapter | None:
    """The adapter of a folder or hub id, else the one in the checkpoint of `model`; None where it has none.

    It is read once for a model and its weights, and kept with what else drafts for it.
    Raises ModelError, with the reason, for one that this model cannot have on while it drafts.
    """
    key = (DRAFT_ADAPTER, name)
    if key not in model.draft_modules:
        model.draft_modules[key] = _read(model, name)
    adapter: DraftAdapter | None = model.draft_modules[key]
    return adapter


def _read(model: LanguageModel, name: str | None) -> DraftAdapter | None:
    if name is None:
        folder = None if model.path is None else model.path / DRAFT_ADAPTER
        if folder is None or not (folder / "adapter_config.json").is_file():
            return None
        name = str(folder)
    adapter = read_adapter(name)
    decoder = native(model.decoder)
    if decoder is None or model.quantized is not None or model.processes > 1:
        state = "runs in transformers" if decoder is None else "is quantized" if model.quantized else "is distributed"
        raise ModelError(
            f"{model.name} {state} and cannot use the adapter {adapter.name} while it drafts",
            "leave the adapter out: adapter=no",
        )
    return DraftAdapter(adapter.name, decoder, _outputs(model, decoder, adapter))


def _outputs(model: LanguageModel, decoder: Decoder, adapter: Adapter) -> dict[int, nn.Parameter]:
    """The changed attention output matrices by layer, from an adapter that changes no others."""
    outputs, foreign = {}, []
    for name, update in adapter.updates.items():
        match = _OUTPUT.fullmatch(name)
        layer = len(decoder.layers) if match is None else int(match[1])
        weight = cast(nn.Parameter, decoder.layers[layer].out_weight) if layer < len(decoder.layers) else None
        if weight is None or update.shape != tuple(weight.shape):
            foreign.append(name)
            continue
        with torch.no_grad():
            changed = update(layout.dense(weight).detach())
            room = layout.empty(changed.shape, dtype=weight.dtype, device=weight.device)
            layout.fill(room, changed.to(room.dtype))
        outputs[layer] = nn.Parameter(room, requires_grad=False)
    if foreign:
        raise ModelError(
            f"the adapter {adapter.name} changes {listed(foreign)}, and a draft adapter may change only "
            f"self_attn.o_proj of the {len(decoder.layers)} layers of {model.name}",
            "leave it out (adapter=no), or use an adapter that was trained for this model",
        )
    return outputs
