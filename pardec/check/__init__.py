"""Decodes with and without a drafter or cache, and says whether the output is what the sampler promises."""

from __future__ import annotations

from .report import Check
from .run import check

__all__ = ["Check", "check"]
