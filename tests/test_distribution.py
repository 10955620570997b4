"""The package for others: its install name, and its types when installed from the clone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

from pardec.models.errors import install
from pardec.version import __version__

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


@pytest.mark.slow
def test_a_built_wheel_is_whole_and_decodes_in_an_environment_of_its_own(tmp_path: Path) -> None:
    """The packages that it needs are those of this interpreter; pardec itself comes from the wheel alone."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    floors = [name for name in tracked if name.split("/")[0] in ("pardec", "models", "samplers")]
    for name in (*floors, "pyproject.toml", "setup.py", "README.md", "LICENSE"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tmp_path / "source" / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, tmp_path / "source"], check=True
    )
    [wheel] = tmp_path.glob(f"pardec_engine-{__version__}-*.whl")
    with ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name if name.startswith("pardec/") else f"pardec/{name}" for name in floors}
    home = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    subprocess.run([*pip, "--python", home / "bin" / "python", "install", "--no-deps", "--no-index", wheel], check=True)
    [packages] = home.glob("lib/python*/site-packages")
    (packages / "others.pth").write_text(f"{sysconfig.get_paths()['purelib']}\n")  # a path alone: no editable install
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def told(*command: str) -> str:
        started = [home / "bin" / command[0], *command[1:]]
        done = subprocess.run(started, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert Path(told("python", "-c", "import pardec; print(pardec.__file__)").strip()).parent == packages / "pardec"
    assert told("pardec", "--version") == f"pardec {__version__}\n"
    question = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
    assert told("pardec", "generate", "tiny-dream", "-p", question).strip() == "8 - 3 = 5; answer 5"


def test_every_extra_is_named_where_one_installs() -> None:
    page = (ROOT / "docs" / "getting-started.md").read_text()
    named = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert named == set(PROJECT["optional-dependencies"]) - {"dev"}
