"""Compares samplers on the same prompts: a run that can be resumed after a crash, and its table of metrics.

`compare` decodes, `Run` is the content of a run's folder, `Table` summarizes it; `metrics` defines every figure.
"""

from __future__ import annotations

from .preview import preview
from .run import Run
from .runner import compare
from .table import Table

__all__ = ["Run", "Table", "compare", "preview"]
