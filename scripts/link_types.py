"""Lets type checkers see pardec in an editable install of this checkout.

pip finds such an install by a hook that only a running Python asks, so mypy and editors see nothing (`Any`). PEP 561
has a place for types beside a package, `pardec-stubs`; here it is made of links, one per file. Nothing is
imported from there. `scripts/install` runs this with the environment's own Python, each time anew.
"""

from __future__ import annotations

import shutil
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"pardec": ".", "samplers": "samplers", "models": "models"}


def link(folder: Path) -> int:
    """Recreates `folder`; returns the number of files that it links to."""
    shutil.rmtree(folder, ignore_errors=True)
    files = [(floor, file) for floor in FLOORS for file in (ROOT / floor).rglob("*.py")]
    for floor, file in files:
        stub = (folder / FLOORS[floor] / file.relative_to(ROOT / floor)).with_suffix(".pyi")
        stub.parent.mkdir(parents=True, exist_ok=True)
        stub.symlink_to(file)
    return len(files)


if __name__ == "__main__":
    link(Path(sysconfig.get_path("purelib")) / "pardec-stubs")
