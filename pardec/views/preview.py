"""Images while they are decoded: redrawn in place on a terminal, else lines of progress."""

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

from pardec.models.errors import SpecError
from pardec.samplers.events import Event, Finished, RowFinished, Started, Step

from ..images.pngs import sheet, squarest
from .blocks import display_size, escape_sequence, half_blocks, protocol, shrink_to_fit
from .unfinished import Codes, unfinished

if TYPE_CHECKING:
    from pardec.models.images.contracts import Imaging

LOG_INTERVAL_S = 10.0  # between two lines of progress in a log
MIN_INTERVAL_S = 0.2  # between two drawings
REST_FACTOR = 10  # times as long as the last drawing took, before unfinished images are drawn again

Mode = Literal["kitty", "iterm", "blocks", "line", "log"]


class Preview:
    """Shows the events of one image request, or of several in turn, on `stream`.

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
        every: float = LOG_INTERVAL_S,
        each_step: bool = False,
    ) -> None:
        """`count`: images of all the requests; `each_step`: draw after every step, whatever that costs."""
        self.imaging, self.stream, self.every, self.each_step = imaging, stream, every, each_step
        self.console = Console(file=stream, highlight=False)
        self.mode = _mode(self.console, environment, drawable=imaging.can_decode)
        self.live = Live(console=self.console, auto_refresh=False) if self.mode == "blocks" else None
        self.codes = Codes(imaging.layout)
        self.total = count * self.codes.codes.shape[1]
        self.previous = self.forwards = self.steps = 0  # tokens and forwards of earlier requests; steps of this one
        self.started = self.last_report = time.monotonic()
        self.rendered_at, self.cost, self.rows_rendered = 0.0, 0.0, 0
        self.size: tuple[int, int] | None = None  # columns and lines reserved for images by escape sequence

    def __enter__(self) -> Preview:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()
        elif self.mode != "log":
            down = "" if self.size is None else f"\x1b8\x1b[{self.size[1]}B"
            self._write(f"{down}\n")

    def __call__(self, event: Event) -> None:
        """Updates the preview with one event."""
        self.codes(event)
        if isinstance(event, Started):
            self.steps, self.rows_rendered = 0, 0
        elif isinstance(event, Step):
            self.steps = event.number + 1
            self._refresh()
        elif isinstance(event, Finished):
            self._refresh(final=True)
            self.previous += self.codes.codes.size
            self.forwards += self.steps
        elif isinstance(event, RowFinished):
            self.rows_rendered = -1  # a finished image is shown as soon as the interval allows

    def _refresh(self, *, final: bool = False) -> None:
        now = time.monotonic()
        if self.mode == "log":
            if now - self.last_report >= self.every and not final:
                self.last_report = now
                self._write(self.progress() + "\n")
            return
        rows = self.codes.complete
        ready = now - self.rendered_at >= max(MIN_INTERVAL_S, REST_FACTOR * self.cost) and rows > self.rows_rendered
        if self.mode == "line":
            self._write(f"\r\x1b[K{self.progress()}")
        elif final or ready or self.each_step:
            self._draw(self._sheet())
            self.rows_rendered = rows
            self.rendered_at = time.monotonic()
            self.cost = self.rendered_at - now

    def _sheet(self) -> Image.Image:
        images = unfinished(self.imaging, self.codes.codes, self.codes.latents)
        return sheet(images, squarest(len(images)))

    def _draw(self, image: Image.Image) -> None:
        columns, lines = self.console.width, max(self.console.height - 3, 1)
        if self.live is not None:
            text = half_blocks(shrink_to_fit(image, columns, lines))
            self.live.update(Group(text, Text(self.progress(), style="dim")), refresh=True)
            return
        assert self.mode in ("kitty", "iterm"), "the other modes draw no image"
        if self.size is None:  # scroll first, so that the saved cursor position stays valid
            self.size = display_size(image, columns, lines)
            self._write("\n" * self.size[1] + f"\x1b[{self.size[1]}A\r\x1b7")
        size = display_size(image, *self.size)
        command = escape_sequence(image, "kitty" if self.mode == "kitty" else "iterm", *size)
        self._write(f"\x1b8\x1b[J{command}\x1b8\x1b[{self.size[1]}B\r\x1b[K{self.progress()}")

    def progress(self) -> str:
        """The progress in one line."""
        known = self.previous + self.codes.known
        forwards = self.forwards + self.steps
        left = ""
        if 0 < known < self.total:
            left = f", {_duration((time.monotonic() - self.started) / known * (self.total - known))} left"
        return f"{known} of {self.total} tokens, {forwards} forward{'' if forwards == 1 else 's'}{left}"

    def _write(self, text: str) -> None:
        self.stream.write(text)
        self.stream.flush()


def check_watchable(stream: TextIO, environment: Mapping[str, str] = os.environ) -> None:
    """Raises SpecError with the reason if a preview on `stream` would show no image."""
    console = Console(file=stream, highlight=False)
    mode = _mode(console, environment, drawable=True)
    if mode in ("log", "line"):
        if mode == "log":
            reason, hint = "stderr is not a terminal", "run it in a terminal, or leave --watch out and name an output"
        elif console.is_dumb_terminal:
            reason, hint = "this terminal cannot move its cursor", "set TERM to what the terminal is"
        else:
            reason, hint = "this terminal shows too few colours", "use one with 256 colours or more, and unset NO_COLOR"
        raise SpecError(f"an image cannot be watched: {reason}", hint=hint)


def _mode(console: Console, environment: Mapping[str, str], *, drawable: bool) -> Mode:
    if not console.is_terminal:
        return "log"
    if console.is_dumb_terminal or not drawable:
        return "line"
    choice = protocol(environment)
    few_colours = console.no_color or console.color_system in (None, "standard")
    return "line" if choice == "blocks" and few_colours else choice


def _duration(seconds: float) -> str:
    """A duration in words.

    >>> _duration(7.2), _duration(200)
    ('7 s', '3 min 20 s')
    """
    rounded = int(np.ceil(seconds)) if seconds > 10 else max(round(seconds), 1)
    return f"{rounded} s" if rounded < 60 else f"{rounded // 60} min {rounded % 60} s"
