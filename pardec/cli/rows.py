"""A file of finished rows that a run can go on from: JSON lines, appended one by one, never rewritten.

A row names the settings it was made with and a key of prompt, settings and seed. A run skips the keys that are there
and refuses a file of other settings. A last line cut short by a crash is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pardec.cli.common import say
from pardec.models.errors import SpecError


def key_of(run: Mapping[str, Any], prompt: Any, seed: int) -> str:
    """What makes a row the same row."""
    text = json.dumps([run, prompt, seed], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class RowsFile:
    """The rows of `path` that were made with the settings `run`.

    Raises:
        SpecError: the file holds rows of other settings (the differences are named) or is no rows file; untouched.
    """

    def __init__(self, path: Path, run: dict[str, Any], *, overwrite: bool) -> None:
        self.path, self.run = path, run
        self.rows: dict[str, dict[str, Any]] = {}
        self._size = 0  # bytes of whole rows; what lies behind is a torn line
        if path.exists() and not overwrite:
            self._read()
        self._cut = path.exists()

    def _read(self) -> None:
        data = self.path.read_bytes()
        lines = data.splitlines(keepends=True)
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line) if line.endswith(b"\n") else None
                if row is None:
                    raise ValueError("the line does not end")
                key, run = row["key"], row["run"]
            except (ValueError, KeyError, TypeError) as error:
                if number == len(lines):
                    say(f"warning: dropping the last line of {self.path}, which was cut short")
                    break
                raise SpecError(
                    f"{self.path}, line {number} is no row of a run: {error}", hint="choose another -o, or --overwrite"
                ) from error
            if run != self.run:
                changes = [
                    f"{name} {run.get(name)!r} there, {self.run.get(name)!r} now"
                    for name in sorted({*run, *self.run})
                    if run.get(name) != self.run.get(name)
                ]
                raise SpecError(
                    f"{self.path} holds rows of other settings: {'; '.join(changes)}",
                    hint="choose another -o, or start over with --overwrite",
                )
            self.rows[key] = row
            self._size += len(line)

    def append(self, key: str, row: dict[str, Any]) -> None:
        """Adds a finished row; it is on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "ab") as file:
            if self._cut:
                file.truncate(self._size)
                self._cut = False
            file.write(json.dumps({**row, "key": key, "run": self.run}, ensure_ascii=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows[key] = row
