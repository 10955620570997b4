"""A run that computes squares, which tests start in separate processes: python toy_run.py EXECUTOR FOLDER JSON.

It skips the rows in FOLDER/rows.jsonl, and prints the final number of rows. JSON may name units: `kills`
ends its process the first time, `deadly` every time, `bad` raises; `loads` says whether a worker can start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pardec.executors import executor
from pardec.io.jsonl import RowsFile

UNITS = 24


class Squares:
    def __init__(self, folder: str, **asked: Any) -> None:
        self.folder, self.asked = folder, asked

    def worker(self) -> Squaring:
        if not self.asked.get("loads", True):
            raise RuntimeError("no weights")
        return Squaring(self)


class Squaring:
    def __init__(self, job: Squares) -> None:
        self.asked, self.mark = job.asked, Path(job.folder) / "killed"

    def run(self, batch: Sequence[int]) -> Iterator[list[dict[str, Any]]]:
        time.sleep(self.asked.get("seconds", 0.2))
        for unit in batch:
            if unit == self.asked.get("bad"):
                raise ValueError(f"unit {unit} is bad")
            if unit == self.asked.get("deadly") or (unit == self.asked.get("kills") and not self.mark.exists()):
                self.mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        yield [{"key": str(unit), "square": unit * unit, "pid": os.getpid()} for unit in batch]


def main(name: str, folder: str, asked: str) -> None:
    crew = executor(name, workers=None if name == "local" else 2)
    file = RowsFile(Path(folder) / "rows.jsonl")
    todo = [unit for unit in range(UNITS) if str(unit) not in file.rows]
    batches = [todo[start : start + 3] for start in range(0, len(todo), 3)]
    try:
        crew.run(Squares(folder, **json.loads(asked)), batches, file.append)
    finally:
        if crew.leads:
            print(len(file.read()))


if __name__ == "__main__":
    main(*sys.argv[1:])
