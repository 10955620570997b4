"""The tests of transfers, in a process of their own: the fake device is one for all of PyTorch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.timeout(600)
def test_transfers_between_host_and_device() -> None:
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    file = Path(__file__).with_name("test_transfers.py")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(file)],
        env={**own, "PARDEC_FAKE_DEVICE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stdout[-4000:]
    assert "passed" in run.stdout or "%]" in run.stdout
