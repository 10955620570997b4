"""The examples in docstrings, on the embedded models."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def modules() -> list[str]:
    files = [file for floor in ("pardec", "samplers", "models") for file in (ROOT / floor).rglob("*.py")]
    names = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files if ">>> " in file.read_text()]
    return sorted(("" if name.startswith("pardec") else "pardec.") + name.removesuffix(".__init__") for name in names)


@pytest.mark.parametrize("name", modules())
def test_examples(name: str) -> None:
    module = importlib.import_module(name)
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert found.failed == 0
