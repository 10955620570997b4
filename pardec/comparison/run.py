"""A run on disk: its configuration and environment, every finished row, and the results that can be replayed.

config.json        the resolved request; a run can be resumed only with the same one
environment.json   versions and machine at the start
rows.jsonl         one line per unit of work, appended
traces/KEY/        the full results of a few prompts
report.*           rewritten whenever a run ends
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pardec.models.errors import PardecError, SpecError
from pardec.models.files.json_text import parse

from ..io.jsonl import Row, RowsFile, differences
from ..io.saving import write_file
from ..result import Result

FORMAT = "pardec.comparison/1"


@dataclass(frozen=True, eq=False)
class Run:
    """The data of tables and reports. `traces` maps the keys of rows to one-row results."""

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    rows: list[Row]
    traces: Mapping[str, Result]

    @classmethod
    def load(cls, folder: str | Path) -> Run:
        """Reads a run's folder, finished or not. Raises SpecError if there is no run."""
        home = Path(folder)
        config = read_config(home)
        if config is None:
            raise SpecError(f"{home} holds no run", hint='name a folder that "pardec compare --out" wrote')
        rows = RowsFile(home / "rows.jsonl").rows
        environment = _read(home / "environment.json")
        folder = home / "traces"
        names = (
            {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        )  # a key that is a path is in none
        traces = {key: Result.load(folder / key) for key in rows if key in names and (folder / key).is_dir()}
        return cls(config, environment, [{"key": key, **row} for key, row in rows.items()], traces)


class Folder:
    """The folder of a run in progress; it need not exist yet.

    The "where" entry of `config` may change between runs; `warn` is called with warnings.
    """

    def __init__(self, home: Path, config: Mapping[str, Any], warn: Callable[[str], object]) -> None:
        self.home, self.config, self._warn = home, config, warn
        self.traces = home / "traces"

    def start(self, environment: Mapping[str, Any], *, resume: bool) -> None:
        """Prepares the folder; to be called by one process only.

        Raises:
            SpecError: the folder is not empty and `resume` is off, it holds no run, or a run with another config.
        """
        previous = self.existing(resume=resume)
        if previous is not None:
            if previous.get("cost_ratio") != (cost_ratio := self.config.get("cost_ratio")):
                self._write("config.json", {**previous, "cost_ratio": cost_ratio})
            for partial in self.traces.glob(".*"):  # a result that was being saved when the run was killed
                shutil.rmtree(partial, ignore_errors=True)
            return
        try:
            self.traces.mkdir(parents=True, exist_ok=True)
            self._write("environment.json", environment)
            self._write("config.json", self.config)
        except OSError as error:
            raise PardecError(f"cannot write to {self.home}: {error.strerror}", hint="choose another folder") from error

    def existing(self, *, resume: bool) -> dict[str, Any] | None:
        """The config of the run to resume, or None for a new run; writes nothing. Raises what `start` raises."""
        entries = [entry for entry in self.home.iterdir() if entry.name[0] != "."] if self.home.is_dir() else []
        previous = read_config(self.home)
        if previous is not None and resume:
            self._check(previous)
            return previous
        if entries:
            problem = "holds a run already" if previous is not None else "is not empty, and holds no run"
            resuming = "resume=True continues it; or " if previous is not None else ""
            raise SpecError(f"{self.home} {problem}", hint=f"{resuming}choose another folder")
        return None

    def rows(self) -> RowsFile:
        """The finished rows."""
        return RowsFile(self.home / "rows.jsonl", warn=self._warn)

    def forget_failed(self) -> None:
        """Removes failed rows, so that they are decoded again; for one process, before any process appends."""
        file = RowsFile(self.home / "rows.jsonl")
        failed = {key for key, row in file.rows.items() if row.get("error") is not None}
        if failed:
            file.discard(failed)

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        write_file(self.home / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")

    def _check(self, previous: Mapping[str, Any]) -> None:
        try:
            old, new = _comparable(previous), _comparable(json.loads(json.dumps(self.config)))
            if "checkpoint" not in old:  # an earlier version wrote it
                new.pop("checkpoint", None)
            changes = [] if old == new else differences(_flattened(old), _flattened(new))
        except (LookupError, TypeError, AttributeError) as error:
            file = self.home / "config.json"
            raise SpecError(f"{file} is damaged: {error!r}", hint="choose another folder") from error
        if old != new:
            difference = "; ".join(changes) or "an older version wrote it"
            raise SpecError(
                f"{self.home} holds a run with other settings: {difference}",
                hint="choose another folder for the new run, or repeat the settings of that one",
            )


def read_config(home: Path) -> dict[str, Any] | None:
    """The config of the run in a folder; None if there is no run."""
    if not (home / "config.json").is_file():
        return None
    config = _read(home / "config.json")
    return config if config.get("format") == FORMAT else None


def _read(file: Path) -> dict[str, Any]:
    """The JSON object in a file of a run. Raises SpecError if it cannot be read."""
    try:
        value = parse(file.read_bytes())
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise SpecError(f"{file} is damaged: {reason}", hint="choose another folder") from error
    return value if isinstance(value, dict) else {}


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a config that must be equal to resume a run; prompt files may move, table settings may change."""
    variable = dict.fromkeys(("where", "notes", "cost_ratio"))
    return {**config, **variable, "tasks": [{**task, "file": None} for task in config["tasks"]]}


def _flattened(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config as a flat dictionary, for readable differences."""
    changes = {name: value for name, value in config.items() if name not in ("generate", "samplers", "tasks")}
    changes |= {f"generate {name}": value for name, value in config["generate"].items()}
    for task in config["tasks"]:
        changes |= {f"task {task['name']} {field}": value for field, value in task.items() if field != "name"}
    samplers = [sampler["sampler"] for sampler in config["samplers"] if not sampler["reference"]]
    return {**changes, "samplers": samplers}
