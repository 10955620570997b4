"""Samplers compared on the same prompts: a run that can go on after a crash, and the table of it.

`compare` decodes, `Run` is what lies in the run's folder, `Table` is what it comes to; `metrics` defines every figure.
"""

from __future__ import annotations

from pardec.comparison.preview import preview
from pardec.comparison.run import Run
from pardec.comparison.runner import compare
from pardec.comparison.table import Table

__all__ = ["Run", "Table", "compare", "preview"]
