"""Imports submodules of a package on first use."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def submodule(package: str, name: str) -> ModuleType:
    """The module `name` of a package, imported now. Raises AttributeError where there is none."""
    if name.startswith("_") or find_spec(f"{package}.{name}") is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return import_module(f"{package}.{name}")
