"""Which spec and arguments of `generate` stand for a recorded case: one module for each recorded code base."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

Case = dict[str, Any]
Call = tuple[str, dict[str, Any]]  # a spec and the arguments of generate
Reader = Callable[[Case], Call | None]  # None: pardec does not build what the case records

Pure = Callable[..., str | None]  # (case, ...) -> what differs first

CALLS: dict[str, Reader] = {}  # by the case's method
PURE: dict[str, Pure] = {}  # cases without a decode, by method; a module has them where it needs them
for _module in pkgutil.iter_modules(__path__):
    _found = importlib.import_module(f"{__name__}.{_module.name}")
    CALLS |= _found.CALLS
    PURE |= getattr(_found, "PURE", {})
