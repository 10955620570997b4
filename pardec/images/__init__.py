"""Images of coloured shapes: captions, drawing, detection from pixels, scores and the distance between two sets."""

from types import ModuleType

from ..lazy import submodule


def __getattr__(name: str) -> ModuleType:
    """`pardec.images.classes` and the others, imported on first use."""
    return submodule(__name__, name)
