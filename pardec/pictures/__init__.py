"""Pictures of coloured shapes: captions, drawing, reading back from pixels, and how near two sets of pictures are."""

from types import ModuleType

from pardec.lazy import submodule


def __getattr__(name: str) -> ModuleType:
    """`pardec.pictures.classes` and the others, imported on first use."""
    return submodule(__name__, name)
