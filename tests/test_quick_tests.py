"""`scripts/test --quick NAME` runs lint on a method's or family's files, its tests, and its cases of shared tests."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import quick_tests

from tests.conftest import _of_method

ROOT = Path(__file__).resolve().parents[1]


def test_quick_runs_lint_own_tests_and_contract_cases(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        commands.append(command[2:])
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(quick_tests.subprocess, "run", run)
    assert quick_tests.main("localleap", "-x") == 0
    check, form, tests = commands
    own = ["samplers/masked/widen/localleap.py", "tests/samplers/masked/test_localleap.py"]
    assert (check, form) == (["ruff", "check", *own], ["ruff", "format", "--check", *own])
    assert tests[:2] == ["pytest", own[1]]
    assert tests[-3:] == ["--method", "localleap", "-x"]
    shared = tests[2:-3]
    assert {"tests/samplers/masked/test_contract.py", "tests/samplers/test_registry.py"} <= set(shared)
    assert not any("speculative" in file for file in shared)
    assert [quick_tests.main(name) for name in ("nosuch", "../x")] == [2, 2]
    assert quick_tests.main("nemotron") == 0
    families = ["tests/models/families/test_config_keys.py", "tests/models/families/test_families.py"]
    assert commands[-3][-1] == "tests/models/families/test_nemotron.py"
    assert commands[-1][1:] == ["tests/models/families/test_nemotron.py", *families, "--method", "nemotron"]
    assert quick_tests.main("dsb") == 0
    assert {"tests/samplers/masked/test_dsb.py", "tests/samplers/masked/test_blocks_contract.py"} <= set(commands[-1])
    ids = {"::test_a[localleap+fixed@dual-0.0]": True, "::test_a[masked/localleap]": True, "::test_a[leap]": False}
    for node, wanted in ids.items():
        item: Any = SimpleNamespace(path=ROOT / "tests/samplers/masked/test_contract.py", nodeid=node)
        assert _of_method(item, "localleap") is wanted
    item.path = ROOT / own[1]
    assert _of_method(item, "localleap")
