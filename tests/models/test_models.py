from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import pardec.models


def test_everything_exported_is_there_and_sorted():
    assert pardec.models.__all__ == sorted(pardec.models.__all__)
    assert all(hasattr(pardec.models, name) for name in pardec.models.__all__)
    assert set(pardec.models.__all__) <= set(dir(pardec.models))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        pardec.models.nothing  # noqa: B018


def test_under_another_name_it_is_not_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(pardec.models.__file__).parents[1]))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    with pytest.raises(ImportError, match=r"import this package as 'pardec\.models', not as 'models'"):
        importlib.import_module("models")
