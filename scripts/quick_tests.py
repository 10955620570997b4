"""Checks one method in under a minute: ruff on its files, its own tests, and its cases of the tests over the registry.

    scripts/test --quick NAME [arguments of pytest]

A method's files are those of its name: samplers/**/NAME.py and tests/**/test_NAME.py, or test_NAME_more.py. Of one
without tests of its name, the cases that name it are run in the three files of its loop that mention it most often.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARED = ("test_*contract.py", "test_exact_joint.py", "test_checked.py", "test_registry.py")  # tests over the registry


def files(name: str) -> tuple[list[Path], list[Path], list[Path]]:
    """A method's source files, its own tests, and the tests over the registry of the loops it belongs to."""
    sources = sorted((ROOT / "samplers").rglob(f"{name}.py"))
    own = sorted(file for file in (ROOT / "tests").rglob("test_*.py") if re.match(rf"test_{name}(_.*)?\.py", file.name))
    folder = ROOT / "tests" / "samplers"
    loops = {folder / source.relative_to(ROOT / "samplers").parts[0] for source in sources} or {folder}
    shared = {file for loop in {folder, *loops} for pattern in SHARED for file in loop.glob(pattern)}
    if not own:
        word = re.compile(rf"(?<![a-z0-9]){name}(?![a-z0-9])")
        held = {file: len(word.findall(file.read_text())) for loop in loops for file in loop.glob("test_*.py")}
        shared |= set(sorted(filter(held.get, held), key=lambda file: -held[file])[:3])
    return sources, own, sorted(shared - set(own))


def main(name: str, *more: str) -> int:
    if not re.fullmatch(r"\w+", name):
        print(f"error: {name!r} is no name of a method\nnames: pardec list samplers", file=sys.stderr)
        return 2
    sources, own, shared = files(name)
    if not sources and not own:
        print(f"error: no file samplers/**/{name}.py and no tests/**/test_{name}.py", file=sys.stderr)
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
