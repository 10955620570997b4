"""Escapes text from files and models for a terminal: characters that move the cursor or reorder lines."""

from __future__ import annotations

import re

# Control characters but tab and line feed, C1 ones among them; marks that reorder text; separators; lone surrogates.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def plain(text: str) -> str:
    r"""The text with every character that a terminal would obey written as its escape.

    >>> print(plain("\x1b[31mred"))
    \x1b[31mred
    """
    return _UNSAFE.sub(lambda match: ascii(match[0])[1:-1], text)


def in_json(text: str) -> str:
    """The JSON with such characters written as JSON's own escapes: the same value."""
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def line(text: str, limit: int = 1000) -> str:
    """`plain` text on one line, of about `limit` characters at most."""
    text = plain(" ".join(text.splitlines()))
    return text if len(text) <= limit else f"{text[: limit // 2]} ... {text[-limit // 2 :]}"
