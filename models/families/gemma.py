"""Gemma, first generation: a GELU gate, embeddings times the root of the width, norms that multiply by 1 + w.

Below float32, 1 + w is rounded to the model's dtype, which transformers does not do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register, require
from .llama_like import HARMLESS, NAMES, shape

if TYPE_CHECKING:
    from torch import Tensor

_TANH = "gelu_pytorch_tanh"


def _decoder(config: Config) -> DecoderConfig:
    known = {"hidden_act": ("gelu", _TANH), "hidden_activation": (None, _TANH)}  # "gelu": of the first checkpoints
    require(config, {**known, "use_bidirectional_attention": (None, False)})
    plain = shape({**config, "hidden_act": _TANH}, "gemma")
    return replace(plain, embedding_scale=plain.width**0.5)


def add_one(name: str, tensor: Tensor, config: DecoderConfig) -> Tensor:
    """Norms as the stack has them, of a file in which they are centred on zero."""
    return tensor.float() + 1 if name.endswith(("norm.weight", "_norm")) else tensor


GEMMA = register(
    FamilySpec(
        name="gemma",
        summary="Gemma (first generation)",
        matches=lambda config: config.get("model_type") == "gemma",
        decoder=_decoder,
        names=NAMES,
        attention="causal",
        shift=1,
        harmless=HARMLESS,
        convert=add_one,
    )
)
