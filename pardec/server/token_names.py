"""Tokens in answers: their bytes, distinct names, and where each begins in the text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pardec.models.files.token_bytes import TokenBytes

from ..views.token_text import TokenTexts

_BROKEN = "\ufffd"  # decoded from bytes of an incomplete character


class TokenNames:
    """The names of a model's tokens in log-probabilities."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        known = None if tokenizer is None else TokenBytes(tokenizer, size)
        self.tokenizer, self._bytes = tokenizer, [] if known is None else known.tokens
        self.special = frozenset(range(size)) if known is None else known.special  # tokens without text
        self._texts = TokenTexts(tokenizer)

    def bytes_of(self, token: int) -> bytes | None:
        """The bytes that a token writes; None for a special token, and if they are not known."""
        return (self._bytes[token] if token < len(self._bytes) else b"") or None

    def name(self, token: int) -> str:
        """The token's text; for a part of a character its bytes, as OpenAI's API writes them."""
        value = self.bytes_of(token)
        if value is None:
            return self._texts([token])[0]
        try:
            return value.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in value)

    def names(self, tokens: Iterable[int]) -> dict[int, str]:
        """Distinct names for distinct tokens: if two have the same text, the later one is named by its id."""
        names: dict[int, str] = {}
        taken: set[str] = set()
        for token in tokens:
            if token not in names:
                name = self.name(token)
                names[token] = f"token_id:{token}" if name in taken else name
                taken.add(names[token])
        return names


class Offsets:
    """The offset of each token in a text, in characters; special tokens have no text.

    A token that continues a character begins where that character does.
    """

    def __init__(self, names: TokenNames) -> None:
        self.names, self.length = names, 0  # characters that are complete
        self._ids: list[int] = []  # ids of the window that is decoded
        self._read = 0  # how many of them `length` counts

    def next(self, token: int) -> int:
        """The offset of the token that follows."""
        start = self.length
        if token in self.names.special:
            return start
        self._ids.append(token)
        before, now = self._decode(self._ids[: self._read]), self._decode(self._ids)
        if now and not now.endswith(_BROKEN):
            self.length += len(now) - len(before)
            self._ids = self._ids[self._read :]  # a word's space shows where a token precedes it
            self._read = len(self._ids)
        return start

    def _decode(self, tokens: list[int]) -> str:
        return str(self.names.tokenizer.decode(tokens, skip_special_tokens=True))
