"""Checkpoint families that load natively; importing this package registers every module of it, and needs no torch."""

from __future__ import annotations

import pkgutil
import warnings
from collections.abc import Container
from importlib import import_module
from pathlib import Path

from ..errors import ModelError, one_line
from .base import FAMILIES, Config, FamilySpec, Unsupported, architecture, register

__all__ = ["FAMILIES", "FamilySpec", "Unsupported", "architecture", "match", "register"]


def _left_out(text: str) -> None:
    warnings.warn(text, stacklevel=3)


_OTHER = ("infinity", "mar", "nextstep", "var")  # not registered: load.py calls them, and they import torch

for _name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    if _name in _OTHER:
        continue
    _before = set(FAMILIES)
    try:
        import_module(f"{__name__}.{_name}")
    except Exception as error:  # a broken file must not stop every command
        for _half in set(FAMILIES) - _before:
            del FAMILIES[_half]
        _file = Path(__path__[0]) / f"{_name}.py"
        _left_out(f"{_file} cannot be imported, and its family is left out: {type(error).__name__}: {one_line(error)}")
for _name in sorted(FAMILIES):  # a family's module may import another's before its turn
    FAMILIES[_name] = FAMILIES.pop(_name)


def match(config: Config, tensors: Container[str] = ()) -> FamilySpec | None:
    """The family whose checkpoints look like this and have such tensors, or None. Raises ModelError if two claim it.

    Without `tensors`, the config alone decides.
    """
    matches = [spec for spec in FAMILIES.values() if _claims(spec, config) and spec.fits(tensors)]
    if len(matches) > 1:
        raise ModelError(f"this config is claimed by several families: {', '.join(spec.name for spec in matches)}")
    return matches[0] if matches else None


def _claims(spec: FamilySpec, config: Config) -> bool:
    """Whether the config is of this family; a family whose `matches` fails claims none, and is reported."""
    try:
        return spec.matches(config)
    except Exception as error:
        reason = f"{type(error).__name__}: {one_line(error)}"
        _left_out(f"the family {spec.name!r} cannot read this config, and is left out: {reason}")
        return False
