"""A LoRA that applies only at the masks with which a causal model drafts for itself.

    y_i = W x_i + g_i s B A x_i   in each linear layer that the adapter names; g_i is 1 at masks, else 0

I-DLM (https://arxiv.org/abs/2604.11035) publishes one for Qwen3: the text is that of the base model, whatever the
adapter has learned. A and B stay apart from W, so that a forward serves both kinds of positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..cuda_graphs.runner import native
from ..decoder import Decoder
from ..errors import ModelError, listed
from ..families import FAMILIES
from ..files.lora import Adapter, read_adapter
from ..kernels.cpu.packed import PackedWeight, as_parameter
from ..kernels.matmul import add_matmul, matmul
from ..model import LanguageModel
from ..plan import Hidden, Plan


@dataclass(slots=True, eq=False)
class Gate:
    """Where the adapter is on in the current forward."""

    on: Tensor  # [B * Q, 1] bool


class GatedWeight(PackedWeight):
    """A matrix [N, K] that adds products of low rank where a gate is on."""

    own: Tensor  # [N, K] the model's
    gate: Gate
    updates: tuple[tuple[int, Tensor, Tensor], ...]  # the first of n rows of the matrix, A [r, K] and B [n, r], scaled

    @staticmethod
    def __new__(cls, own: Tensor, gate: Gate, updates: tuple[tuple[int, Tensor, Tensor], ...]) -> GatedWeight:
        weight: GatedWeight = Tensor._make_wrapper_subclass(cls, own.shape, dtype=own.dtype, device=own.device)
        weight.own, weight.gate, weight.updates = own, gate, updates
        return weight

    def __init__(self, *parts: object) -> None: ...

    @property
    def parts(self) -> tuple[Any, ...]:
        return self.own, self.gate, self.updates

    def matmul(self, x: Tensor, base: Tensor | None = None) -> Tensor:
        plain = base is None or base.dim() == 1
        out = matmul(x, self.own, base) if plain else add_matmul(cast(Tensor, base), x, self.own)
        for first, a, b in self.updates:
            out[:, first : first + len(b)] += (x @ a.t() * self.gate.on) @ b.t()
        return out


@dataclass(frozen=True, eq=False)
class GatedAdapter:
    """A decoder with an adapter that is on at the positions without a token, whose inputs are vectors."""

    name: str
    decoder: Decoder
    gate: Gate
    weights: dict[tuple[int, str], Tensor] = field(repr=False)  # by layer and parameter

    def run(self, plan: Plan, cache: KVCache | None) -> Hidden:
        """`LanguageModel.run` with the adapter; graphs captured without it are not used."""
        layers = self.decoder.layers
        own = {at: getattr(layers[at[0]], at[1]) for at in self.weights}
        self.gate.on = (plan.tokens < 0).flatten()[:, None]
        try:
            for (layer, name), weight in self.weights.items():
                setattr(layers[layer], name, weight)
            result: Hidden = self.decoder(plan, cache)
            return result
        finally:
            for (layer, name), weight in own.items():
                setattr(layers[layer], name, weight)


def gated_adapter(model: LanguageModel, name: str) -> GatedAdapter:
    """The adapter of a folder or hub id; it is read once for a model, and kept with what else drafts for it.

    Raises ModelError, with the reason, for one that this model cannot have on at some positions alone.
    """
    key = ("gated", name, model.weights_version)
    if key not in model.draft_modules:
        model.draft_modules[key] = _read(model, read_adapter(name))
    return cast(GatedAdapter, model.draft_modules[key])


def _read(model: LanguageModel, adapter: Adapter) -> GatedAdapter:
    decoder = native(model.decoder)
    if decoder is None or model.quantized is not None or model.processes > 1:
        state = "runs in transformers" if decoder is None else "is quantized" if model.quantized else "is distributed"
        raise ModelError(
            f"{model.name} {state} and cannot use the adapter {adapter.name} at masks alone", "leave the adapter out"
        )
    gate, left = Gate(torch.zeros(0, 1, dtype=torch.bool)), dict(adapter.updates)
    weights: dict[tuple[int, str], Tensor] = {}
    for pattern, stems in FAMILIES[model.family].names.items():
        if not pattern.startswith("layers.{i}."):
            continue
        for layer, part in enumerate(decoder.layers):
            published = [stem.replace("{i}", str(layer)) for stem in ([stems] if isinstance(stems, str) else stems)]
            name = pattern.replace("{i}", str(layer))
            own = part._parameters.get(parameter := name.rpartition(".")[2])
            if own is not None and own.dim() == 2:
                rows = decoder.config.fused_rows(name) if len(published) > 1 else (own.shape[0],)
                if updates := _taken(left, published, rows, own):
                    with torch.inference_mode(False):
                        weights[layer, parameter] = as_parameter(GatedWeight(own, gate, updates))
    if left:
        raise ModelError(
            f"the adapter {adapter.name} changes {listed(left)}, which cannot be changed at masks alone: only the "
            f"matrices of the {len(decoder.layers)} layers of {model.name} can, by lora_A and lora_B of their shape",
            "leave it out, or use an adapter that was trained for this model",
        )
    return GatedAdapter(adapter.name, decoder, gate, weights)


def _taken(
    left: dict[str, Any], published: Sequence[str], rows: Sequence[int], own: Tensor
) -> tuple[tuple[int, Tensor, Tensor], ...]:
    """Removes from `left`, and returns, the updates of the `published` tensors fused in `own`, `rows` rows each."""
    updates, first = [], 0
    for name, count in zip(published, rows, strict=True):
        update = left.get(name)
        if update is not None and update.low_rank and update.shape == (count, own.shape[1]):
            del left[name]
            like: dict[str, Any] = {"dtype": own.dtype, "device": own.device}
            updates.append((first, update.a.to(**like), (update.scale * update.b.float()).to(**like)))
        first += count
    return tuple(updates)
