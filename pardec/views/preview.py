"""Images while they are decoded: drawn in place on a terminal, a line of progress where nothing can be drawn."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Literal, TextIO

import numpy as np
from PIL import Image
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pardec.samplers.events import Event, Finished, RowFinished, Started, Step

from ..images.pngs import sheet, squarest
from .blocks import extent, fitting, half_blocks, inline, way
from .unfinished import Codes, unfinished

if TYPE_CHECKING:
    from pardec.models.images.contracts import Imaging

EVERY_S = 10.0  # between two lines of progress in a log
LEAST_S = 0.2  # between two drawings
SHARE = 10  # of the time, a tenth at most is spent on drawing what is not finished

Manner = Literal["kitty", "iterm", "blocks", "line", "log"]


class Preview:
    """Shows the events of one or several requests for images, one after the other, on `stream`.

    with Preview(imaging, count, sys.stderr) as preview:
        for event in model.stream(prompt):
            preview(event)
    """

    def __init__(
        self,
        imaging: Imaging,
        count: int,
        stream: TextIO,
        *,
        environment: Mapping[str, str] = os.environ,
        every: float = EVERY_S,
    ) -> None:
        """`count` is the number of images of all the requests."""
        self.imaging, self.stream, self.every = imaging, stream, every
        self.console = Console(file=stream, highlight=False)
        self.manner = _manner(self.console, environment, drawable=imaging.can_decode)
        self.live = Live(console=self.console, auto_refresh=False) if self.manner == "blocks" else None
        self.codes = Codes(imaging.layout)
        self.total = count * imaging.layout.rows * imaging.layout.columns
        self.before = self.forwards = self.steps = 0  # cells and forwards of the requests before this one; its steps
        self.started = self.last_shown = time.monotonic()
        self.rendered_at, self.cost, self.rows_seen = 0.0, 0.0, 0
        self.place: tuple[int, int] | None = None  # columns and lines that inline images are given

    def __enter__(self) -> Preview:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.manner != "log":
            down = "" if self.place is None else f"\x1b8\x1b[{self.place[1]}B"
            self._write(f"{down}\n")

    def __call__(self, event: Event) -> None:
        """Takes in one event."""
        self.codes(event)
        if isinstance(event, Started):
            self.steps, self.rows_seen = 0, 0
        elif isinstance(event, Step):
            self.steps = event.number + 1
            self._show()
        elif isinstance(event, Finished):
            self._show(whole=True)
            self.before += self.codes.codes.size
            self.forwards += self.steps
        elif isinstance(event, RowFinished):
            self.rows_seen = -1  # a whole image is shown as soon as time allows

    def _show(self, *, whole: bool = False) -> None:
        now = time.monotonic()
        if self.manner == "log":
            if now - self.last_shown >= self.every and not whole:
                self.last_shown = now
                self._write(self.progress() + "\n")
            return
        rows = int((self.codes.codes.reshape(-1, *self.imaging.layout.grid) >= 0).all(2).sum())
        due = now - self.rendered_at >= max(LEAST_S, SHARE * self.cost) and rows > self.rows_seen
        if self.manner == "line":
            self._write(f"\r\x1b[K{self.progress()}")
        elif whole or due:
            self._draw(self._sheet())
            self.rows_seen = rows
            self.rendered_at = time.monotonic()
            self.cost = self.rendered_at - now

    def _sheet(self) -> Image.Image:
        images = unfinished(self.imaging, self.codes.codes, self.codes.latents)
        return sheet(images, squarest(len(images)))

    def _draw(self, image: Image.Image) -> None:
        across, down = self.console.width, max(self.console.height - 3, 1)
        if self.live is not None:
            shown = half_blocks(fitting(image, across, down))
            self.live.update(Group(shown, Text(self.progress(), style="dim")), refresh=True)
            return
        assert self.manner in ("kitty", "iterm"), "the others draw nothing"
        if self.place is None:  # room below the image first: the cursor's saved place must not scroll away
            self.place = extent(image, across, down)
            self._write("\n" * self.place[1] + f"\x1b[{self.place[1]}A\r\x1b7")
        size = extent(image, *self.place)
        command = inline(image, "kitty" if self.manner == "kitty" else "iterm", *size)
        self._write(f"\x1b8\x1b[J{command}\x1b8\x1b[{self.place[1]}B\r\x1b[K{self.progress()}")

    def progress(self) -> str:
        """How far it is, in one line."""
        known = self.before + self.codes.known
        forwards = self.forwards + self.steps
        left = ""
        if 0 < known < self.total:
            left = f", {_duration((time.monotonic() - self.started) / known * (self.total - known))} left"
        return f"{known} of {self.total} tokens, {forwards} forward{'' if forwards == 1 else 's'}{left}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def _manner(console: Console, environment: Mapping[str, str], *, drawable: bool) -> Manner:
    if not console.is_terminal:
        return "log"
    if console.is_dumb_terminal or not drawable:
        return "line"
    found = way(environment)
    plain = console.no_color or console.color_system in (None, "standard")
    return "line" if found == "blocks" and plain else found


def _duration(seconds: float) -> str:
    """
    >>> _duration(7.2), _duration(200)
    ('7 s', '3 min 20 s')
    """
    whole = int(np.ceil(seconds)) if seconds > 10 else max(round(seconds), 1)
    return f"{whole} s" if whole < 60 else f"{whole // 60} min {whole % 60} s"
