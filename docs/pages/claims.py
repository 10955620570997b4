"""The sections of the committed figures that the page on claims quotes."""

from __future__ import annotations

import re
from pathlib import Path


def snippets(folder: Path) -> dict[str, str]:
    """Each section of `claims.md` without its heading, by the name that the page includes."""
    _, *sections = re.split(r"^## (.+)\n", (folder / "claims.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {
        f"reference/generated/claims-{name.lower()}.txt": text.strip() + "\n"
        for name, text in zip(sections[::2], sections[1::2], strict=True)
    }
