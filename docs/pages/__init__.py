"""Writes the pages that are made from the registry, the command line and the committed benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pages import benchmarks, choosing, claims, cli, compatibility, methods, papers, tables

__all__ = ["compatibility", "papers", "write"]


def write(docs: Path) -> None:
    """Writes every generated page below `docs`, and removes those that are no longer generated."""
    measured = benchmarks.read(docs.parent / "benchmarks")
    made: Mapping[str, str] = {
        **methods.pages(measured),
        **benchmarks.pages(docs.parent / "benchmarks"),
        **cli.pages(),
        **tables.pages(),
        **choosing.snippets(measured),
        **claims.snippets(docs.parent / "benchmarks"),
    }
    for folder in {(docs / name).parent for name in made}:
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.iterdir():
            if str(old.relative_to(docs)) not in made:
                old.unlink()
    for name, text in made.items():
        path = docs / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:  # Sphinx builds again what is newer
            path.write_text(text, encoding="utf-8")
