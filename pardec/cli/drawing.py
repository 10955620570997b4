"""Decodes the images of one command batch by batch, and writes each as soon as its batch is finished."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import PardecError
from pardec.samplers.events import Event, Finished

from ..images import pngs
from ..io.saving import write_file
from ..requests.images import enlarged
from ..views.preview import Preview

if TYPE_CHECKING:
    from PIL.Image import Image

    from ..api import Model
    from ..requests.call import Call
    from ..result import Result


class Drawing:
    """The images of one command, with the files and records of each."""

    def __init__(self, model: Model, call: Call, each: Path | None, loaded: dict[str, Any], scale: int) -> None:
        """`scale`: the factor by which images are enlarged in files."""
        self.model, self.call, self.each, self.loaded, self.scale = model, call, each, loaded, scale
        self.images: list[Image] = []
        self.records: list[pngs.Metadata] = []
        self.files: list[Path] = []
        self.result: Result | None = None  # result of the latest batch
        self.seconds = 0.0
        self.parts: dict[str, float] = {}  # seconds of the model's parts, if the loop measures them
        self.tested = self.accepted = 0  # drafted vectors
        self.refined = 0  # forwards of the model that samples the last token maps

    def draw(self, batch_size: int, *, quiet: bool, watch: bool = False) -> None:
        """Decodes all rows, with a preview on stderr, of every step if they are to be watched."""
        rows = list(range(len(self.call.seeds)))
        with self._preview(quiet, each_step=watch) as show:
            for start in range(0, len(rows), batch_size):
                part = self.call.take(rows[start : start + batch_size])
                started = time.perf_counter()
                for event in self.model.run(part, steps=not quiet):
                    show(event)
                    if isinstance(event, Finished):
                        self._store(self.model.result(part, event, time.perf_counter() - started))

    @contextmanager
    def _preview(self, quiet: bool, *, each_step: bool) -> Iterator[Callable[[Event], None]]:
        imaging = self.call.imaging
        if quiet or imaging is None:
            yield lambda event: None
            return
        with Preview(imaging, len(self.call.seeds), sys.stderr, each_step=each_step) as preview:
            yield preview

    def _store(self, result: Result) -> None:
        assert result.images is not None, "a model without a decoder was refused"
        batch = pngs.image_metadata(result)
        images = [enlarged(image, self.scale) for image in result.images]
        for image, record in zip(images, batch, strict=True):
            if self.each is not None:
                digits = len(str(len(self.call.seeds) - 1))
                self.files.append(self.each / f"{len(self.images):0{digits}d}.png")
                write(self.files[-1], pngs.png(image, self.record([record], (1, 1))))
            self.images.append(image)
            self.records.append(record)
        self.result = result
        self.seconds += result.timing.total_s
        for name, seconds in result.timing.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + seconds
        if result.sides is not None:
            self.refined += sum(result.draft_forwards)
        if result.latents is not None:
            self.tested += sum(map(sum, result.trace.drafted))
            self.accepted += sum(map(sum, result.trace.accepted))

    def record(self, records: list[pngs.Metadata], grid: tuple[int, int]) -> pngs.Metadata:
        """The record that a file with these images contains."""
        return pngs.file_metadata(
            model=self.model.name,
            spec=str(self.call.sampler.spec),
            exact=self.model.exactness(self.call.sampler),
            settings=self.call.settings,
            environment=self.model.environment(),
            images=records,
            grid=grid,
            loaded=self.loaded,
            scale=self.scale,
        )

    def document(self, grid: tuple[int, int], files: dict[str, Any]) -> dict[str, Any]:
        """The document that --json prints."""
        record = self.record(self.records, grid)
        tokens, forwards = (sum(one[name] for one in self.records) for name in ("generated", "nfe"))
        names = [{"file": file} for file in self.files] or [{} for _ in self.records]
        return {
            "model": self.model.name,
            "loaded": self.loaded,
            "spec": record["spec"],
            "exact": record["exact"],
            "settings": self.call.settings,
            "environment": record["environment"],
            "timing": {"total_s": self.seconds, "tokens": tokens, "forwards": forwards, **self._part_fields()},
            "grid": list(grid),
            "scale": self.scale,
            "files": files,
            "pictures": [{**one, **name} for one, name in zip(self.records, names, strict=True)],
        }

    def summary(self) -> str:
        """The rates of this run in one line."""
        tokens, forwards = (sum(one[name] for one in self.records) for name in ("generated", "nfe"))
        many = f"{len(self.records)} image{'' if len(self.records) == 1 else 's'}"
        rate = f"{tokens / max(forwards, 1):.2f} tokens per forward"
        drafts = f", {self.accepted} of {self.tested} drafts accepted" if self.tested else ""
        parts = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.parts.items())
        where = f" ({parts})" if parts else ""
        refined = f" and {self.refined} of the refiner" if self.refined else ""
        return f"{many}, {tokens} tokens in {forwards} forwards{refined}, {rate}{drafts}, {self.seconds:.1f} s{where}"

    def _part_fields(self) -> dict[str, Any]:
        """The fields that only images of continuous tokens and of token maps have."""
        if not self.parts:
            return {}
        if self.result is not None and self.result.sides is not None:
            return {"parts": dict(self.parts), "draft_forwards": self.refined}
        return {"parts": dict(self.parts), "drafted": self.tested, "accepted": self.accepted}


class WriteError(PardecError, ValueError):
    """An image file cannot be written."""


def write(target: Path, data: bytes) -> None:
    """Writes a file. Raises WriteError."""
    try:
        write_file(target, data)
    except OSError as error:
        raise WriteError(f"cannot write {target}: {error.strerror or error}", hint="choose another path") from error
