"""Stop strings: finds the first one in the text of a row, and the prefix that no later stop string can cut.

A row ends with the first generated token that completes one of them; the text is cut before the string. Where a token
completes several, the string that ends first counts, and of those that end at one character the one that begins first.
Only generated text is searched, without special tokens. The text up to each token decides alone, so that the result
does not depend on how many tokens per step commits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from pardec.models.errors import SpecError
from pardec.models.files.token_bytes import BYTE_TOKEN, special_ids

_BYTES = 4  # the most tokens of one character
_MARGIN = 8  # further tokens decoded before the string: a tokenizer may decode the first ones of a text differently


def is_byte(tokenizer: Any, token: int) -> bool:
    """Whether a token is one byte of a character, which may change the text before it."""
    return BYTE_TOKEN.fullmatch(str(tokenizer.convert_ids_to_tokens(token))) is not None


@dataclass(frozen=True, eq=False)
class StopStrings:
    """The stop strings of one row.

    >>> from pardec.models.files.catalog import TOKENIZER
    >>> from pardec.models.files.tokenizers import load_tokenizer
    >>> stops = StopStrings(load_tokenizer(TOKENIZER), (" cups",))
    >>> ids = stops.tokenizer("Tom has 3 cups. Ann has 4.", add_special_tokens=False)["input_ids"]
    >>> stops.tokenizer.decode(ids[: stops.first(ids)]), stops.cut("Tom has 3 cups. Ann has 4.")
    ('Tom has 3 cups', 'Tom has 3')
    """

    tokenizer: Any
    texts: tuple[str, ...]
    _bytes: dict[int, bool] = field(default_factory=dict, repr=False)

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """The least number of `ids`, above `known`, whose text contains a stop string; None if there is none."""
        for count in range(known + 1, len(ids) + 1):
            if ids[count - 1] in self._special:
                continue
            tail = self._decode(ids[self._tail_start(ids, count) : count])
            if self._has_stop(tail) and self._has_stop(self._decode(ids[:count])):
                return count
        return None

    def cut(self, text: str) -> str:
        """`text` before the stop string that ends first; all of it if there is none."""
        ends = [(start + len(stop), start) for stop in self.texts if (start := text.find(stop)) >= 0]
        return text[: min(ends)[1]] if ends else text

    def cut_row(self, text: str, ids: Sequence[int]) -> str:
        """The text of a finished row with these ids, cut."""
        return self.cut(text)

    def certain(self, text: str) -> str:
        """`text`, cut, without a suffix that may be the beginning of a stop string."""
        text = self.cut(text)
        longest = min(max(map(len, self.texts)) - 1, len(text))
        open_end = next((k for k in range(longest, 0, -1) if any(stop.startswith(text[-k:]) for stop in self.texts)), 0)
        return text[: len(text) - open_end]

    def _has_stop(self, text: str) -> bool:
        return any(stop in text for stop in self.texts)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @cached_property
    def _special(self) -> frozenset[int]:
        """Tokens that have no text."""
        return special_ids(self.tokenizer)

    def _tail_start(self, ids: Sequence[int], count: int) -> int:
        """The first token that can belong to a stop string that ends after `count` tokens."""
        remaining, start = _BYTES * max(map(len, self.texts)) + _MARGIN, count
        while start and remaining:
            start -= 1
            remaining -= ids[start] not in self._special
        while start and self._is_byte(ids[start]):  # a run of bytes is decoded as a whole
            start -= 1
        return start

    def _is_byte(self, token: int) -> bool:
        if token not in self._bytes:
            self._bytes[token] = is_byte(self.tokenizer, token)
        return self._bytes[token]


class StructuredEnding(Protocol):
    """A grammar that ends a row, as an `Ending` of its request, and says which of its tokens are text."""

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """How many of the generated `ids`, more than `known`, remain when the row ends; None if it continues."""
        ...

    def text_end(self, ids: Sequence[int]) -> int:
        """How many of the generated `ids` a stop string may end."""
        ...


@dataclass(frozen=True, eq=False)
class StructuredStops(StopStrings):
    """The stop strings of a row that a grammar ends as well."""

    grammar: StructuredEnding = field(kw_only=True)

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        found = self._stopped(ids, known), self.grammar.first(ids, known)
        return min((count for count in found if count is not None), default=None)

    def cut_row(self, text: str, ids: Sequence[int]) -> str:
        return text if self._stopped(ids) is None else self.cut(text)

    def _stopped(self, ids: Sequence[int], known: int = 0) -> int | None:
        return super().first(ids[: self.grammar.text_end(ids)], known)


def read(stop: Any) -> tuple[str, ...]:
    """The stop strings of an argument. Raises SpecError if it is neither text nor texts, or one is empty."""
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise SpecError(
            f"stop must be a text or a list of texts, none of them empty, got {stop!r}",
            hint='stop=["\\n\\n", "Question:"] ends a row before either; token ids go to stop_ids=',
        )
    return tuple(dict.fromkeys(texts))
