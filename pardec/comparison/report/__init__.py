"""A comparison as one HTML file without network: table, frontier, replay, commit order, and how to make it again."""

from __future__ import annotations

from .page import page

__all__ = ["page"]
