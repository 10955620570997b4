"""A file of finished rows that a run can go on from: JSON lines, appended, one line a key.

Several processes may write to one file: every append holds a lock. What a killed writer left of a line is dropped, by
readers at once and from the file with the next append. Where there is no `fcntl` (Windows) there is no lock, and a file
is for one process.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from pardec.models.errors import SpecError

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]
_START = b'{"key": '  # how every line begins; a torn one is told from somebody else's text by it


def key_of(*parts: Any) -> str:
    """What makes a row the same row: a short digest of plain values."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class RowsFile:
    """The finished rows of a file, by key.

    Args:
        path: it need not exist.
        run: settings that every row of the file names; rows of other ones are refused. Empty where the settings
            are kept elsewhere.
        overwrite: begin anew with the first append.
        warn: told when a torn line is dropped.

    Raises:
        SpecError: the file is no rows file, or holds rows of other settings (the differences are named); untouched.
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, Any] | None = None,
        *,
        overwrite: bool = False,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.path, self.run, self._warn = path, dict(run or {}), warn
        self.rows: dict[str, Row] = {}
        self._over = overwrite
        self._counted = [0, 0]  # bytes looked at, lines seen in them
        if not overwrite:
            self.read()

    def read(self) -> dict[str, Row]:
        """The rows as they stand in the file now, by key."""
        self.rows = {}
        data = self.path.read_bytes() if self.path.exists() else b""
        lines = data.split(b"\n")
        for number, line in enumerate(lines[:-1], 1):
            row = self._parsed(line, number)
            self.rows[row.pop("key")] = row
        if lines[-1]:
            if not _torn(lines[-1]):
                raise self._foreign(len(lines), "the line does not end")
            self._warn(f"warning: dropping the last line of {self.path}, which was cut short")
        return self.rows

    def _parsed(self, line: bytes, number: int) -> Row:
        try:
            row = json.loads(line)
            if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                raise ValueError("it has no key")
        except ValueError as error:
            raise self._foreign(number, str(error)) from error
        if self.run:
            self._check(row.pop("run", None), number)
        return row

    def _check(self, run: Any, number: int) -> None:
        if not isinstance(run, dict):
            raise self._foreign(number, "it does not say which run it is of")
        if run != self.run:
            raise SpecError(
                f"{self.path} holds rows of other settings: {'; '.join(differences(run, self.run))}",
                hint="choose another -o, or start over with --overwrite",
            )

    def _foreign(self, number: int, why: str) -> SpecError:
        return SpecError(
            f"{self.path}, line {number} is no row of a run: {why}", hint="choose another -o, or --overwrite"
        )

    # --- writing ---

    def append(self, rows: Sequence[Row]) -> None:
        """Adds finished rows, each with its "key", in one write; they are on the disk when this returns."""
        named = {"run": self.run} if self.run else {}
        lines = [json.dumps({"key": row["key"], **row, **named}, ensure_ascii=False) + "\n" for row in rows]
        with self._locked() as file:
            if self._over:
                file.truncate(0)
                self._over = False
            _mend(file)
            file.write("".join(lines).encode())
            file.flush()
            os.fsync(file.fileno())
        self.rows |= {row["key"]: {name: value for name, value in row.items() if name != "key"} for row in rows}

    def discard(self, keys: Collection[str]) -> None:
        """Takes the rows with these keys out of the file; nobody may be appending to it."""
        with self._locked() as file:
            _mend(file)
            file.seek(0)
            kept = [line for line in file if json.loads(line)["key"] not in keys]
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with os.fdopen(handle, "wb") as fresh:
                fresh.writelines(kept)
                fresh.flush()
                os.fsync(fresh.fileno())
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        for key in keys:
            self.rows.pop(key, None)

    def count(self) -> int:
        """How many lines the file has by now, whoever wrote them."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self._counted[0])
                grown = file.read()
            whole = grown[: grown.rfind(b"\n") + 1]
            self._counted[0] += len(whole)
            self._counted[1] += whole.count(b"\n")
        return self._counted[1]

    @contextmanager
    def _locked(self) -> Iterator[BinaryIO]:
        """The file for reading and appending, while nobody else has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+b") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file closes, and by the kernel when the process dies
            yield file


def differences(there: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What two sets of settings do not share, in words."""
    return [
        f"{name} {there.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted({*there, *now})
        if there.get(name) != now.get(name)
    ]


def _torn(tail: bytes) -> bool:
    """Whether an unfinished last line is one of ours; zeros are what a lost disk cache leaves."""
    return tail.startswith(_START) or _START.startswith(tail) or not tail.strip(b"\0")


def _mend(file: BinaryIO) -> None:
    """Cuts off what a killed writer left of a line; under the lock nobody else can be writing it."""
    end = file.seek(0, os.SEEK_END)
    at, tail = end, b""
    while at and b"\n" not in tail:
        at = max(at - 65536, 0)
        file.seek(at)
        tail = file.read(end - at)
    whole = at + tail.rfind(b"\n") + 1
    if whole < end:
        if not _torn(tail[tail.rfind(b"\n") + 1 :]):
            raise SpecError(f"{file.name} ends with text that is no row of a run", hint="choose another file")
        file.truncate(whole)
