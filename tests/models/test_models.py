from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

import pardec.models


def test_under_another_name_it_is_not_imported(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(pardec.models.__file__).parents[1]))
    monkeypatch.delitem(sys.modules, "models", raising=False)
    with pytest.raises(ImportError, match=r"import this package as 'pardec\.models', not as 'models'"):
        importlib.import_module("models")
