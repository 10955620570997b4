"""A run on the disk: what was asked, where, every finished row, and the results that can be replayed.

config.json        what was asked, resolved; a run goes on only with the same
environment.json   versions and machine, when it began
rows.jsonl         one line a unit of work, appended
traces/KEY/        the results of a few prompts
report.*           made anew at each end
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardec.models.errors import PardecError, SpecError
from pardec.models.loading.json_text import parse

from ..io.jsonl import Row, RowsFile, differences
from ..io.saving import write_file
from ..result import Result

FORMAT = "pardec.comparison/1"


@dataclass(frozen=True, eq=False)
class Run:
    """What tables and reports are made of. `traces` has one-row results by the key of their row."""

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: list[Row]
    traces: Mapping[str, Result]

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Reads a run's folder, finished or not. Raises SpecError where there is no run."""
        home = Path(folder)
        config = read_config(home)
        if config is None:
            raise SpecError(f"{home} holds no run", hint='name a folder that "pardec compare --out" wrote')
        rows = RowsFile(home / "rows.jsonl").rows
        environment = _read(home / "environment.json")
        folder = home / "traces"
        kept = {path.name for path in folder.iterdir()} if folder.is_dir() else set()  # a key that is a path is in none
        traces = {key: Result.load(folder / key) for key in rows if key in kept and (folder / key).is_dir()}
        return cls(config, environment, [{"key": key, **row} for key, row in rows.items()], traces)


class Folder:
    """The folder of a run that is being made, which need not exist.

    What `config` has under "where" may differ from run to run; `warn` is told what is worth knowing.
    """

    def __init__(self, home: Path, config: Mapping[str, Any], warn: Callable[[str], object]) -> None:
        self.home, self.config, self._warn = home, config, warn
        self.traces = home / "traces"

    def start(self, environment: Mapping[str, Any], *, resume: bool) -> None:
        """Makes the folder ready; for one process.

        Raises:
            SpecError: something is there and `resume` is not asked for, it is no run, or it is one of something else.
        """
        before = self.found(resume=resume)
        if before is not None:
            if before.get("cost_ratio") != (asked := self.config.get("cost_ratio")):
                self._write("config.json", {**before, "cost_ratio": asked})
            for torn in self.traces.glob(".*"):  # a result that was being saved when the run was killed
                shutil.rmtree(torn, ignore_errors=True)
            return
        try:
            self.traces.mkdir(parents=True, exist_ok=True)
            self._write("environment.json", environment)
            self._write("config.json", self.config)
        except OSError as error:
            raise PardecError(f"cannot write to {self.home}: {error.strerror}", hint="choose another folder") from error

    def found(self, *, resume: bool) -> dict[str, Any] | None:
        """The config of the run to go on with, None where one begins; writes nothing. Raises what `start` does."""
        there = [entry for entry in self.home.iterdir() if entry.name[0] != "."] if self.home.is_dir() else []
        before = read_config(self.home)
        if before is not None and resume:
            self._check(before)
            return before
        if there:
            what = "holds a run already" if before is not None else "is not empty, and holds no run"
            resuming = "--resume goes on with it; or " if before is not None else ""
            raise SpecError(f"{self.home} {what}", hint=f"{resuming}choose another folder")
        return None

    def rows(self) -> RowsFile:
        """The rows made so far."""
        return RowsFile(self.home / "rows.jsonl", warn=self._warn)

    def forget_failed(self) -> None:
        """Takes failed rows out, so that they are made again; for one process, before anybody appends."""
        file = RowsFile(self.home / "rows.jsonl")
        failed = {key for key, row in file.rows.items() if row.get("error") is not None}
        if failed:
            file.discard(failed)

    def _write(self, name: str, held: Mapping[str, Any]) -> None:
        write_file(self.home / name, json.dumps(held, indent=1, ensure_ascii=False) + "\n")

    def _check(self, before: Mapping[str, Any]) -> None:
        try:
            there, now = _comparable(before), _comparable(json.loads(json.dumps(self.config)))
            changes = [] if there == now else differences(_flattened(there), _flattened(now))
        except (LookupError, TypeError, AttributeError) as error:
            file = self.home / "config.json"
            raise SpecError(f"{file} is damaged: {error!r}", hint="choose another folder") from error
        if there != now:
            what = "; ".join(changes) or "something of an older version"
            raise SpecError(
                f"{self.home} holds a run of something else: {what}",
                hint="choose another folder, or ask for the same again",
            )


def read_config(home: Path) -> dict[str, Any] | None:
    """The config of the run in a folder; None where there is none."""
    if not (home / "config.json").is_file():
        return None
    held = _read(home / "config.json")
    return held if held.get("format") == FORMAT else None


def _read(file: Path) -> dict[str, Any]:
    """The object in a file of a run. Raises SpecError where there is none."""
    try:
        held = parse(file.read_bytes())
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{file} is damaged: {why}", hint="choose another folder") from error
    return held if isinstance(held, dict) else {}


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """What must be the same for a run to go on: prompts may lie elsewhere, as long as they are the same, and what
    only the table is made with may change."""
    free = dict.fromkeys(("where", "notes", "cost_ratio"))
    return {**config, **free, "tasks": [{**task, "file": None} for task in config["tasks"]]}


def _flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as a person compares it."""
    changes = {name: value for name, value in config.items() if name not in ("generate", "samplers", "tasks")}
    changes |= {f"generate {name}": value for name, value in config["generate"].items()}
    for task in config["tasks"]:
        changes |= {f"task {task['name']} {field}": value for field, value in task.items() if field != "name"}
    samplers = [sampler["sampler"] for sampler in config["samplers"] if not sampler["reference"]]
    return {**changes, "samplers": samplers}
