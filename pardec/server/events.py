"""Server-sent events."""

from __future__ import annotations

import json
from typing import Any

from .errors import in_utf8

DONE = b"data: [DONE]\n\n"


def event(document: dict[str, Any], *, name: str | None = None) -> bytes:
    """Formats a server-sent event."""
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    return in_utf8(f"event: {name}\ndata: {text}\n\n" if name else f"data: {text}\n\n")


def typed(document: dict[str, Any]) -> bytes:
    """An event with the name of its document's `type`."""
    return event(document, name=document["type"])
