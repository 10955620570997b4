"""Compatible pairs of methods, families and request features, and the numbers of parameters, are as recorded."""

from __future__ import annotations

import difflib
from typing import Any

import pytest

from tests.samplers import refused_pairs, refused_values


@pytest.mark.parametrize("kind", [refused_pairs, refused_values])
def test_what_is_recorded_is_refused_and_nothing_else(kind: Any) -> None:
    found, recorded = kind.records().splitlines(), kind.FILE.read_text().splitlines()
    changed = [
        line for line in difflib.unified_diff(recorded, found, n=0, lineterm="") if line[:3] not in ("---", "+++")
    ]
    told = f"after a change on purpose, and for each new method: .venv/bin/python -m {kind.__name__}"
    assert not changed, "\n".join([told, *changed])
