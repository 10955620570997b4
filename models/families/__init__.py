"""Checkpoint families that load natively; importing this package registers them, and needs no torch."""

from __future__ import annotations

from ..errors import ModelError
from . import dimple, dream, llada, llama, llamagen, qwen2, qwen3, sdar
from .base import FAMILIES, Config, FamilySpec, Unsupported, architecture, register

__all__ = ["FAMILIES", "FamilySpec", "Unsupported", "architecture", "match", "register"]

_BUILT_IN = (dimple, dream, llada, llama, llamagen, qwen2, qwen3, sdar)


def match(config: Config) -> FamilySpec | None:
    """The family whose checkpoints look like `config`, or None. Raises ModelError if two claim it."""
    matches = [spec for spec in FAMILIES.values() if spec.matches(config)]
    if len(matches) > 1:
        raise ModelError(f"this config is claimed by several families: {', '.join(spec.name for spec in matches)}")
    return matches[0] if matches else None
