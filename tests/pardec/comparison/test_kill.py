"""A run that is killed by SIGKILL and resumed has the rows of an uninterrupted one, each once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import pardec

from .conftest import SPECS, keys, untimed

Small = Callable[..., pardec.Table]


def rows_in(out: Path) -> int:
    file = out / "rows.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def killed(pid: int, out: Path, rng: random.Random, total: int) -> bool:
    """Kills a process at a random time of its run; False if it was done before."""
    target = rows_in(out) + rng.randrange(max(1, total // 4))
    while rows_in(out) < target and os.waitpid(pid, os.WNOHANG) == (0, 0):
        time.sleep(0.001)
    time.sleep(rng.random() * 0.03)
    try:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except (ProcessLookupError, ChildProcessError):
        return False
    return os.WIFSIGNALED(status)


def test_a_killed_run_goes_on_to_the_rows_of_an_uninterrupted_one(
    small: Small, model: pardec.Model, tmp_path: Path
) -> None:
    small(model=model, out=tmp_path / "whole", batch_size=1)
    total = rows_in(tmp_path / "whole")
    out, rng, kills = tmp_path / "run", random.Random(11), 0
    while kills < 3 and rows_in(out) < total:
        pid = os.fork()
        if pid == 0:
            try:
                small(model=model, out=out, batch_size=1, resume=True)
            finally:
                os._exit(0)
        kills += killed(pid, out, rng, total)
    assert kills == 3
    assert 0 < rows_in(out) < total
    small(model=model, out=out, batch_size=1, resume=True)
    assert untimed(out) == untimed(tmp_path / "whole")
    assert sorted(keys(out)) == sorted(set(keys(out)))
    whole = pardec.comparison.Run.load(tmp_path / "whole")
    again = pardec.comparison.Run.load(out)
    assert set(again.traces) == set(whole.traces)
    assert all(again.traces[key].tokens == whole.traces[key].tokens for key in whole.traces)


@pytest.mark.slow
def test_the_command_is_killed_ten_times(folder: Path, prompts: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pardec", "compare", str(folder), "--prompts", str(prompts), "--device", "cpu"]
    command += [part for spec in SPECS for part in ("-s", spec)]
    command += ["-n", "40", "--batch-size", "1", "--seeds", "0,1,2", "--quiet", "--resume", "--out"]
    root = Path(__file__).parents[3]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, tmp_path / "whole"], cwd=root, check=True, env=environment, stdout=subprocess.DEVNULL)
    total = rows_in(tmp_path / "whole")
    out, rng, kills = tmp_path / "run", random.Random(12), 0
    while kills < 10 and rows_in(out) < total:
        started = subprocess.Popen([*command, out], cwd=root, env=environment, stdout=subprocess.DEVNULL)
        before = rows_in(out)
        while started.poll() is None and rows_in(out) == before and rng.random() > 0.002:
            time.sleep(0.01)  # it is still loading, or a kill falls into that
        time.sleep(rng.random() * 0.1)
        started.kill()
        kills += started.wait() == -signal.SIGKILL
    assert kills == 10
    subprocess.run([*command, out], cwd=root, check=True, env=environment, stdout=subprocess.DEVNULL)
    assert untimed(out) == untimed(tmp_path / "whole")
    assert sorted(keys(out)) == sorted(set(keys(out)))
