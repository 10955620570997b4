"""Adds to events the text that became final: what a consumer can print at once and never has to take back.

A row's final text is that of its tokens up to `Step.settled`, cut where the row ends as in `Result.text`, without the
end that a later token may still change or make part of a stop string. A row's texts concatenated are `Result.text`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np

from pardec.samplers.events import Event, RowFinished, Started, Step

from ..requests.continuous import VectorCall
from ..requests.stop_strings import is_byte
from ..requests.text import Call

_BROKEN = "\ufffd"  # replaces bytes that do not form a character yet


class Texts:
    """Adds text to the events of one request: call it with every event, in order."""

    def __init__(self, tokenizer: Any, call: Call | VectorCall) -> None:
        self.tokenizer, self.call = tokenizer, call
        rows = len(call.seeds)
        self.sent = [""] * rows  # the text already yielded
        self.read = [0] * rows  # how many tokens after the prompt it was decoded from
        self.ended = [False] * rows  # whether it ends there, at an end token or a stop string
        # Such a tokenizer removes blanks depending on what follows them.
        self.cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))

    def __call__(self, event: Event) -> Event:
        """The event, with its text if it has one."""
        if self.tokenizer is None:
            return event
        if isinstance(event, Started):
            self.open = event.open
        elif isinstance(event, Step):
            settled = event.settled.tolist()
            rows = enumerate(event.rows.tolist())
            texts = tuple(self._new_text(row, event.tokens[slot], settled[slot]) for slot, row in rows)
            return replace(event, text=texts)
        elif isinstance(event, RowFinished):
            tokens, _ = self.call.generated(event.row, event.tokens.tolist())
            text, stops = self._decode(tokens), self.call.stops(event.row)
            text = text if stops is None else stops.cut(text)
            return replace(event, text=text[len(self.sent[event.row]) :])
        return event

    def _new_text(self, row: int, canvas: np.ndarray, settled: int) -> str:
        """The text that became final in a row whose tokens before `settled` are final."""
        start = self.call.prompts[row]
        if self.ended[row] or settled - start <= self.read[row]:
            return ""
        before, self.read[row] = self.read[row], settled - start
        tokens = canvas[start:settled]
        ends = np.flatnonzero(np.isin(tokens, self.call.stop_ids) & self.open[row, start:settled])
        if len(ends):
            self.ended[row], tokens = True, tokens[: ends[0] + 1]
        stops = self.call.stops(row)
        if stops is not None and (count := stops.first(tokens.tolist(), before)) is not None:
            self.ended[row], tokens = True, tokens[:count]
        sent, text = self.sent[row], self._final_text(tokens.tolist())
        text = text if stops is None else stops.certain(text)
        if len(text) <= len(sent) or not text.startswith(sent):
            return ""
        self.sent[row] = text
        return text[len(sent) :]

    def _final_text(self, tokens: list[int]) -> str:
        """The text of `tokens` as far as no later token can change it."""
        # A run of byte tokens that is not valid as a whole decodes to replacement characters throughout, so that
        # even a complete character may change with the next byte.
        while tokens and is_byte(self.tokenizer, tokens[-1]):
            tokens = tokens[:-1]
        text = self._decode(tokens).rstrip(_BROKEN)
        return re.sub(r"\s*\S*\Z", "", text) if self.cleans else text

    def _decode(self, tokens: list[int]) -> str:
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))
