"""Adds to events the text that became final, which a consumer can print at once.

A row's final text is that of its tokens up to `Step.settled`, cut where the row ends as in `Result.text`, without the
end that a later token may still change or make part of a stop string. A row's texts concatenated are `Result.text`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from pardec.models.files.token_bytes import decoder_steps, special_ids
from pardec.samplers.events import Event, RowFinished, Started, Step

from ..requests.stop_strings import is_byte

if TYPE_CHECKING:
    from ..requests.call import Call

_BROKEN = "\ufffd"  # replaces bytes that do not form a character yet
_CONTEXT = 8  # tokens decoded again before new ones


class RowText:
    """The final text of one row, as its tokens are committed."""

    def __init__(self, tokenizer: Any, call: Call, row: int, open_: np.ndarray) -> None:
        """`open_` [>= L] bool: the positions that were open before the first forward."""
        self.tokenizer, self.open = tokenizer, open_
        self.prompt, self.stop_ids, self.stops = call.prompts[row], call.stop_ids, call.stops(row)
        self.sent = ""  # the text already yielded
        self.ids: list[int] = []  # the final tokens after the prompt
        self.ended = False  # whether it ends there, at an end token or a stop string
        # Such a tokenizer removes blanks depending on what follows them.
        self.cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))
        steps = decoder_steps(tokenizer)
        self.bytes = not steps or any(step["type"] == "ByteFallback" for step in steps)  # may have tokens of one byte
        self.local = not self.cleans and _decodes_locally(tokenizer, steps)
        self.known, self.whole = 0, ""  # a number of tokens, and their text, which further tokens only add to

    def new(self, canvas: np.ndarray, settled: int) -> str:
        """The new final text, given that the tokens [L] before `settled` are final."""
        start, before, ids = self.prompt, len(self.ids), self.ids
        if self.ended or settled - start <= before:
            return ""
        ids += canvas[start + before : settled].tolist()
        for at in range(before, len(ids)):
            if ids[at] in self.stop_ids and self.open[start + at]:
                self.ended = True
                del ids[at + 1 :]
                break
        if self.stops is not None and (count := self.stops.first(ids, before)) is not None:
            self.ended = True
            del ids[count:]
        text = self._final_text()
        text = text if self.stops is None else self.stops.certain(text)
        if len(text) <= len(self.sent) or not text.startswith(self.sent):
            return ""
        new, self.sent = text[len(self.sent) :], text
        return new

    def rest(self, text: str) -> str:
        """The part of a finished row's whole `text` that was not returned before."""
        return text[len(self.sent) :]

    def _final_text(self) -> str:
        """The prefix of the text of the final tokens that no later token can change."""
        # A run of byte tokens that is not valid as a whole decodes to replacement characters throughout, so that
        # even a complete character may change with the next byte.
        end = len(self.ids)
        while end and self._in_bytes(end - 1):
            end -= 1
        text = self._decode(end)
        if self.local and not text.endswith(_BROKEN):
            self.known, self.whole = end, text
        text = text.rstrip(_BROKEN)
        return re.sub(r"\s*\S*\Z", "", text) if self.cleans else text

    def _decode(self, end: int) -> str:
        """The text of the first `end` tokens: the known part, and what later tokens add to the last of its tokens.

        Decoding everything at each step would take time that grows with the square of the length.
        """
        start = max(self.known - _CONTEXT, 0)
        while start and self._in_bytes(start):  # a run of bytes is decoded as a whole
            start -= 1
        context = decoded(self.tokenizer, self.ids[start : self.known])
        if not context:  # its first characters may be those that a decoder takes off the beginning of a text
            return decoded(self.tokenizer, self.ids[:end])
        return self.whole + decoded(self.tokenizer, self.ids[start:end])[len(context) :]

    def _in_bytes(self, at: int) -> bool:
        """Whether a token is a byte, or has no text, so that bytes before and after it may form one character."""
        if not self.bytes:
            return False
        token = self.ids[at]
        return token in self._special or is_byte(self.tokenizer, token)

    @cached_property
    def _special(self) -> frozenset[int]:
        return special_ids(self.tokenizer)


def _decodes_locally(tokenizer: Any, steps: list[dict[str, Any]]) -> bool:
    """Whether tokens add the same text after some of the tokens before them as after all: by the decoder's steps."""
    from transformers import PreTrainedTokenizerFast

    kind, fast = type(tokenizer), PreTrainedTokenizerFast
    if not steps or not issubclass(kind, fast) or kind.decode is not fast.decode or kind._decode is not fast._decode:
        return False
    names = [step["type"] for step in steps]
    if "Fuse" in names:  # what comes after it sees the whole text: it may only take off its beginning
        after = steps[names.index("Fuse") + 1 :]
        if any(step["type"] != "Strip" or step["stop"] for step in after):
            return False
    return {*names} <= {"ByteLevel", "Metaspace", "Replace", "ByteFallback", "Fuse", "Strip"}


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
    return text if stops is None else stops.cut_row(text, tokens)


def decoded(tokenizer: Any, tokens: list[int]) -> str:
    """Tokens as text, without special tokens."""
    return str(tokenizer.decode(tokens, skip_special_tokens=True))
