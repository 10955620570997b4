"""Tokens one by one as text, for views of a canvas that is not whole yet."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Pieces:
    """Each token as the text it stands for, the blank before a word included; without a tokenizer, the id.

    With `special`, the tokenizer's special tokens are all written as that, where their names would be in the way.
    """

    def __init__(self, tokenizer: Any, special: str | None = None) -> None:
        self.tokenizer = tokenizer
        self.known: dict[int, str] = {}
        if special is not None and tokenizer is not None:
            self.known = dict.fromkeys(tokenizer.all_special_ids, special)

    def __call__(self, tokens: Iterable[int]) -> list[str]:
        """
        >>> Pieces(None)([5, 7])
        [' 5', ' 7']
        """
        return [self.known[token] if token in self.known else self._learn(token) for token in tokens]

    def _learn(self, token: int) -> str:
        if self.tokenizer is None:
            text = f" {token}"
        else:
            text = str(self.tokenizer.decode([token]))
            raw = str(self.tokenizer.convert_ids_to_tokens(token))
            if raw.startswith(("▁", "Ġ")) and not text.startswith(" "):
                text = f" {text}"
        self.known[token] = text
        return text
