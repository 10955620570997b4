"""Malformed checkpoints, results, prompts, specs, arguments and command lines: each succeeds or ends in one line.

The cases are seeded, and a failure names its seed: `case(name, seed)` of tests/fuzz makes it again. A case that takes
longer than it may is a hang; the bombs run where memory is bounded.
"""

from __future__ import annotations

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

import pardec
from tests import fresh
from tests.fuzz.commands import Commands
from tests.fuzz.surfaces import SURFACES

SECONDS = 30  # that a case may take at most, on a machine that does other things
CHUNK = 30
CASES = {
    "checkpoints": 90, "results": 60, "prompts": 60, "specs": 90, "arguments": 120, "commands": 60, "pictures": 30,
}  # fmt: skip
PARTS = [(name, start) for name, count in CASES.items() for start in range(0, count, CHUNK)]
ROOM = 4 << 30  # bytes beside what a process has that has loaded everything


@pytest.fixture(scope="module")
def surfaces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The requested fuzz surfaces, each created once."""
    return {"": tmp_path_factory.mktemp("fuzz")}


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raises TimeoutError if the Python code inside takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError(f"it took longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(("name", "start"), PARTS, ids=[f"{name}-{start}" for name, start in PARTS])
def test_what_is_malformed_ends_well_or_in_one_line(surfaces: dict[str, Any], name: str, start: int) -> None:
    if name not in surfaces:
        folder = surfaces[""] / name
        folder.mkdir()
        surfaces[name] = {**SURFACES, "commands": Commands}[name](folder)
    failed = []
    for seed in range(start, start + CHUNK):
        told, use = surfaces[name].case(Random(f"{name} {seed}"))
        try:
            with within(SECONDS):
                use()
        except pardec.PardecError as error:
            if "\n" in str(error) or len(str(error)) > 1100:
                failed.append(f"seed {seed}, {told}: no one line but {str(error)[:200]!r}")
        except Exception as error:
            failed.append(f"seed {seed}, {told}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(failed)


def test_there_are_at_least_five_hundred_cases() -> None:
    assert sum(CASES.values()) >= 500


def test_bombs_are_refused_within_bounds_of_memory_and_time(tmp_path: Path) -> None:
    """In a separate process, which an accepted bomb would end."""
    code = f"from tests.test_fuzz import bombs; bombs({str(tmp_path)!r})"
    [done] = fresh.results([{"language": "python", "code": code}], tmp_path)
    assert done["code"] == 0, done["told"][-4000:]
    assert done["told"].count(" refused\n") > 20


def bombs(folder: str) -> None:
    """Reports each refused bomb; stops at the first that was not refused."""
    from tests.fuzz import bombs

    made = bombs.Bombs(Path(folder))
    with open("/proc/self/statm", encoding="ascii") as told:
        has = int(told.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (has + ROOM, resource.RLIM_INFINITY))
    for name, use in made.cases():
        try:
            with within(SECONDS):
                use()
        except pardec.PardecError as error:
            if "out of memory" in str(error):
                raise AssertionError(f"{name}: {error}") from error
            print(f"{name} refused")
        else:
            raise AssertionError(f"{name} was taken")
