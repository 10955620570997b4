"""Where a search of layers to skip is kept on disk: one file in the cache folder for each model, ratio and context."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch

from pardec.models.files import cache_dir
from pardec.models.kernels.layout import stored
from pardec.models.model import LanguageModel

_FOLDER = "layerskip"
_SAMPLE = 8  # values along each axis of a weight, about, that tell two models apart


@dataclass(frozen=True, slots=True)
class SkipFile:
    """One file. It is replaced whole, so that of two processes that write, the later one's is read, and never a mix.

    Where the folder cannot be used, nothing is read, and nothing written but one line of the log.
    """

    name: str

    @staticmethod
    def of(model: LanguageModel, ratio: float, context: int) -> SkipFile:
        """The file for this model's weights, wherever they were loaded from, and this search."""
        return SkipFile(f"{fingerprint(model)}-{ratio:g}-{context}.json")

    def read(self) -> dict[str, Any] | None:
        """What `write` stored; None where there is no such file, or it is damaged or not the user's alone."""
        try:
            with cache_dir.private(_FOLDER) as folder:
                values = json.loads(cache_dir.require_own(folder / self.name).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return values if isinstance(values, dict) else None

    def write(self, values: dict[str, Any]) -> None:
        """Replaces the file."""
        try:
            with cache_dir.private(_FOLDER) as folder:
                cache_dir.write(folder / self.name, json.dumps(values).encode())
        except OSError as error:
            cache_dir.warn_uncached(error)


def fingerprint(model: LanguageModel) -> str:
    """Hexadecimal digits that differ for other weights: of every weight's name, type and shape, and some of its values.

    The values are read as they are in memory, evenly spread: a search for other weights costs drafts, and no output.
    """
    digest = hashlib.sha256(f"{model.family} {model.layers}".encode())
    for name, weight in model.decoder.named_parameters():
        digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
        values: Any = stored(weight.detach())
        if type(values) is not torch.Tensor and hasattr(values, "dequantize"):  # a quantized one
            values = values.dequantize()
        if not values.is_meta:
            some = values[tuple(slice(None, None, max(1, size // _SAMPLE)) for size in values.shape)]
            digest.update(some.float().cpu().numpy().tobytes())
    return digest.hexdigest()[:32]
