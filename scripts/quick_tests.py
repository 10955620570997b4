"""Checks one method or family in about a minute: ruff on its files, its own tests, its cases of the tests over all.

    scripts/test --quick NAME [arguments of pytest]

A method's files are those of its name: samplers/**/NAME.py and tests/**/test_NAME.py, or test_NAME_more.py. A family's
are models/families/NAME.py and the same tests, with the cases that name it in those over all families.
"""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Test files that cover all methods.
SHARED = ("test_*contract.py", "test_row_independence.py", "test_exact_joint.py", "test_checked.py", "test_registry.py")
FAMILIES = ("test_families.py", "test_config_keys.py")  # tests over all checkpoint families
NAMES = "names: pardec list samplers, or the files of models/families"


@cache
def _listed(folder: Path, pattern: str) -> list[Path]:
    return sorted(folder.rglob(pattern))


def files(name: str) -> tuple[list[Path], list[Path], list[Path]]:
    """The source files of a method or family, its own tests, and the tests over all methods or families."""
    sources = [file for file in _listed(ROOT / "samplers", "*.py") if file.stem == name]
    families = [file for file in (ROOT / "models" / "families" / f"{name}.py",) if file.is_file()]
    own = [file for file in _listed(ROOT / "tests", "test_*.py") if f"{file.stem}_".startswith(f"test_{name}_")]
    folder = ROOT / "tests" / "samplers"
    loops = {folder / source.relative_to(ROOT / "samplers").parts[0] for source in sources} or {folder}
    shared = {ROOT / "tests" / "models" / "families" / file for file in FAMILIES if families}
    if sources or not families:
        shared |= {file for loop in {folder, *loops} for pattern in SHARED for file in loop.glob(pattern)}
    return sources + families, own, sorted(shared - set(own))


def main(name: str, *more: str) -> int:
    if not re.fullmatch(r"\w+", name):
        print(f"error: {name!r} is no name of a method or family\n{NAMES}", file=sys.stderr)
        return 2
    sources, own, shared = files(name)
    if not sources and not own:
        looked = f"samplers/**/{name}.py, models/families/{name}.py or tests/**/test_{name}.py"
        print(f"error: there is no file {looked}\n{NAMES}", file=sys.stderr)
        return 2
    paths = [str(file.relative_to(ROOT)) for file in (*sources, *own)]
    failed = 0
    for check in (["check"], ["format", "--check"]):
        failed |= subprocess.run([sys.executable, "-m", "ruff", *check, *paths], cwd=ROOT).returncode
    tests = [str(file.relative_to(ROOT)) for file in (*own, *shared)]
    command = [sys.executable, "-m", "pytest", *tests, "--method", name, *more]
    return subprocess.run(command, cwd=ROOT).returncode or failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
