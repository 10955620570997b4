"""Compatible pairs of methods, families and request features are as recorded."""

from __future__ import annotations

import difflib

from tests.samplers import refused_pairs


def test_recorded_pairs_are_refused_and_no_others() -> None:
    found, recorded = refused_pairs.records().splitlines(), refused_pairs.FILE.read_text().splitlines()
    changed = [
        line for line in difflib.unified_diff(recorded, found, n=0, lineterm="") if line[:3] not in ("---", "+++")
    ]
    told = "after a change on purpose, and for each new method: .venv/bin/python -m tests.samplers.refused_pairs"
    assert not changed, "\n".join([told, *changed])
