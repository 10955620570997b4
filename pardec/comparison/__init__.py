"""Samplers compared on the same prompts: a run that can go on after a crash, and the table of it.

`compare` decodes, `Run` is what lies in the run's folder, `Table` is what it comes to; `metrics` defines every figure.
"""

from __future__ import annotations

from .preview import preview
from .run import Run
from .runner import compare
from .table import Table

__all__ = ["Run", "Table", "compare", "preview"]
