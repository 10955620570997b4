"""The tests of transfers, in a process of their own: the fake device is one for all of PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import fresh

CODE = """
import os, sys
for name in [name for name in os.environ if name.startswith("PYTEST_")]:
    del os.environ[name]
os.environ["PARDEC_FAKE_DEVICE"] = "1"
import pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", FILE]))
"""


@pytest.mark.timeout(600)
def test_transfers_between_host_and_device(tmp_path: Path) -> None:
    file = str(Path(__file__).with_name("test_transfers.py"))
    [run] = fresh.results([{"language": "python", "code": CODE.replace("FILE", repr(file))}], tmp_path)
    assert run["code"] == 0, run["told"][-4000:]
    assert "passed" in run["told"] or "%]" in run["told"]
