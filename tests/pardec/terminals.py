"""A stream that is a terminal."""

from __future__ import annotations

import io


class Terminal(io.StringIO):
    """Records what is written to a terminal."""

    def isatty(self) -> bool:
        return True
