"""A LoRA that applies only at the masks with which a causal model drafts for itself.

    y_i = W x_i + g_i s B A x_i   in each linear layer that the adapter names; g_i is 1 at masks, else 0

I-DLM (https://arxiv.org/abs/2604.11035) publishes one for Qwen3: the text is that of the base model, whatever the
adapter has learned. A and B stay apart from W, so that a forward serves both kinds of positions.

The layout is PEFT's. Two settings of ours may be in its config: `mask_token_id`, the id whose embedding is the input at
masks (an id that no text has, so that nothing has to be added to the model), and `num_masks`, how many in a row it was
trained for. Such an adapter is refused where it would be merged, which would change the text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..caches.kv_cache import KVCache
from ..cuda_graphs.runner import native
from ..decoder import Decoder
from ..errors import ModelError, listed
from ..families import FAMILIES
from ..files.lora import MASK_ID, Adapter, Update, read_adapter
from ..files.weights import Published
from ..kernels.cpu.packed import PackedWeight, as_parameter
from ..kernels.matmul import add_matmul, matmul
from ..model import LanguageModel
from ..plan import Hidden, Plan, TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register


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


def gated_adapter(model: LanguageModel, name: str, updates: Mapping[str, Update]) -> GatedAdapter:
    """`model` with the `updates`, by the published names of its matrices, at mask positions only.

    Raises ModelError, with the reason, for updates that this model cannot have at some positions alone.
    """
    decoder = native(model.decoder)
    if decoder is None or model.quantized is not None or model.processes > 1:
        state = "runs in transformers" if decoder is None else "is quantized" if model.quantized else "is distributed"
        raise ModelError(
            f"{model.name} {state} and cannot use the adapter {name} at mask positions only", "leave the adapter out"
        )
    gate, left = Gate(torch.zeros(0, 1, dtype=torch.bool)), dict(updates)
    weights: dict[tuple[int, str], Tensor] = {}
    for layer, parameter, own, published in _matrices(model, decoder):
        if taken := _taken(left, published, own):
            with torch.inference_mode(False):
                weights[layer, parameter] = as_parameter(GatedWeight(own, gate, taken))
    if left:
        raise ModelError(
            f"the adapter {name} changes {listed(left)}, which cannot be changed at mask positions only: just the "
            f"matrices of the {len(decoder.layers)} layers of {model.name} can, by lora_A and lora_B of their shape",
            "leave it out, or use an adapter that was trained for this model",
        )
    return GatedAdapter(name, decoder, gate, weights)


def matrix_shapes(model: LanguageModel) -> dict[str, tuple[int, int]]:
    """The matrices [N, K] of a native model's layers, by their published names."""
    decoder = cast(Decoder, native(model.decoder))
    return {
        name: (rows, own.shape[1])
        for _, _, own, published in _matrices(model, decoder)
        for name, rows in published.items()
    }


def _matrices(model: LanguageModel, decoder: Decoder) -> Iterator[tuple[int, str, Tensor, dict[str, int]]]:
    """Every matrix of a layer: the layer, the parameter's name, itself, and the rows of each published tensor in it."""
    for pattern, stems in FAMILIES[model.family].names.items():
        if not pattern.startswith("layers.{i}."):
            continue
        for layer, part in enumerate(decoder.layers):
            published = [stem.replace("{i}", str(layer)) for stem in ([stems] if isinstance(stems, str) else stems)]
            name = pattern.replace("{i}", str(layer))
            own = part._parameters.get(parameter := name.rpartition(".")[2])
            if own is not None and own.dim() == 2:
                rows = decoder.config.fused_rows(name) if len(published) > 1 else (own.shape[0],)
                yield layer, parameter, own, dict(zip(published, rows, strict=True))


def _taken(
    left: dict[str, Update], published: Mapping[str, int], own: Tensor
) -> tuple[tuple[int, Tensor, Tensor], ...]:
    """Removes from `left`, and returns, the updates of the tensors fused in `own`: `published` has the rows of each."""
    updates, first = [], 0
    for name, count in published.items():
        update = left.get(name)
        if update is not None and update.low_rank and update.shape == (count, own.shape[1]):
            del left[name]
            a, b = cast(Tensor, update.a), cast(Tensor, update.b)
            like: dict[str, Any] = {"dtype": own.dtype, "device": own.device}
            updates.append((first, a.to(**like), (update.scale * b.float()).to(**like)))
        first += count
    return tuple(updates)


class MaskAdapter(DraftModule):
    """A LoRA with which its target fills in masks."""

    kind = "idlm"
    states = TargetStates(normed=True)

    def __init__(self, files: DraftFiles, target: LanguageModel, adapter: Adapter) -> None:
        """Raises ModelError if `target` cannot apply the adapter at mask positions only, or lacks the mask id."""
        super().__init__(files, target)
        self.gated = gated_adapter(target, adapter.name, adapter.updates)
        self.mask_id: int | None = adapter.config.get(MASK_ID)
        self.size = sum(a.numel() + b.numel() for weight in self._gated() for _, a, b in weight.updates)
        mask = "no mask id: write mask=ID" if self.mask_id is None else f"mask id {self.mask_id}"
        self.about = (f"a LoRA on {len(adapter.updates)} matrices, at mask positions only; {mask}",)
        if self.mask_id is not None and not 0 <= self.mask_id < target.vocab_size:
            raise ModelError(
                f"{files.name} has {MASK_ID}={self.mask_id}, which is none of the {target.vocab_size} ids of "
                f"{target.name}",
                "use the target that it was trained with",
            )

    def _gated(self) -> Iterator[GatedWeight]:
        return (cast(GatedWeight, weight) for weight in self.gated.weights.values())

    @property
    def parameter_count(self) -> int:
        return self.size


def load(files: DraftFiles, target: LanguageModel) -> MaskAdapter:
    """The adapter of PEFT files. Raises ModelError for one that cannot be applied at mask positions only."""
    return MaskAdapter(files, target, read_adapter(files.folder))


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    return config.get("peft_type") == "LORA"


KIND = register(
    DraftKind(
        name="idlm",
        summary="LoRA of I-DLM, applied at mask positions only: it teaches a causal model to fill in masks",
        matches=_matches,
        load=load,
        published={
            "I-DLM (PEFT LoRA: adapter_config.json, adapter_model.*)": "transformers with PEFT's formula, gated"
        },
    )
)
