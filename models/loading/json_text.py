"""JSON that strangers may have written: what nests too deep, or holds half a character, is refused like a torn file."""

from __future__ import annotations

import json
import re
from typing import Any

DEPTH = 64  # objects and lists within each other; whoever goes through what was read may recurse
_HALF = re.compile(r"\\u[dD][89a-fA-F]")


def parse(text: str | bytes) -> Any:
    """The value that `text` holds.

    Raises:
        ValueError: it is no JSON or no UTF-8, nests deeper than `DEPTH`, or names a surrogate without its other half,
            which no text can hold.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError(f"it nests deeper than {DEPTH} levels") from None
    level = [value]
    for _ in range(DEPTH):
        level = [entry for held in level if isinstance(held, dict | list) for entry in _entries(held)]
        if not level:
            break
    else:
        raise ValueError(f"it nests deeper than {DEPTH} levels")
    if _HALF.search(text):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"it holds half a character, \\u{ord(error.object[error.start]):04x}") from None
    return value


def _entries(held: dict[str, Any] | list[Any]) -> list[Any]:
    """The objects and lists that stand in one."""
    return [entry for entry in (held.values() if isinstance(held, dict) else held) if isinstance(entry, dict | list)]
