"""Checkpoint families that load natively; importing this package registers every module of it, and needs no torch."""

from __future__ import annotations

import pkgutil
from collections.abc import Container
from importlib import import_module

from ..errors import ModelError
from .base import FAMILIES, Config, FamilySpec, Unsupported, architecture, register

__all__ = ["FAMILIES", "FamilySpec", "Unsupported", "architecture", "match", "register"]

_OTHER = ("mar", "nextstep", "var")  # not registered: load.py calls them, and they import torch

for _name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    if _name not in _OTHER:
        import_module(f"{__name__}.{_name}")
for _name in sorted(FAMILIES):  # a family's module may import another's before its turn
    FAMILIES[_name] = FAMILIES.pop(_name)


def match(config: Config, tensors: Container[str] = ()) -> FamilySpec | None:
    """The family whose checkpoints look like this and have such tensors, or None. Raises ModelError if two claim it.

    Without `tensors`, the config alone decides.
    """
    matches = [spec for spec in FAMILIES.values() if spec.matches(config) and spec.fits(tensors)]
    if len(matches) > 1:
        raise ModelError(f"this config is claimed by several families: {', '.join(spec.name for spec in matches)}")
    return matches[0] if matches else None
