"""A file of finished rows from which an interrupted run resumes: JSON lines, appended, one line for each key.

Several processes and runs may append to one file: each append takes a lock, reads the rows that others have appended,
and skips rows whose key the file already has. If the file was deleted or emptied meanwhile, the rows that this process
knows are written again. Readers ignore an incomplete last line, which a killed process leaves; the next append
removes it. Without `fcntl` (on Windows) there is no lock, and only one process may use a file.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

from pardec.models.errors import PardecError, SpecError
from pardec.models.files.json_text import parse

from .output_paths import check_file

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]
_LINE_START = b'{"key": '  # every line begins so, which tells an incomplete line of ours from other text
_OTHERWISE = "choose another file, or start over with --overwrite"
_TAIL_BYTES = 4096  # bytes at the end of what was read that are compared, to see whether the file is still the same


class RowsError(PardecError):
    """A file of rows cannot be read or written."""


def key_of(*parts: Any) -> str:
    """A short digest of plain values that identifies a row."""
    text = json.dumps(parts, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


class RowsFile:
    """The finished rows of a file, by key.

    Args:
        path: it need not exist.
        run: settings written with every row; a file with rows of other settings is refused. Empty where the
            settings are stored elsewhere.
        later: names in `run` that files of earlier versions lack; rows without them pass.
        overwrite: the first append empties the file.
        warn: called with a message, for instance when an incomplete line is dropped.

    Raises:
        SpecError: the file is no file of rows, or has rows of other settings (the message names the differences).
    """

    def __init__(
        self,
        path: Path,
        run: Mapping[str, Any] | None = None,
        *,
        later: Collection[str] = (),
        overwrite: bool = False,
        warn: Callable[[str], object] = lambda text: None,
    ) -> None:
        self.path, self.run, self._later, self._warn = path, dict(run or {}), later, warn
        self.rows: dict[str, Row] = {}
        self._other_keys = set[str]()  # keys that other processes have written since `read`
        self._overwrite = overwrite
        self._end, self._line_count, self._tail = 0, 0, b""  # how much of the file was read, and its last bytes
        self._counted_bytes = self._counted_lines = 0  # what `count` has read so far
        if overwrite:
            with self._translate_errors("read"), self._open() as file:
                self._set_known_end(file, file.seek(0, os.SEEK_END))
        else:
            self.read()

    def read(self) -> dict[str, Row]:
        """The rows that the file has now, by key."""
        self.rows, self._other_keys, self._end, self._line_count = {}, set(), 0, 0
        with self._translate_errors("read"), self._open() as file:
            incomplete = self._catch_up(file)[1]
        if incomplete:
            if not _is_incomplete_row(incomplete):
                raise self._not_a_row(self._line_count + 1, "the line is incomplete")
            self._warn(f"warning: dropping the last line of {self.path}, which was cut short")
        return self.rows

    def check_writable(self) -> None:
        """Raises SpecError if the file cannot be appended to, before any row is computed."""
        check_file(self.path, append=True)

    def _catch_up(self, file: FileIO) -> tuple[dict[str, Row], bytes]:
        """Reads what was appended since the last read: the new rows, and the incomplete line at the end."""
        file.seek(self._end)
        *lines, incomplete = file.readall().split(b"\n")
        added: dict[str, Row] = {}
        for number, line in enumerate(lines, self._line_count + 1):
            row = self._parse(line, number)
            added[row.pop("key")] = row
        self._line_count += len(lines)
        self._set_known_end(file, self._end + sum(map(len, lines)) + len(lines))
        self.rows |= added
        return added, incomplete

    def _set_known_end(self, file: FileIO, end: int) -> None:
        """Notes that the file was read up to `end`."""
        self._end, self._tail = end, _read_before(file, end)

    def _parse(self, line: bytes, number: int) -> Row:
        try:
            row = parse(line)
            if not isinstance(row, dict) or not isinstance(row.get("key"), str):
                raise ValueError('it has no "key"')
        except ValueError as error:
            raise self._not_a_row(number, str(error)) from error
        if self.run:
            self._check(row.pop("run", None), number)
        return row

    def _check(self, run: Any, number: int) -> None:
        if not isinstance(run, dict):
            raise self._not_a_row(number, 'it has no "run"')
        now = {name: value for name, value in self.run.items() if name in run or name not in self._later}
        if run != now:
            raise SpecError(
                f"{self.path} has rows of other settings: {'; '.join(differences(run, now))}",
                hint=_OTHERWISE,
            )

    def _not_a_row(self, number: int, why: str) -> SpecError:
        return SpecError(
            f"{self.path}, line {number} is not a row of a run: {why}",
            hint=_OTHERWISE if self.run else "remove the line; a row that it lacks is decoded again",
        )

    # --- writing ---

    def append(self, rows: Sequence[Row]) -> None:
        """Appends finished rows, each with its "key", in one write; they are on the disk when this returns.

        A row whose key another process has written since `read` is not written again.

        Raises:
            RowsError: they cannot be written; the file is as it was before.
            SpecError: another process wrote rows of other settings, or something else, to the file meanwhile.
        """
        with self._translate_errors("write to"), self._lock() as file:
            if self._overwrite and self._unchanged(file) and file.seek(0, os.SEEK_END) == self._end:
                file.truncate(0)  # else another run has emptied it already, and its rows stay
                self._set_known_end(file, 0)
            missing = dict[str, Row]()
            if self._overwrite or not self._unchanged(file):
                missing, self.rows, self._end, self._line_count = self.rows, {}, 0, 0
            _drop_incomplete_line(file, self.path)
            added, _ = self._catch_up(file)
            self._other_keys.update(added)
            missing = {key: row for key, row in missing.items() if key not in added}
            if missing:
                self._warn(f"warning: {self.path} was deleted or emptied; writing {len(missing)} rows again")
            new_rows = {row["key"]: row for row in rows if row["key"] not in self._other_keys}
            self._write(file, missing | new_rows)
            self._overwrite = False

    def _write(self, file: FileIO, rows: Mapping[str, Row]) -> None:
        run = {"run": self.run} if self.run else {}
        lines = [json.dumps({"key": key, **row, **run}, ensure_ascii=False) + "\n" for key, row in rows.items()]
        remaining = memoryview("".join(lines).encode())
        try:
            while remaining:
                remaining = remaining[file.write(remaining) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # the next append would remove half a line as well
                file.truncate(self._end)
            raise
        self._line_count += len(lines)
        self._set_known_end(file, file.seek(0, os.SEEK_END))
        self.rows |= {key: {name: value for name, value in row.items() if name != "key"} for key, row in rows.items()}

    def _unchanged(self, file: FileIO) -> bool:
        """Whether the file still has what was read from it."""
        return _read_before(file, self._end) == self._tail

    def discard(self, keys: Collection[str]) -> None:
        """Removes the rows with these keys from the file; no other process may be appending to it."""
        with self._translate_errors("write to"), self._lock() as file:
            _drop_incomplete_line(file, self.path)
            file.seek(0)
            remaining = [line for line in file if json.loads(line)["key"] not in keys]
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with os.fdopen(handle, "wb") as copy:
                copy.writelines(remaining)
                copy.flush()
                os.fsync(copy.fileno())
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        with self._translate_errors("read"), self._open() as file:
            self._line_count = len(remaining)
            self._set_known_end(file, sum(map(len, remaining)))
        for key in keys:
            self.rows.pop(key, None)

    def count(self) -> int:
        """The number of lines in the file now, from all processes."""
        if self.path.exists():
            with open(self.path, "rb") as file:
                file.seek(self._counted_bytes)
                tail = file.read()
            lines = tail[: tail.rfind(b"\n") + 1]
            self._counted_bytes += len(lines)
            self._counted_lines += lines.count(b"\n")
        return self._counted_lines

    @contextmanager
    def _open(self) -> Iterator[FileIO]:
        """The file for reading; an empty one if it does not exist."""
        if self.path.exists() and not self.path.is_file():
            what = "a folder" if self.path.is_dir() else "not a regular file"
            raise RowsError(f"{self.path} is {what}, and rows need a file", hint="choose another file")
        try:
            file = FileIO(self.path)
        except FileNotFoundError:
            file = FileIO(os.devnull)
        with file:
            yield file

    @contextmanager
    def _lock(self) -> Iterator[FileIO]:
        """The file for reading and appending, locked against other processes."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with FileIO(self.path, "a+") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)  # released when the file closes or the process ends
                # The process that had the lock before may have replaced the file.
                if not self._is_current(file):
                    continue
                yield file
                return

    def _is_current(self, file: FileIO) -> bool:
        """Whether the path still leads to this open file."""
        try:
            return os.path.samestat(os.fstat(file.fileno()), os.stat(self.path))
        except FileNotFoundError:
            return False

    @contextmanager
    def _translate_errors(self, what: str) -> Iterator[None]:
        """Turns an OSError into a RowsError that names the file and how many rows are safe."""
        try:
            yield
        except OSError as error:
            hint = f"its {len(self.rows)} rows are safe; the same command adds the rest" if self.rows else None
            raise RowsError(f"cannot {what} {self.path}: {error.strerror or error}", hint=hint) from error


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The settings that differ between a file and a run, in words."""
    return [
        f"{name} {before.get(name)!r} there, {now.get(name)!r} now"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _is_incomplete_row(tail: bytes) -> bool:
    """Whether an incomplete last line is a row; a power failure may leave zeros."""
    return tail.startswith(_LINE_START) or _LINE_START.startswith(tail) or not tail.strip(b"\0")


def _read_before(file: FileIO, end: int) -> bytes:
    """The last bytes before `end`."""
    file.seek(max(end - _TAIL_BYTES, 0))
    return file.read(min(end, _TAIL_BYTES))


def _drop_incomplete_line(file: FileIO, path: Path) -> None:
    """Removes an incomplete last line; under the lock no other process can be writing it."""
    end = file.seek(0, os.SEEK_END)
    start, tail = end, b""
    while start and b"\n" not in tail:
        start = max(start - 65536, 0)
        file.seek(start)
        tail = file.read(end - start)
    complete = start + tail.rfind(b"\n") + 1
    if complete < end:
        if not _is_incomplete_row(tail[tail.rfind(b"\n") + 1 :]):
            raise SpecError(f"{path} ends with text that is not a row of a run", hint="choose another file")
        file.truncate(complete)
