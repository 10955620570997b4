"""The models that ship with the package. No torch here: listing them stays cheap."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = Path(__file__).parent.parent / "embedded"
TOKENIZER = EMBEDDED / "tokenizer"  # one tokenizer serves all embedded text models


def embedded_names() -> list[str]:
    """Names of the embedded models, sorted: the folders that hold a `config.json`."""
    return sorted(entry.parent.name for entry in EMBEDDED.glob("*/config.json"))
