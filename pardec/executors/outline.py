"""A model without its weights, for a process that deals work out and decodes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pardec.models.errors import ModelError, SpecError

if TYPE_CHECKING:
    from ..api import Model


def outline(name: str, *, on_gpu: bool, device: str = "auto", dtype: str = "auto", **placing: Any) -> Model:
    """Loads what `prepare` needs: facts, tokenizer, and the dtype that the workers are to be told.

    Args:
        name: of the model, as `load` takes it.
        on_gpu: whether device="auto" is a GPU to the workers.
        device, dtype: as asked for the workers.
        placing: the other arguments of `load`; a device map, smaller weights and graphs are the workers' own affair.

    Raises:
        ModelError: what `load` raises.
        SpecError: the dtype of the workers cannot be told from here.
    """
    from ..api import load

    placing.pop("device_map", None)
    placing.pop("cuda_graphs", None)
    if placing.pop("quantize", None) == "int4" and dtype == "auto":
        dtype = "bfloat16"  # what "auto" is then
    if dtype == "auto" and not (on_gpu if device == "auto" else device.startswith("cuda")):
        dtype = "float32"  # what "auto" is on a CPU
    try:
        return load(name, device="meta", dtype=dtype, **placing)
    except ModelError:
        # transformers' own classes need real weights to say what they are; an error of another kind comes again here.
        real = load(name, device="cpu", dtype=dtype, **placing)
    if dtype == "auto":
        raise SpecError(
            f"the dtype of {real.name} cannot be told from here", hint="name it, for example --dtype bfloat16"
        )
    return real
