"""findings/run, and the form of the findings, which are not run here."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[1] / "findings"
SCRIPTS = sorted(FOLDER.glob("*.sh"))


def run(folder: Path, *names: str) -> tuple[int, list[str]]:
    ended = subprocess.run([folder / "run", *names], capture_output=True, text=True, check=False)
    return ended.returncode, ended.stdout.splitlines()


def test_run_tells_what_changed_from_what_did_not_run(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "run", tmp_path)
    (tmp_path / "a.sh").write_text("echo guess: one\nexit 0\n")
    (tmp_path / "b.sh").write_text("echo guess: two\necho seen: three\nexit 1\n")
    (tmp_path / "c.sh").write_text("echo no network >&2\nexit 1\n")
    assert run(tmp_path, "a") == (0, ["passed: a"])
    assert run(tmp_path, "findings/a.sh", "b.sh") == (
        1,
        ["passed: a", "changed: b", "    guess: two", "    seen: three"],
    )
    assert run(tmp_path) == (1, [*run(tmp_path, "a", "b")[1], "did not run: c", "    no network"])
    status, lines = run(tmp_path, "d")
    assert (status, lines[0]) == (1, "did not run: d")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_findings_say_what_one_would_guess_and_pin_what_they_install(script: Path) -> None:
    text = script.read_text()
    lines = text.splitlines()
    assert lines[0] == "#!/usr/bin/env bash"
    assert lines[1].startswith("# ")
    assert "set -euo pipefail" in lines
    assert re.search(r'(print\(f?"|echo ")guess', text)
    assert not re.search(r"\bpardec\b", text)
    packages = re.findall(r'^ *"\S*pip\S*".*? (?:install|download) (.*)$', text, re.MULTILINE)
    assert packages
    for package in " ".join(packages).split():
        assert package.startswith(("-", '"', ":all:")) or "==" in package, package
