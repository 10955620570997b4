"""Models: tokens in, logits out (decoder stack, KV cache, kernels, checkpoint families)."""

if __name__ != "pardec.models":
    raise ImportError(
        f"import this package as 'pardec.models', not as {__name__!r}: under two names it would be loaded twice"
    )

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .caches.kv_cache import KVCache
    from .decoder import Decoder
    from .decoder_config import DecoderConfig
    from .errors import CacheError, CapacityError, ModelError, PardecError, SpecError, UnknownNameError
    from .files.catalog import embedded_names
    from .model import DecodingConfig, LanguageModel
    from .plan import Hidden, Plan, Visible

_HOMES = {
    "decoder": ("Decoder",),
    "decoder_config": ("DecoderConfig",),
    "errors": ("CacheError", "CapacityError", "ModelError", "PardecError", "SpecError", "UnknownNameError"),
    "caches.kv_cache": ("KVCache",),
    "files.catalog": ("embedded_names",),
    "model": ("DecodingConfig", "LanguageModel"),
    "plan": ("Hidden", "Plan", "Visible"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CacheError", "CapacityError", "Decoder", "DecoderConfig", "DecodingConfig", "Hidden", "KVCache", "LanguageModel",
    "ModelError", "PardecError", "Plan", "SpecError", "UnknownNameError", "Visible", "embedded_names",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    # Lazy: errors and the list of embedded models must not import torch.
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
