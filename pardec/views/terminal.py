"""A decode in a terminal: redrawn live, as plain lines in a log, or coloured once it is finished."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from pardec.models.printable import plain
from pardec.samplers.events import Event, Finished, RowFinished, Started, Step

from . import image_view
from .colour import glow
from .token_grid import heading, last_step, traced_tokens
from .token_text import TokenTexts

if TYPE_CHECKING:
    from ..result_data import ResultData

OPEN, SPECIAL = "·", "∎"
REVISED = "red"  # masked again or overwritten by the latest step
ROWS = 8  # rows shown at once; of the others only the number


class Watch:
    """Shows the events of a run on `stream`: redrawn in place on a terminal, else one line per step.

    Tokens that a step masks again or overwrites are red; a line gives their number after `~`. With `transient`, the
    canvas is removed from a terminal at the end, for text that is printed there.

    with Watch(tokenizer, sys.stderr) as watch:
        for event in model.stream(prompt):
            watch(event)
    """

    def __init__(self, tokenizer: Any, stream: TextIO, *, transient: bool = False) -> None:
        self._read = TokenTexts(tokenizer, special=SPECIAL)
        self.console = Console(file=stream, highlight=False)
        self.live = (
            Live(console=self.console, auto_refresh=False, transient=transient) if self.console.is_terminal else None
        )

    def __enter__(self) -> Watch:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, event: Event) -> None:
        """Updates the display with one event."""
        if isinstance(event, Started):
            self.tokens, self.open = event.tokens.copy(), event.open.copy()
            self.starts = event.prompts.tolist()
            self.ends = [int(np.flatnonzero(row)[-1]) + 1 if row.any() else len(row) for row in event.open]
            self.when, self.revised = np.full(self.open.shape, -1), np.zeros_like(self.open)
            self.num_masked, self.steps = int(self.open.sum()), 0
        elif isinstance(event, Step):
            self.steps = event.number + 1
            self.tokens[event.rows], self.open[event.rows] = event.tokens, event.open
            self.revised[:] = False
            if event.revised is not None:
                self.revised[event.rows] = event.revised
            changed = event.committed | (self.revised[event.rows] & ~event.open)
            when = np.where(changed, event.number, self.when[event.rows])
            self.when[event.rows] = np.where(event.open, -1, when)
            self._report(int(event.committed.sum()), None if event.revised is None else int(event.revised.sum()))
        elif isinstance(event, RowFinished):
            self.open[event.row] = False
            committed = np.flatnonzero(self.when[event.row] >= 0)
            if event.reason == "stop" and len(committed):  # tokens after the end token are not shown
                self.ends[event.row] = int(committed[-1]) + 1
        elif isinstance(event, Finished) and self.live is not None:
            self.live.update(self._canvas(), refresh=True)

    def _report(self, committed: int, revised: int | None) -> None:
        if self.live is not None:
            self.live.update(self._canvas(), refresh=True)
            return
        remaining = int(self.open.sum())
        revisions = "" if revised is None else f"~{revised:<3d} "
        head = f"step {self.steps:3d}  +{committed:<3d} {revisions}{self.num_masked - remaining:>4d}/{self.num_masked}"
        self.console.out(f"{head} |{self._plain(0)}" if len(self.open) == 1 else head)

    def _plain(self, row: int) -> str:
        span = slice(self.starts[row], self.ends[row])
        texts = self.token_texts(self.tokens[row, span].tolist())
        texts = [f" {OPEN}" if is_open else text for text, is_open in zip(texts, self.open[row, span], strict=True)]
        return "".join(texts).replace("\n", "\\n")

    def token_texts(self, ids: list[int]) -> list[str]:
        """The text of each token, safe for a terminal."""
        return [plain(text) for text in self._read(ids)]

    def _canvas(self) -> Group:
        lines = [self._line(row) for row in range(min(len(self.open), ROWS))]
        if len(self.open) > ROWS:
            lines.append(Text(f"and {len(self.open) - ROWS} more rows", style="dim"))
        committed = self.num_masked - int(self.open.sum())
        lines.append(Text(f"step {self.steps}, {committed} of {self.num_masked} committed", style="dim"))
        return Group(*lines)

    def _line(self, row: int) -> Text:
        line = Text()
        last = max(self.steps - 1, 1)
        for column in range(self.starts[row], self.ends[row]):
            if self.open[row, column]:
                line.append(f" {OPEN}", style=REVISED if self.revised[row, column] else "dim")
            else:
                (text,) = self.token_texts([int(self.tokens[row, column])])
                step = int(self.when[row, column])
                style = "dim" if step < 0 else f"bold {glow(step, last)}" if step == last else glow(step, last)
                line.append(text, style=f"bold {REVISED}" if self.revised[row, column] else style)
        return line


def finished(result: ResultData) -> Group:
    """A finished run: the tokens coloured by the forward that committed each, or the images."""
    if result.images:
        return image_view.finished(result)
    rows = traced_tokens(result)
    last = last_step(rows)
    lines = [Text(plain(heading(result)), style="dim")]
    for row in rows:
        line = Text()
        for token in row:
            line.append(plain(token.text), style="dim" if token.step < 0 else glow(token.step, last))
        lines.append(line)
    return Group(*lines)
