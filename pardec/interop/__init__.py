"""Integrations with other libraries, in both directions: one package per library, imported on first use."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

_PACKAGES = ("diffusers", "lm_eval", "transformers")


def __getattr__(name: str) -> ModuleType:
    if name not in _PACKAGES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")
