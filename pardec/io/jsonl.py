"""A file of finished rows that a run can go on from: JSON lines, appended, one line a key.

Several processes and several runs may write to one file: every append holds a lock, takes in what others appended
before it, and leaves out rows whose key has come meanwhile. Where the file was deleted or begun anew, the rows that
this process knows are written again. What a killed writer left of a line is dropped, by readers at once and from
the file with the next append. Where there is no `fcntl` (Windows) there is no lock, and a file is for one process.
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
from pardec.models.loading.json_text import parse

from .output_paths import check_file

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

Row = dict[str, Any]
_START = b'{"key": '  # how every line begins; a torn one is told from somebody else's text by it
_LOOK = 4096  # bytes before the point up to which the file is known, that show whether it is still the same file


class RowsError(PardecError):
    """A file of rows cannot be read or written."""


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
        self._others = set[str]()  # keys that other processes have written since `read`
        self._over = overwrite
        self._end, self._lines, self._tail = 0, 0, b""  # how far the file is known, and what stands before that point
        self._counted = [0, 0]  # bytes looked at, lines seen in them
        if overwrite:
            with self._failing("read"), self._reading() as file:
                self._known(file, file.seek(0, os.SEEK_END))
        else:
            self.read()

    def read(self) -> dict[str, Row]:
        """The rows as they stand in the file now, by key."""
        self.rows, self._others, self._end, self._lines = {}, set(), 0, 0
        with self._failing("read"), self._reading() as file:
            torn = self._catch_up(file)[1]
        if torn:
            if not _torn(torn):
                raise self._foreign(self._lines + 1, "the line does not end")
            self._warn(f"warning: dropping the last line of {self.path}, which was cut short")
        return self.rows

    def check_place(self) -> None:
        """Raises SpecError where nothing could be appended, so that it is told before there is a row."""
        check_file(self.path, added=True)

    def _catch_up(self, file: FileIO) -> tuple[dict[str, Row], bytes]:
        """Takes in what was appended since the last look: those rows, and what stands behind the last whole line."""
        file.seek(self._end)
        *lines, torn = file.readall().split(b"\n")
        added: dict[str, Row] = {}
        for number, line in enumerate(lines, self._lines + 1):
            row = self._parsed(line, number)
            added[row.pop("key")] = row
        self._lines += len(lines)
        self._known(file, self._end + sum(map(len, lines)) + len(lines))
        self.rows |= added
        return added, torn

    def _known(self, file: FileIO, end: int) -> None:
        """Notes that the file is known up to `end`."""
        self._end, self._tail = end, _before(file, end)

    def _parsed(self, line: bytes, number: int) -> Row:
        try:
            row = parse(line)
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
        """Adds finished rows, each with its "key", in one write; they are on the disk when this returns.

        A row whose key another process has written since `read` is there already, and not written again.

        Raises:
            RowsError: they cannot be written; the file has what it had before.
            SpecError: somebody wrote rows of other settings, or something else, into the file meanwhile.
        """
        with self._failing("write to"), self._locked() as file:
            if self._over and self._same(file) and file.seek(0, os.SEEK_END) == self._end:
                file.truncate(0)  # else another run has begun it anew, and its rows stay
                self._known(file, 0)
            lost = dict[str, Row]()
            if self._over or not self._same(file):
                lost, self.rows, self._end, self._lines = self.rows, {}, 0, 0
            _mend(file, self.path)
            added, _ = self._catch_up(file)
            self._others.update(added)
            lost = {key: row for key, row in lost.items() if key not in added}
            if lost:
                self._warn(f"warning: {self.path} was deleted or begun anew; writing {len(lost)} rows again")
            fresh = {row["key"]: row for row in rows if row["key"] not in self._others}
            self._write(file, lost | fresh)
            self._over = False

    def _write(self, file: FileIO, rows: Mapping[str, Row]) -> None:
        named = {"run": self.run} if self.run else {}
        lines = [json.dumps({"key": key, **row, **named}, ensure_ascii=False) + "\n" for key, row in rows.items()]
        left = memoryview("".join(lines).encode())
        try:
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        except OSError:
            with suppress(OSError):  # half a line would be cut off by the next append, too
                file.truncate(self._end)
            raise
        self._lines += len(lines)
        self._known(file, file.seek(0, os.SEEK_END))
        self.rows |= {key: {name: value for name, value in row.items() if name != "key"} for key, row in rows.items()}

    def _same(self, file: FileIO) -> bool:
        """Whether the file still has what was known of it."""
        return _before(file, self._end) == self._tail

    def discard(self, keys: Collection[str]) -> None:
        """Takes the rows with these keys out of the file; nobody may be appending to it."""
        with self._failing("write to"), self._locked() as file:
            _mend(file, self.path)
            file.seek(0)
            kept = [line for line in file if json.loads(line)["key"] not in keys]
            handle, name = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}.")
            with os.fdopen(handle, "wb") as fresh:
                fresh.writelines(kept)
                fresh.flush()
                os.fsync(fresh.fileno())
            os.chmod(name, 0o644)
            os.replace(name, self.path)
        with self._failing("read"), self._reading() as file:
            self._lines = len(kept)
            self._known(file, sum(map(len, kept)))
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
    def _reading(self) -> Iterator[FileIO]:
        """The file as it is; an empty one where there is none."""
        if self.path.exists() and not self.path.is_file():
            what = "a folder" if self.path.is_dir() else "no plain file"
            raise RowsError(f"{self.path} is {what}, and rows are kept in a file", hint="choose another -o")
        with FileIO(self.path if self.path.exists() else os.devnull) as file:
            yield file

    @contextmanager
    def _locked(self) -> Iterator[FileIO]:
        """The file for reading and appending, while nobody else has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with FileIO(self.path, "a+") as file:
                if fcntl is not None:
                    fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file closes, and by the kernel when we die
                # Whoever had it before may have put another file into its place.
                if not self.path.exists() or not os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    continue
                yield file
                return

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """Says of an error of the system which file it is about, and what is kept."""
        try:
            yield
        except OSError as error:
            hint = f"the {len(self.rows)} rows it has are kept; the same command makes the rest" if self.rows else None
            raise RowsError(f"cannot {what} {self.path}: {error.strerror or error}", hint=hint) from error


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


def _before(file: FileIO, end: int) -> bytes:
    """What stands before the byte `end`."""
    file.seek(max(end - _LOOK, 0))
    return file.read(min(end, _LOOK))


def _mend(file: FileIO, path: Path) -> None:
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
            raise SpecError(f"{path} ends with text that is no row of a run", hint="choose another file")
        file.truncate(whole)
