"""The text of single tokens, for views of a text that is not complete yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class TokenTexts:
    """The text of each token, with the space before a word; without a tokenizer, its id.

    With `special`, all special tokens of the tokenizer are written as that text.
    """

    def __init__(self, tokenizer: Any, special: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.cache: dict[int, str] = {}
        if special is not None and tokenizer is not None:
            self.cache = dict.fromkeys(tokenizer.all_special_ids, special)

    def __call__(self, tokens: Iterable[int]) -> list[str]:
        """The texts of these ids.

        >>> TokenTexts(None)([5, 7])
        [' 5', ' 7']
        """
        return [self.cache[token] if token in self.cache else self._decode(token) for token in tokens]

    def _decode(self, token: int) -> str:
        if self.tokenizer is None:
            text = f" {token}"
        else:
            text = str(self.tokenizer.decode([token]))
            raw = str(self.tokenizer.convert_ids_to_tokens(token))
            if blanks := len(raw) - len(raw.lstrip("▁Ġ")):  # a decoder may take one off the beginning of a text
                text = " " * blanks + text.lstrip(" ")
        self.cache[token] = text
        return text
