"""Loads a model without its weights, for a process that distributes work and decodes nothing."""

from __future__ import annotations

from typing import Any

import torch

from pardec.models.errors import ModelError, SpecError
from pardec.models.files.sources import locate
from pardec.models.layers.quantize import in_blocks, preferred_dtype
from pardec.models.loading.outline import outline
from pardec.models.loading.packing import choose_packing
from pardec.models.parallel.placement import short

from ..api import Model, load


class ModelWithoutWeights(Model):
    """A model that prepares requests for workers, whose own weights are kept as `weight_settings` says."""

    def __init__(self, model: Model, settings: dict[str, Any]) -> None:
        super().__init__(model.network)
        self._settings = settings

    @property
    def weight_settings(self) -> dict[str, Any]:
        return self._settings


def load_without_weights(
    name: str, *, on_gpu: bool, device: str = "auto", dtype: str = "auto", **options: Any
) -> Model:
    """Loads the parts that `prepare` needs: configuration, tokenizer, and the dtype of the workers' models.

    Args:
        name: of the model, as in `load`.
        on_gpu: whether device="auto" means a GPU for the workers.
        device, dtype: of the workers.
        options: the other arguments of `load`; device map, quantization, packing and CUDA graphs concern the workers
            only.

    Raises:
        ModelError: what `load` raises.
        SpecError: the dtype of the workers cannot be determined here.
    """
    on_cpu = not (on_gpu if device == "auto" else device.startswith("cuda"))
    target = torch.device("cuda")
    if on_cpu:
        has_mps = torch.backends.mps.is_available()
        target = torch.device(device if device != "auto" else "mps" if has_mps else "cpu")
    settings = _weight_settings(name, target, dtype, **options)
    for unused in ("device_map", "quantize", "packed", "activations", "cuda_graphs"):
        options.pop(unused, None)
    quantize = settings.get("quantize")
    if preferred := preferred_dtype(quantize, dtype, torch.device("cpu" if on_cpu else "cuda")):
        dtype = short(preferred[0])
    if dtype == "auto" and on_cpu:
        dtype = "float32"  # the meaning of "auto" on a CPU
    try:
        return ModelWithoutWeights(load(name, device="meta", dtype=dtype, **options), settings)
    except ModelError:
        # Models run by transformers' own classes need their weights; any other error is raised again here.
        model = load(name, device="cpu", dtype=dtype, **options)
    if dtype == "auto":
        raise SpecError(
            f"the dtype of {model.name} cannot be determined here", hint='set it, for example dtype="bfloat16"'
        )
    return ModelWithoutWeights(model, settings)


def _weight_settings(
    name: str,
    device: torch.device,
    dtype: str,
    *,
    quantize: str | None = None,
    packed: bool | None = None,
    activations: str | None = None,
    **options: Any,
) -> dict[str, Any]:
    """How workers on `device` keep their weights, as `Model.weight_settings` of a model with weights.

    Raises ArgumentError for `packed` and `activations` that they cannot follow.
    """
    source = locate(name, revision=options.get("revision"), offline=options.get("offline", False))
    moved: dict[str, Any] = {each: options.get(each) or None for each in ("device_map", "adapter", "tp")}
    multiplied = activations if quantize is None else None  # what blocks of a GGUF file multiply
    packing, _ = choose_packing(source, device, dtype, packed, multiplied, quantize=quantize, **moved)
    kept: dict[str, Any] = {"quantize": quantize}
    if in_blocks(quantize, device):
        kept["activations"] = activations or "float32"
    if packing is not None and source.gguf is not None:
        made = outline(source.gguf, device=device, dtype=dtype, packed=packed, activations=activations)
        kept |= {"packed": made.activations is not None, "activations": made.activations}
    return {each: value for each, value in kept.items() if value}
