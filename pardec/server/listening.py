"""Passes the updates of a request's rows from the worker's thread to the request, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..result import Result
from ..serving.running import Progress
from ..serving.streaming import RowText

if TYPE_CHECKING:
    from pardec.samplers.logprobs import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Started:
    """A row has a slot."""

    index: int
    waited: str | None


@dataclass(frozen=True, slots=True)
class Advanced:
    """A row has new final tokens, or a new state of its canvas."""

    index: int
    text: str
    tokens: list[int] = field(default_factory=list)  # tokens that became final since the last event
    logprobs: TokenLogprobs | None = None  # the log-probabilities of these tokens
    canvas: list[int | None] | None = None  # tokens after the prompt, None where open; only if requested
    forwards: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """A row is finished."""

    index: int
    result: Result


@dataclass(frozen=True, slots=True)
class Failed:
    """A row was given up."""

    index: int
    error: Exception


Update = Started | Advanced | Ended | Failed


class Channel:
    """A queue of one request's updates, written by the worker's thread and read by the request's task."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._updates: asyncio.Queue[Update] = asyncio.Queue()

    def send(self, update: Update) -> None:
        """Adds an update; may be called from any thread."""
        with suppress(RuntimeError):  # the event loop is closed, and nobody listens
            self._loop.call_soon_threadsafe(self._updates.put_nowait, update)

    async def get(self) -> Update:
        """Waits for the next update."""
        return await self._updates.get()


class RowListener:
    """Sends the updates of one row to a channel."""

    def __init__(self, index: int, send: Callable[[Update], None]) -> None:
        self.index, self.send = index, send

    wants_progress = False

    def started(self, waited: str | None) -> None:
        """The row is in a batch."""
        self.send(Started(self.index, waited))

    def advanced(self, progress: Progress) -> None:
        """Called after a forward of the row."""

    def finished(self, result: Result) -> None:
        """The row is done."""
        self.send(Ended(self.index, result))

    def failed(self, error: Exception) -> None:
        """The row was given up."""
        self.send(Failed(self.index, error))


class StreamListener(RowListener):
    """Also sends an update after each forward: the new final text and, with `denoise`, the canvas."""

    wants_progress = True

    def __init__(self, index: int, send: Callable[[Update], None], text: RowText, *, denoise: bool) -> None:
        super().__init__(index, send)
        self.text, self.denoise = text, denoise
        self._sent = 0  # tokens reported so far

    def advanced(self, progress: Progress) -> None:
        """Sends newly final tokens, if there are any, or every canvas."""
        text, start = self.text, self.text.prompt
        new = text.new(progress.tokens, progress.settled)
        if not new and not self.denoise:
            return
        tokens: list[int] = []
        logprobs = canvas = None
        if new and not text.ended:
            begin, self._sent = start + self._sent, progress.settled - start
            tokens = progress.tokens[begin : progress.settled].tolist()
            logprobs = None if progress.logprobs is None else progress.logprobs(begin, progress.settled)
        if self.denoise:
            pairs = zip(progress.tokens[start:].tolist(), progress.open[start:].tolist(), strict=True)
            canvas = [None if open_ else token for token, open_ in pairs]
        self.send(Advanced(self.index, new, tokens, logprobs, canvas, progress.nfe))
