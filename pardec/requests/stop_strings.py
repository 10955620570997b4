"""Stop strings: where the text of a row first holds one, and what of a text may be told before that is known.

A row ends with the first token, counted from the prompt, behind which its text holds one of them; the text is cut
before it. Of several that are complete behind that token, the one that is complete first counts, and of those that are
complete at one character the one that begins first. Only what is generated is searched, special tokens left out. What
decides is the text of the tokens up to each token alone, so that it is the same however many a step commits.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pardec.models.errors import SpecError

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a token that is one byte of a character
_BYTES = 4  # the most tokens that a character takes
_MARGIN = 8  # tokens before those that may hold the string: a decoder may write its first ones in another way


def is_byte(tokenizer: Any, token: int) -> bool:
    """Whether a token is one byte of a character, so that the text before it may change with it."""
    return _BYTE.fullmatch(str(tokenizer.convert_ids_to_tokens(token))) is not None


@dataclass(frozen=True, eq=False)
class StopStrings:
    """The stop strings of one row.

    >>> from pardec.models.loading.catalog import TOKENIZER
    >>> from pardec.models.loading.tokenizers import load_tokenizer
    >>> stops = StopStrings(load_tokenizer(TOKENIZER), (" cups",))
    >>> ids = stops.tokenizer("Tom has 3 cups. Ann has 4.", add_special_tokens=False)["input_ids"]
    >>> stops.tokenizer.decode(ids[: stops.first(ids)]), stops.cut("Tom has 3 cups. Ann has 4.")
    ('Tom has 3 cups', 'Tom has 3')
    """

    tokenizer: Any
    texts: tuple[str, ...]
    _bytes: dict[int, bool] = field(default_factory=dict, repr=False)

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """How many of `ids`, more than `known`, make the first text that holds a stop string; None where none does."""
        for count in range(known + 1, len(ids) + 1):
            if ids[count - 1] in self._silent:
                continue
            near = self._decode(ids[self._reach(ids, count) : count])
            if self._holds(near) and self._holds(self._decode(ids[:count])):
                return count
        return None

    def cut(self, text: str) -> str:
        """`text` before the stop string that is complete first; all of it where there is none."""
        ends = [(at + len(stop), at) for stop in self.texts if (at := text.find(stop)) >= 0]
        return text[: min(ends)[1]] if ends else text

    def certain(self, text: str) -> str:
        """`text`, cut, without an end of it that may be the beginning of a stop string."""
        text = self.cut(text)
        most = min(max(map(len, self.texts)) - 1, len(text))
        held = next((k for k in range(most, 0, -1) if any(stop.startswith(text[-k:]) for stop in self.texts)), 0)
        return text[: len(text) - held]

    def _holds(self, text: str) -> bool:
        return any(stop in text for stop in self.texts)

    def _decode(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    @cached_property
    def _silent(self) -> frozenset[int]:
        """Tokens that no text comes from."""
        return special_ids(self.tokenizer)

    def _reach(self, ids: Sequence[int], count: int) -> int:
        """Where the tokens begin that a string which ends behind `count` tokens can stand in."""
        left, begin = _BYTES * max(map(len, self.texts)) + _MARGIN, count
        while begin and left:
            begin -= 1
            left -= ids[begin] not in self._silent
        while begin and self._is_byte(ids[begin]):  # a run of bytes is read as a whole
            begin -= 1
        return begin

    def _is_byte(self, token: int) -> bool:
        if token not in self._bytes:
            self._bytes[token] = is_byte(self.tokenizer, token)
        return self._bytes[token]


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that `skip_special_tokens` leaves out."""
    return frozenset(tokenizer.all_special_ids) | {
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }


def read(stop: Any) -> tuple[str, ...]:
    """The stop strings of an argument. Raises SpecError where it is neither text nor texts, or one is empty."""
    texts = (stop,) if isinstance(stop, str) else stop
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) and text for text in texts):
        raise SpecError(
            f"stop is a text or a list of texts, none of them empty, got {stop!r}",
            hint='stop=["\\n\\n", "Question:"] ends a row before either; token ids go to stop_ids=',
        )
    return tuple(dict.fromkeys(texts))
