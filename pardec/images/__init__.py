"""Images of coloured shapes: captions, drawing, reading back from pixels, and how near two sets of images are."""

from types import ModuleType

from ..lazy import submodule


def __getattr__(name: str) -> ModuleType:
    """`pardec.images.classes` and the others, imported on first use."""
    return submodule(__name__, name)
