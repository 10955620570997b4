"""The error for a device that runs out of memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from pardec.models.errors import PardecError


class OutOfMemory(PardecError, MemoryError):
    """The device has no room for the request."""


@contextmanager
def memory_errors(what: str, hint: str) -> Iterator[None]:
    """Turns an out-of-memory error of the code inside into OutOfMemory, with a hint."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "out of memory" not in str(error).lower():
            raise
        raise OutOfMemory(f"out of memory: {what}", hint=hint) from error
