"""Loads a model without its weights, for a process that distributes work and decodes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pardec.models.errors import ModelError, SpecError

if TYPE_CHECKING:
    from ..api import Model


def load_without_weights(
    name: str, *, on_gpu: bool, device: str = "auto", dtype: str = "auto", **options: Any
) -> Model:
    """Loads the parts that `prepare` needs: configuration, tokenizer, and the dtype of the workers' models.

    Args:
        name: of the model, as in `load`.
        on_gpu: whether device="auto" means a GPU for the workers.
        device, dtype: of the workers.
        placing: the other arguments of `load`; device map, quantization and CUDA graphs concern the workers only.

    Raises:
        ModelError: what `load` raises.
        SpecError: the dtype of the workers cannot be determined here.
    """
    import torch

    from pardec.models.layers.quantize import preferred_dtype
    from pardec.models.parallel.placement import short

    from ..api import load

    options.pop("device_map", None)
    for unused in ("cuda_graphs", "packed", "activations"):
        options.pop(unused, None)
    on_cpu = not (on_gpu if device == "auto" else device.startswith("cuda"))
    quantize = options.pop("quantize", None)
    if preferred := preferred_dtype(quantize, dtype, torch.device("cpu" if on_cpu else "cuda")):
        dtype = short(preferred[0])
    if dtype == "auto" and on_cpu:
        dtype = "float32"  # the meaning of "auto" on a CPU
    try:
        return load(name, device="meta", dtype=dtype, **options)
    except ModelError:
        # Models run by transformers' own classes need their weights; any other error is raised again here.
        model = load(name, device="cpu", dtype=dtype, **options)
    if dtype == "auto":
        raise SpecError(
            f"the dtype of {model.name} cannot be determined here", hint='set it, for example dtype="bfloat16"'
        )
    return model
