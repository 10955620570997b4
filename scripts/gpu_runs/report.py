"""The results of one entry, written to a JSON file one by one, so that an interrupted entry leaves its results."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Report:
    """Rows of figures, and one line of text that sums them up.

    The entry asks `left()` for the rest of its time limit, and stops early enough to finish.
    """

    def __init__(
        self, file: Path, seconds: float, *, dry: bool = False, finish: bool = False, inputs: Path | None = None
    ) -> None:
        """`file` is the JSON file, `seconds` the time limit, `inputs` the folder of the files carried here.

        Files other than JSON are written to the folder of `file`. With `finish`, a training ends with this stretch.
        """
        self.file, self.dry, self.finish, self.inputs = file, dry, finish, inputs or file.parent
        self._deadline = time.monotonic() + seconds
        self.content: dict[str, Any] = {"line": "", "rows": []}
        self._write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return self.content["rows"]

    def left(self) -> float:
        """Seconds until the time limit."""
        return self._deadline - time.monotonic()

    def row(self, **figures: Any) -> None:
        """Adds a row, and prints it."""
        self.rows.append(figures)
        self._write()
        print("  " + "; ".join(f"{name} {_short(value)}" for name, value in figures.items()), flush=True)

    def measure(self, names: dict[str, Any], figures: Callable[[], dict[str, Any]], *, least: float = 5.0) -> None:
        """Adds the row of `names` and the result of `figures`.

        A row that fails says why, and the entry continues. Where less than `least` seconds are left, nothing is
        measured, and the row says so.
        """
        if self.left() < least:
            self.row(**names, not_measured="no time was left")
            return
        try:
            self.row(**names, **figures())
        except Exception as error:
            traceback.print_exc()
            self.row(**names, error=f"{type(error).__name__}: {error}"[:500])

    def line(self, text: str) -> None:
        """The entry's result in one line; a later call replaces it."""
        self.content["line"] = text
        self._write()

    def set(self, **values: Any) -> None:
        """Sets values of the entry as a whole."""
        self.content.update(values)
        self._write()

    def _write(self) -> None:
        part = self.file.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        os.replace(part, self.file)


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)[:200]
