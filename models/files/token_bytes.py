"""The bytes that each token of a tokenizer writes, and texts as tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # a token that is one byte of a character


class TokenBytes:
    """The bytes that a model's tokens write.

    Attributes:
        tokens: the bytes of each id; none for special tokens, for those that are not known, and after the tokenizer's.
        special: the ids that decoded text leaves out.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self.tokenizer, self.special = tokenizer, special_ids(tokenizer)
        ids = set(tokenizer.get_vocab().values()) - self.special  # which may have gaps
        known = sorted(token for token in ids if token < size)
        each = dict(zip(known, token_bytes(tokenizer, known), strict=True))
        self.tokens: list[bytes] = [each.get(token, b"") for token in range(size)]

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The lowest token of each string."""
        return {value: token for token, value in reversed(list(enumerate(self.tokens))) if value}

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest token."""
        return max(map(len, self.tokens))

    def greedy(self, value: bytes) -> list[int] | None:
        """`value` as tokens, the longest first; None where that leads to bytes without a token.

        What stands after the first token is tokenized as it would be alone.
        """
        ids: list[int] = []
        start = 0
        while start < len(value):
            for end in range(min(start + self.longest, len(value)), start, -1):
                if (token := self.ids.get(value[start:end])) is not None:
                    ids.append(token)
                    start = end
                    break
            else:
                return None
        return ids

    def encode(self, value: str | bytes) -> list[int]:
        """A text as the tokenizer itself splits it, if these tokens have the text's bytes; else the longest tokens."""
        data = value.encode() if isinstance(value, str) else value
        try:
            ids = self.tokenizer(data.decode(), add_special_tokens=False)["input_ids"]
        except UnicodeDecodeError:
            ids = []
        if b"".join(self.tokens[token] for token in ids if token < len(self)) == data:
            return list(ids)
        return self.greedy(data) or []


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that `skip_special_tokens` leaves out."""
    return frozenset(tokenizer.all_special_ids) | {
        token for token, added in tokenizer.added_tokens_decoder.items() if added.special
    }


def token_bytes(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The bytes that each token writes at every position; none if they are unknown."""
    kinds = {step["type"] for step in decoder_steps(tokenizer)}
    names = [str(name) for name in tokenizer.convert_ids_to_tokens(list(ids))]
    if "ByteLevel" in kinds:
        byte_of = _bytes_of_characters()
        return [bytes(byte_of[char] for char in name) if set(name) <= set(byte_of) else name.encode() for name in names]
    if kinds & {"Metaspace", "Replace"}:
        known = _byte if "ByteFallback" in kinds else lambda name: None
        return [known(name) or name.replace("\u2581", " ").encode() for name in names]
    return _by_decoding(tokenizer, ids)


def decoder_steps(tokenizer: Any) -> list[dict[str, Any]]:
    """The steps of a fast tokenizer's decoder, as in tokenizer.json; none for a slow one."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is None:
        return []
    made: dict[str, Any] = json.loads(decoder.__getstate__())
    return list(made["decoders"]) if made["type"] == "Sequence" else [made]


def _byte(name: str) -> bytes | None:
    """The byte of a token such as <0x0A>; None for other tokens."""
    return bytes([int(name[3:5], 16)]) if BYTE_TOKEN.fullmatch(name) else None


def _by_decoding(tokenizer: Any, ids: Sequence[int]) -> list[bytes]:
    """The bytes that each token adds after another token; none where they are no whole character."""
    before = tokenizer("0", add_special_tokens=False)["input_ids"]
    start = tokenizer.decode(before)
    texts = tokenizer.batch_decode([[*before, token] for token in ids])
    plain = (text.startswith(start) and "\ufffd" not in text for text in texts)
    return [text[len(start) :].encode() if ok else b"" for text, ok in zip(texts, plain, strict=True)]


def _bytes_of_characters() -> dict[str, int]:
    """The byte that each character represents in byte-level BPE: GPT-2's table."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(0x100 + at): byte for at, byte in enumerate(others)}
