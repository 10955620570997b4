"""Helpers of the tests of compiled kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pardec.models.files import cache_dir
from pardec.models.kernels.cpu import compiler
from pardec.models.kernels.cpu import library as compiled


def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Gives one test its own cache folder of compiled libraries, and its own time limit of the compiler."""
    monkeypatch.setattr(compiler, "_left", compiler._SECONDS)
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "own"))
    cache_dir._warn_once.cache_clear()
    compiled._warn_too_slow.cache_clear()
    return tmp_path / "own" / "kernels"


def seven_in_c(tmp_path: Path) -> Path:
    """The source of a function that returns 7."""
    source = tmp_path / "seven.c"
    source.write_text("int seven(void) { return 7; }\n")
    return source


def fresh(source: Path) -> Any:
    """The library of a source, loaded as by a process that has not loaded it yet."""
    return compiled.library.__wrapped__(source)
