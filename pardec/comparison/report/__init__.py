"""The report of a comparison as one self-contained HTML file: table, frontier, replay, commit order, commands."""

from __future__ import annotations

from .page import page

__all__ = ["page"]
