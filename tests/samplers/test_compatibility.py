"""What goes with what: pairs of methods, and each method with families and features of requests, are as recorded."""

from __future__ import annotations

import difflib

from tests.samplers import refused_pairs


def test_recorded_pairs_are_refused_and_no_others() -> None:
    """`python -m tests.samplers.refused_pairs` writes the file anew; its difference shows what has changed."""
    found, recorded = refused_pairs.records().splitlines(), refused_pairs.FILE.read_text().splitlines()
    changed = [
        line for line in difflib.unified_diff(recorded, found, n=0, lineterm="") if line[:3] not in ("---", "+++")
    ]
    assert not changed, "\n".join(changed)
