"""Models that a script of a checkout builds from others, each in a folder of the cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import UnknownModelError
from .cache_dir import cache_folder


@dataclass(frozen=True, slots=True)
class Built:
    """A model, and the command that builds it."""

    name: str
    family: str
    summary: str
    parameters: int
    command: str

    @property
    def folder(self) -> Path | None:
        """The model's folder; None until it is built."""
        try:
            folder = cache_folder() / self.name
        except OSError:  # there is no cache
            return None
        return folder if (folder / "config.json").is_file() else None

    def required(self) -> Path:
        """The model's folder. Raises UnknownModelError if it is not built."""
        if (folder := self.folder) is None:
            raise UnknownModelError(
                f"{self.name} has not been built", f"in a clone of the repository, {self.command} builds it"
            )
        return folder


BUILT: dict[str, Built] = {
    "smollm2-masked": Built(
        "smollm2-masked",
        "fast_dllm_qwen",
        "SmolLM2-135M-Instruct as a masked model, from scripts/get_smollm2 --masked",
        134515008,
        "scripts/get_smollm2 --masked",
    )
}
