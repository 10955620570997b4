"""The bytes of each token of a tokenizer, the same at every position, and texts as tokens."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from pardec.models.errors import SpecError
from pardec.models.files.token_bytes import TokenBytes

_PRINTED = [bytes([byte]) for byte in range(0x20, 0x7F)]
_SPACED = "a . b , c ! d ? e 's f n't"  # spaces that clean_up_tokenization_spaces takes out
_CACHE: WeakKeyDictionary[Any, dict[int, Vocabulary]] = WeakKeyDictionary()


class Vocabulary(TokenBytes):
    """The bytes that the tokens of a model write, for models that can write JSON."""

    @staticmethod
    def of(tokenizer: Any, size: int) -> Vocabulary:
        """The vocabulary of a tokenizer, made once. Raises SpecError if it cannot write JSON."""
        sizes = _CACHE.setdefault(tokenizer, {})
        if size not in sizes:
            sizes[size] = Vocabulary(tokenizer, size)
        missing = [byte for byte in _PRINTED if byte not in sizes[size].ids]
        if missing:
            raise SpecError(
                f"response_format needs a token for every printed character; the tokenizer has none for {missing[0]!r}",
                hint="ask for JSON in the prompt instead",
            )
        words = sizes[size].greedy(_SPACED.encode()) or []
        if _SPACED not in (text := str(tokenizer.decode(words))):
            raise SpecError(
                f"response_format needs the text of its tokens, and the tokenizer changes spaces in it: {text!r}",
                hint="set clean_up_tokenization_spaces to false in its tokenizer_config.json",
            )
        return sizes[size]

    def writes(self, value: str) -> bool:
        """Whether it has tokens for every character of a text, except line breaks."""
        return self.greedy("".join(char for char in value if char.isprintable()).encode()) is not None
