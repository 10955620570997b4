"""Decodes the prompts of one command continuously: a finished row is stored, and the next prompt takes its slot.

With `stream`, prompts are decoded batch by batch, the canvas is shown on stderr, and the text of a single prompt is
printed on stdout as it becomes final, unless both are one terminal, where the canvas is redrawn.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pardec.models.files.sources import digest_of
from pardec.samplers.events import Event, Finished, RowFinished, Step

from ..api import Model
from ..io.jsonl import RowsFile, key_of
from ..io.prompt_files import Item
from ..requests import answer_warnings
from ..requests.call import Call
from ..requests.line_calls import LineCalls
from ..result import Result
from ..result_data import LOGPROB_FIELDS
from ..views.terminal import Watch
from .common import say
from .common import show as show_text

EVERY_S = 10.0  # seconds between two lines of progress
_LATER = ("checkpoint", "adapter")  # settings that rows of earlier versions lack
_OVERRIDES = ("revision", "mask_id", "block", "shift", "attention")  # arguments of `load` that change the output


def checkpoint_of(model: str, load_arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Identifies a checkpoint beyond its name: `digest_of` its files and its adapter's, and arguments of `load`."""
    adapter = load_arguments.get("adapter")
    digests = {"checkpoint": digest_of(model), "adapter": digest_of(adapter) if adapter else None}
    known = {name: value for name, value in digests.items() if value is not None}
    return {**known, **{name: load_arguments[name] for name in _OVERRIDES if name in load_arguments}}


class Batches:
    """All prompts of one command: `call` has them as rows, `items` as the user wrote them."""

    def __init__(
        self,
        model: Model,
        call: Call | LineCalls,
        items: list[Item],
        *,
        stream: bool,
        quiet: bool,
        in_order: bool = False,
    ) -> None:
        """`in_order`: a row is written to the file after all rows before it."""
        self.in_order, self._unwritten = in_order, deque[int]()  # indices of rows to write, if in order
        self.model, self.call, self.items, self.stream, self.quiet = model, call, items, stream, quiet
        self.shows_canvas = stream and not quiet
        self.rows: dict[int, dict[str, Any]] = {}  # by index of the prompt
        self.file: RowsFile | None = None
        self.keys: list[str] = []
        self.last: tuple[Call, Finished] | None = None
        self._prints_after = False  # whether texts are printed on a terminal after they were shown decoding
        self.seconds = 0.0
        self.tokens = self.forwards = 0  # totals of the rows that this run decoded

    def open_rows(self, output: Path, *, overwrite: bool, checkpoint: Mapping[str, Any] | None = None) -> None:
        """Reads the rows that `output` already has, and appends each finished row to it.

        `checkpoint`: what `checkpoint_of` returns; a file with rows of another one is refused.
        """
        settings = {
            "model": self.model.name,
            "spec": str(self.call.sampler.spec),
            **self.call.settings,
            "dtype": str(self.model.network.dtype).removeprefix("torch."),
        }
        settings |= self.model.weight_settings
        run = {**settings, **(checkpoint or {})}
        self.file = RowsFile(output, run, later=_LATER, overwrite=overwrite, warn=say)
        self.file.check_writable()
        each = zip(self.items, self.call.seeds, self.call.constraints, strict=True)
        self.keys = [
            key_of({**settings, **item.settings}, [item.prompt, rule] if rule else item.prompt, seed)
            for item, seed, rule in each
        ]
        self.rows = {index: self.file.rows[key] for index, key in enumerate(self.keys) if key in self.file.rows}
        if self.rows:
            say(f"{output} has {len(self.rows)} of {len(self.items)} rows already", quiet=self.quiet)
        if others := len(self.file.rows) - len({*self.keys} & {*self.file.rows}):
            say(f"{output} keeps {others} row{'s' * (others != 1)} of other prompts or seeds", quiet=self.quiet)

    def decode(self, batch_size: int, *, show: bool) -> None:
        """Decodes the missing rows; with `show`, prints their text in the order of the prompts."""
        missing = [index for index in range(len(self.items)) if index not in self.rows]
        self._unwritten = deque(missing if self.in_order else ())
        self._prints_after = show and sys.stdout.isatty()
        last_report, live = time.monotonic(), show and self._prints_while_decoding()
        unprinted = deque(missing if show and not live else ())  # prompts whose text is not printed yet
        continuous = 1 < batch_size < len(missing) or (isinstance(self.call, LineCalls) and len(missing) > 1)
        continuous = continuous and not self.shows_canvas and batch_size > 1  # a canvas is shown batch by batch
        if isinstance(self.call, LineCalls) and not continuous:
            batch_size = 1  # rows of other settings are not one call
        for _ in self._serve(missing, batch_size) if continuous else self._in_batches(missing, batch_size, live=live):
            while unprinted and unprinted[0] in self.rows:
                row = self.rows[unprinted.popleft()]
                show_text(" ".join(map(str, row["tokens"])) if row["text"] is None else row["text"])
            if time.monotonic() - last_report > EVERY_S:
                say(f"{len(self.rows)} of {len(self.items)} rows", quiet=self.quiet)
                last_report = time.monotonic()
        if self.file is not None and missing:
            self.file.append([])  # writes the rows again if the file was deleted after the last one

    def _serve(self, missing: list[int], batch_size: int) -> Iterator[None]:
        """Continuous batching: when a row is finished, the next prompt takes its slot."""
        started = time.perf_counter()
        with self.model.serve((self.call.take([index]) for index in missing), batch_size=batch_size) as serving:
            for served in serving:
                self._store(missing[served.index], served.result.rows()[0])
                self.seconds += time.perf_counter() - started
                yield
                started = time.perf_counter()

    def _in_batches(self, missing: list[int], batch_size: int, *, live: bool) -> Iterator[None]:
        """Decodes the rows batch by batch."""
        for start in range(0, len(missing), batch_size):
            self._decode_batch(missing[start : start + batch_size], live=live)
            yield

    def _prints_while_decoding(self) -> bool:
        """Whether text is printed on stdout while it is decoded."""
        overwritten = self.shows_canvas and sys.stderr.isatty() and sys.stdout.isatty()
        return self.stream and not overwritten and len(self.items) == 1 and self.model.tokenizer is not None

    def _decode_batch(self, batch: list[int], *, live: bool) -> None:
        part = self.call.take(batch)
        started = time.perf_counter()
        with self._canvas_view() as watch:
            for event in self.model.run(part, text=live):
                watch(event)
                if live and isinstance(event, Step | RowFinished):
                    text = event.text if isinstance(event, RowFinished) else "".join(event.text or ())
                    show_text(text or "", end="\n" if isinstance(event, RowFinished) else "")
                if isinstance(event, RowFinished):
                    self._store(batch[event.row], self.model.row(part, event))
                elif isinstance(event, Finished):
                    self.last = (part, event)
        self.seconds += time.perf_counter() - started

    def _store(self, index: int, row: dict[str, Any]) -> None:
        if self.file is not None and not self.in_order:
            self.file.append([self.file_row(index, row)])
        self.add(index, {"id": self.items[index].id, "prompt": self.items[index].prompt, **row})
        while self.file is not None and self._unwritten and self._unwritten[0] in self.rows:
            first = self._unwritten.popleft()
            self.file.append([self.file_row(first, self.rows[first])])

    def file_row(self, index: int, row: dict[str, Any]) -> dict[str, Any]:
        """The finished row of prompt `index` in the form of the file."""
        return {"key": self.keys[index], "id": self.items[index].id, "prompt": self.items[index].prompt, **row}

    def add(self, index: int, row: dict[str, Any]) -> None:
        """Adds a row that this run decoded."""
        self.rows[index] = row
        self.tokens += row["generated"]
        self.forwards += row["nfe"]

    @contextmanager
    def _canvas_view(self) -> Iterator[Callable[[Event], None]]:
        if not self.shows_canvas:
            yield lambda event: None
            return
        with Watch(self.model.tokenizer, sys.stderr, transient=self._prints_after) as watch:
            yield watch

    # --- output at the end ---

    def result(self) -> Result:
        """The single batch as a result."""
        assert self.last is not None, "called only after a batch"
        return self.model.result(*self.last, self.seconds)

    def document(self) -> dict[str, Any]:
        """The document that --json prints."""
        fields = ("id", "prompt", "text", "tokens", "finish", "nfe", "generated", "tokens_per_forward", "seed")
        return {
            "model": self.model.name,
            "spec": str(self.call.sampler.spec),
            "exact": self.model.exactness(self.call.sampler),
            "settings": self.call.settings,
            "environment": self.model.environment(),
            "timing": {"total_s": self.seconds, "tokens": self.tokens, "forwards": self.forwards},
            "rows": [
                {name: row[name] for name in (*fields, *LOGPROB_FIELDS) if name in fields or name in row}
                for row in (self.rows[index] for index in range(len(self.items)))
            ],
        }

    def summary(self) -> str:
        """The rates of this run in one line."""
        if not self.forwards:
            return "every row was finished already"
        plural = "" if self.forwards == 1 else "s"
        return (
            f"{self.tokens} tokens in {self.forwards} forward{plural}, "
            f"{self.tokens / self.forwards:.2f} tokens per forward, {self.tokens / self.seconds:.0f} tokens/s"
        )

    def warn(self) -> None:
        """Warns on stderr of answers that were cut, and of empty ones if the form of the prompts may be the reason."""
        empty = sum(not row["generated"] for row in self.rows.values())
        plain = any(isinstance(item.prompt, str) for item in self.items)
        reason = answer_warnings.explain_empty(self.model, plain=plain, way_out="leave --raw out") if empty else None
        cut = [
            len(row["tokens"]) for index, row in self.rows.items() if answer_warnings.is_cut(row, self._settings(index))
        ]
        if cut:
            text = answer_warnings.cut_sentence(len(cut), len(self.rows), max(cut))
            say(f"warning: {text}; a larger -n gives more", quiet=self.quiet)
        if reason is not None:
            say(f"warning: {answer_warnings.empty_sentence(empty, len(self.rows))}: {reason}", quiet=self.quiet)

    def _settings(self, index: int) -> dict[str, Any]:
        """The settings of a row."""
        return self.call.calls[index].settings if isinstance(self.call, LineCalls) else self.call.settings

    @property
    def _waiting(self) -> int:
        """Finished rows that wait for rows before them, and are not in the file."""
        return sum(index in self.rows for index in self._unwritten)

    def interrupt_message(self) -> str:
        """Builds the message of an interrupted run: how many rows are finished, and how to resume."""
        finished = f"interrupted: {len(self.rows) - self._waiting} of {len(self.items)} rows are finished"
        if self.file is None:
            return f"{finished}\nwith -o FILE.jsonl they are saved, and the same command resumes there"
        return f"{finished}, in {self.file.path}\nthe same command resumes there"
