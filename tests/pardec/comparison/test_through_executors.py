"""A comparison has the same rows with every executor, and resumes after one of its processes was killed."""

from __future__ import annotations

import os
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
ROOT = Path(__file__).parents[3]


def launch(processes: int, *arguments: object) -> subprocess.Popen[bytes]:
    """`pardec compare ...` in processes that torchrun starts."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes), "-m", "pardec"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [*torchrun, "compare", *map(str, arguments), "--executor", "torchrun", "--quiet", "--device", "cpu"]
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.mark.slow
def test_torchrun_has_the_rows_of_one_process_and_survives_a_kill(
    small: Small, folder: Path, prompts: Path, tmp_path: Path
) -> None:
    small(out=tmp_path / "whole", batch_size=1, max_new_tokens=40)
    out = tmp_path / "run"
    options: list[object] = [folder, "--prompts", prompts, "--scorer", "number", "--out", out, "--resume"]
    options += ["-n", 40, "--batch-size", 1, "--raw", *(part for spec in SPECS for part in ("-s", spec))]
    started = launch(2, *options)
    try:
        while started.poll() is None and len(untimed(out)) < 5:
            time.sleep(0.02)
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGKILL)  # torchrun ends the others
    finally:
        started.communicate(timeout=120)
    assert started.returncode != 0
    assert 5 <= len(untimed(out)) < len(untimed(tmp_path / "whole"))
    again = launch(2, *options)
    shown, message = again.communicate(timeout=300)
    assert again.returncode == 0, message.decode()
    assert untimed(out) == untimed(tmp_path / "whole")
    assert sorted(keys(out)) == sorted(set(keys(out)))
    assert shown.decode() == (out / "report.md").read_text()  # one process prints


@pytest.mark.slow
def test_ray_has_the_rows_of_one_process(small: Small, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    small(out=tmp_path / "whole")
    small(out=tmp_path / "run", executor="ray", workers=2)
    assert untimed(tmp_path / "run") == untimed(tmp_path / "whole")
    assert sorted(keys(tmp_path / "run")) == sorted(keys(tmp_path / "whole"))
    assert len(list((tmp_path / "run" / "traces").iterdir())) == 4 * 5
