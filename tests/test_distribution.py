"""The package for others: its install name, and its types when installed from the clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pardec.models.errors import install

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def texts() -> list[Path]:
    """Every file of the tree that people and tools read."""
    places = ["models", "samplers", "pardec", "scripts", "tests", "benchmarks", ".ci"]
    found = [file for place in places for file in (ROOT / place).rglob("*") if file.is_file()]
    kept = {".py", ".md", ".toml", ".txt", ".json", ".html", ".js", ".yml", ".yaml", ""}
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "pyproject.toml")]
    return [*top, *(file for file in found if file.suffix in kept and file != Path(__file__).resolve())]


def test_the_distribution_is_not_called_what_another_project_is_called() -> None:
    assert PROJECT["name"] == "pardec-engine"
    assert PROJECT["scripts"] == {"pardec": "pardec.cli:main"}


def test_no_file_tells_anybody_to_install_that_other_project() -> None:
    wrong = re.compile(r"pardec\\*\[|pip3? install (?:-U |--upgrade )?[\"']?pardec(?![\w-])")
    told = [f"{file.relative_to(ROOT)}: {hit[0]}" for file in texts() if (hit := wrong.search(_read(file)))]
    assert told == []


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_hints_name_extras_that_there_are() -> None:
    extras = PROJECT["optional-dependencies"]
    named = {
        name
        for file in texts()
        if file.suffix == ".py" and "tests" not in file.parts
        for name in re.findall(r"\binstall\([\"'](\w+)[\"']\)", _read(file))
    }
    assert {"quant", "ray", "eval", "captions"} <= named <= set(extras)
    assert install("quant") == 'in the clone of pardec: pip install -e ".[quant]"'


def test_mypy_sees_types_in_an_install_from_the_clone(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    (tmp_path / "use.py").write_text(
        'import pardec\n\nreveal_type(pardec.load("tiny-dream").generate("Tom"))\n'
        "reveal_type(pardec.list_samplers()[0])\nreveal_type(pardec.load)\n"
    )
    subprocess.run([python, ROOT / "scripts" / "link_types.py"], check=True)
    checker = [sys.executable, "-m", "mypy", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    done = subprocess.run(
        [*checker, "--python-executable", str(python), "use.py"],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "MYPYPATH")},
        capture_output=True,
        text=True,
        check=False,
    )
    types = re.findall(r'Revealed type is "([^"]*)', done.stdout)
    assert types[:2] == ["pardec.result.Result", "pardec.samplers.cards.Card"], done.stdout
    assert "quantize: str | None" in types[2].replace("Union[str, None]", "str | None")
