"""Adds to events the text that became final, which a consumer can print at once.

A row's final text is that of its tokens up to `Step.settled`, cut where the row ends as in `Result.text`, without the
end that a later token may still change or make part of a stop string. A row's texts concatenated are `Result.text`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pardec.models.files.token_bytes import BYTE_TOKEN
from pardec.samplers.events import Event, RowFinished, Started, Step

if TYPE_CHECKING:
    from ..requests.call import Call

_BROKEN = "\ufffd"  # replaces bytes that do not form a character yet


class RowText:
    """The final text of one row, as its tokens are committed."""

    def __init__(self, tokenizer: Any, call: Call, row: int, open_: np.ndarray) -> None:
        """`open_` [>= L] bool: the positions that were open before the first forward."""
        self.tokenizer, self.open = tokenizer, open_
        self.prompt, self.stop_ids, self.stops = call.prompts[row], call.stop_ids, call.stops(row)
        self.sent = ""  # the text already yielded
        self.read = 0  # how many tokens after the prompt it was decoded from
        self.ended = False  # whether it ends there, at an end token or a stop string
        # Such a tokenizer removes blanks depending on what follows them.
        self.cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))

    def new(self, canvas: np.ndarray, settled: int) -> str:
        """The new final text, given that the tokens [L] before `settled` are final."""
        start = self.prompt
        if self.ended or settled - start <= self.read:
            return ""
        before, self.read = self.read, settled - start
        tokens: list[int] = canvas[start:settled].tolist()
        for at in range(before, len(tokens)):
            if tokens[at] in self.stop_ids and self.open[start + at]:
                self.ended, tokens = True, tokens[: at + 1]
                break
        if self.stops is not None and (count := self.stops.first(tokens, before)) is not None:
            self.ended, tokens = True, tokens[:count]
        text = self._final_text(tokens)
        text = text if self.stops is None else self.stops.certain(text)
        if len(text) <= len(self.sent) or not text.startswith(self.sent):
            return ""
        new, self.sent = text[len(self.sent) :], text
        return new

    def rest(self, text: str) -> str:
        """The part of a finished row's whole `text` that was not returned before."""
        return text[len(self.sent) :]

    def _final_text(self, tokens: list[int]) -> str:
        """The prefix of the text of `tokens` that no later token can change."""
        # A run of byte tokens that is not valid as a whole decodes to replacement characters throughout, so that
        # even a complete character may change with the next byte.
        name_of = self.tokenizer.convert_ids_to_tokens
        while tokens and BYTE_TOKEN.fullmatch(str(name_of(tokens[-1]))):
            tokens = tokens[:-1]
        text = str(self.tokenizer.decode(tokens, skip_special_tokens=True)).rstrip(_BROKEN)
        return re.sub(r"\s*\S*\Z", "", text) if self.cleans else text


class Texts:
    """Adds text to the events of one request: call it with every event, in order."""

    def __init__(self, tokenizer: Any, call: Call) -> None:
        self.tokenizer, self.call = tokenizer, call
        self.rows: list[RowText] = []

    def __call__(self, event: Event) -> Event:
        """The event, with its text if it has one."""
        if self.tokenizer is None:
            return event
        if isinstance(event, Started):
            self.rows = [RowText(self.tokenizer, self.call, row, open_) for row, open_ in enumerate(event.open)]
        elif isinstance(event, Step):
            rows = map(self.rows.__getitem__, event.rows.tolist())
            return replace(event, text=tuple(map(RowText.new, rows, event.tokens, event.settled.tolist())))
        elif isinstance(event, RowFinished):
            tokens, _ = self.call.generated(event.row, event.tokens.tolist())
            text = answer(self.tokenizer, self.call, event.row, tokens)
            return replace(event, text=self.rows[event.row].rest(text))
        return event


def answer(tokenizer: Any, call: Call, row: int, tokens: list[int]) -> str:
    """The text of a finished row, cut before its stop string."""
    text, stops = decoded(tokenizer, tokens), call.stops(row)
    return text if stops is None else stops.cut(text)


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """Tokens as text, without special tokens."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
