"""JSON from untrusted files: deep nesting and lone surrogates are refused like broken syntax."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

DEPTH = 64  # maximum nesting of objects and lists; callers may recurse over the value
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str | bytes, *, unique: bool = False) -> Any:
    """The value that `text` holds.

    Args:
        unique: refuse an object that has a key twice, of which Python takes the last; for files that users write.

    Raises:
        ValueError: it is no JSON or no UTF-8, nests deeper than `DEPTH`, or names a surrogate without its other half,
            which no text can hold.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text, object_pairs_hook=unique_dict if unique else None)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEPTH} levels") from None
    level = [value]
    for _ in range(DEPTH):
        level = [entry for value in level if isinstance(value, dict | list) for entry in _entries(value)]
        if not level:
            break
    else:
        raise ValueError(f"it nests deeper than {DEPTH} levels")
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds a lone surrogate, \\u{ord(error.object[error.start]):04x}") from None
    return value


def _entries(value: dict[str, Any] | list[Any]) -> list[Any]:
    """The objects and lists directly inside one."""
    return [entry for entry in (value.values() if isinstance(value, dict) else value) if isinstance(entry, dict | list)]


def unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of an object's pairs. Raises ValueError if a key is among them twice."""
    check_unique(key for key, _ in pairs)
    return dict(pairs)


def check_unique(keys: Iterable[str]) -> None:
    """Raises ValueError if a key is among them twice."""
    twice = next((key for key, count in Counter(keys).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"it has {twice!r} twice; several values are written as a list")
