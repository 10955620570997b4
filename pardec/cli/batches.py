"""The prompts of one command decoded, each row kept as soon as it is finished; the next prompt takes its place.

With `stream` they are decoded batch by batch, the canvas is shown on stderr, and the text of a single prompt goes to
stdout as it settles; not where both are one terminal, since the canvas is redrawn there.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pardec.samplers.events import Event, Finished, RowFinished, Step

from ..api import Model
from ..io.jsonl import RowsFile, key_of
from ..io.prompt_files import Item
from ..requests import empty_answer
from ..requests.continuous import VectorCall
from ..requests.text import Call
from ..result import Result
from ..views.terminal import Watch
from .common import say
from .common import show as show_text

EVERY_S = 10.0  # seconds between two lines of progress


class Batches:
    """All prompts of one command: `call` holds them as rows, `items` as they were given."""

    def __init__(self, model: Model, call: Call | VectorCall, items: list[Item], *, stream: bool, quiet: bool) -> None:
        self.model, self.call, self.items, self.stream, self.quiet = model, call, items, stream, quiet
        self.watched = stream and not quiet
        self.rows: dict[int, dict[str, Any]] = {}  # by index of the prompt
        self.file: RowsFile | None = None
        self.keys: list[str] = []
        self.last: tuple[Call | VectorCall, Finished] | None = None
        self.seconds = 0.0
        self.tokens = self.forwards = 0  # of the rows made by this run

    def keep_in(self, output: Path, *, overwrite: bool) -> None:
        """Takes over the rows that `output` holds already, and adds every finished one to it."""
        settings = {
            "model": self.model.name,
            "spec": str(self.call.sampler.spec),
            **self.call.settings,
            "dtype": str(self.model.network.dtype).removeprefix("torch."),
        }
        if self.model.quantized is not None:
            settings["quantize"] = self.model.quantized
        self.file = RowsFile(output, settings, overwrite=overwrite, warn=say)
        self.file.check_writable()
        each = zip(self.items, self.call.seeds, self.call.constraints, strict=True)
        self.keys = [key_of(settings, [item.prompt, kept] if kept else item.prompt, seed) for item, seed, kept in each]
        self.rows = {at: self.file.rows[key] for at, key in enumerate(self.keys) if key in self.file.rows}
        if self.rows:
            say(f"{output} holds {len(self.rows)} of {len(self.items)} rows already", quiet=self.quiet)

    def decode(self, batch_size: int, *, show: bool) -> None:
        """Makes the rows that are missing; with `show`, prints their text in the order of the prompts."""
        todo = [at for at in range(len(self.items)) if at not in self.rows]
        last_shown, flows = time.monotonic(), show and self._flows()
        ahead = deque(todo if show and not flows else ())  # prompts whose text is still to be printed
        joined = 1 < batch_size < len(todo) and not self.watched  # a canvas is drawn a batch at a time
        for _ in self._served(todo, batch_size) if joined else self._decoded(todo, batch_size, flows=flows):
            while ahead and ahead[0] in self.rows:
                row = self.rows[ahead.popleft()]
                show_text(" ".join(map(str, row["tokens"])) if row["text"] is None else row["text"])
            if time.monotonic() - last_shown > EVERY_S:
                say(f"{len(self.rows)} of {len(self.items)} rows", quiet=self.quiet)
                last_shown = time.monotonic()
        if self.file is not None and todo:
            self.file.append([])  # whoever deleted the file after the last row has not deleted the rows

    def _served(self, todo: list[int], batch_size: int) -> Iterator[None]:
        """Row by row: as one is finished, the next prompt takes its place."""
        started = time.perf_counter()
        with self.model.serve((self.call.take([at]) for at in todo), batch_size=batch_size) as serving:
            for served in serving:
                self._keep(todo[served.index], served.result.rows()[0])
                self.seconds += time.perf_counter() - started
                yield
                started = time.perf_counter()

    def _decoded(self, todo: list[int], batch_size: int, *, flows: bool) -> Iterator[None]:
        """Batch by batch."""
        for start in range(0, len(todo), batch_size):
            self._decode(todo[start : start + batch_size], flows=flows)
            yield

    def _flows(self) -> bool:
        """Whether stdout gets the text while it is made."""
        overwritten = self.watched and sys.stderr.isatty() and sys.stdout.isatty()
        return self.stream and not overwritten and len(self.items) == 1 and self.model.tokenizer is not None

    def _decode(self, batch: list[int], *, flows: bool) -> None:
        part = self.call.take(batch)
        started = time.perf_counter()
        with self._watch() as watch:
            for event in self.model.run(part, text=flows):
                watch(event)
                if flows and isinstance(event, Step | RowFinished):
                    piece = event.text if isinstance(event, RowFinished) else "".join(event.text or ())
                    show_text(piece or "", end="\n" if isinstance(event, RowFinished) else "")
                if isinstance(event, RowFinished):
                    self._keep(batch[event.row], self.model.row(part, event))
                elif isinstance(event, Finished):
                    self.last = (part, event)
        self.seconds += time.perf_counter() - started

    def _keep(self, at: int, row: dict[str, Any]) -> None:
        if self.file is not None:
            self.file.append([self.named(at, row)])
        self.count(at, {"id": self.items[at].id, "prompt": self.items[at].prompt, **row})

    def named(self, at: int, row: dict[str, Any]) -> dict[str, Any]:
        """The finished row of prompt `at` as the file holds it."""
        return {"key": self.keys[at], "id": self.items[at].id, "prompt": self.items[at].prompt, **row}

    def count(self, at: int, row: dict[str, Any]) -> None:
        """Takes a row that this run has made, and is kept."""
        self.rows[at] = row
        self.tokens += row["generated"]
        self.forwards += row["nfe"]

    @contextmanager
    def _watch(self) -> Iterator[Callable[[Event], None]]:
        if not self.watched:
            yield lambda event: None
            return
        with Watch(self.model.tokenizer, sys.stderr) as watch:
            yield watch

    # --- what is said and written at the end ---

    def result(self) -> Result:
        """The one batch as a whole result."""
        assert self.last is not None, "asked only after a batch"
        return self.model.result(*self.last, self.seconds)

    def document(self) -> dict[str, Any]:
        """What --json prints."""
        kept = ("id", "prompt", "text", "tokens", "finish", "nfe", "generated", "tokens_per_forward", "seed")
        return {
            "model": self.model.name,
            "spec": str(self.call.sampler.spec),
            "exact": self.call.sampler.exact,
            "settings": self.call.settings,
            "environment": self.model.environment(),
            "timing": {"total_s": self.seconds, "tokens": self.tokens, "forwards": self.forwards},
            "rows": [{name: self.rows[at][name] for name in kept} for at in range(len(self.items))],
        }

    def summary(self) -> str:
        """The rates of this run in one line."""
        if not self.forwards:
            return "nothing was left to do"
        plural = "" if self.forwards == 1 else "s"
        return (
            f"{self.tokens} tokens in {self.forwards} forward{plural}, "
            f"{self.tokens / self.forwards:.2f} tokens a forward, {self.tokens / self.seconds:.0f} tokens/s"
        )

    def warn(self) -> None:
        """Says on stderr, in one line, that answers are empty where the prompts may be why."""
        count = sum(not row["generated"] for row in self.rows.values())
        plain = any(isinstance(item.prompt, str) for item in self.items)
        reason = empty_answer.why(self.model, plain=plain, way_out="leave --raw out") if count else None
        if reason is not None:
            say(f"warning: {empty_answer.sentence(count, len(self.rows))}: {reason}", quiet=self.quiet)

    def left_off(self) -> str:
        """What an interrupted run leaves, and how to go on."""
        done = f"interrupted: {len(self.rows)} of {len(self.items)} rows are finished"
        if self.file is None:
            return f"{done}\n-o FILE.jsonl would keep them, and the same command would go on from there"
        return f"{done}, in {self.file.path}\nthe same command goes on from there"
