"""What is raised where the memory of a device runs out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pardec.models.errors import PardecError


class OutOfMemory(PardecError, MemoryError):
    """The device has no room for the request."""


@contextmanager
def memory_errors(what: str, hint: str) -> Iterator[None]:
    """Raises OutOfMemory, with a hint, where memory runs out."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
