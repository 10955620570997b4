"""The models that ship with the package. No torch here: listing them stays cheap."""

from __future__ import annotations

from pathlib import Path

EMBEDDED = Path(__file__).parent.parent / "embedded"
DRAFTERS = EMBEDDED / "drafters"  # draft modules, which run only with a target
TOKENIZER = EMBEDDED / "tokenizer"  # one tokenizer serves all embedded text models


def embedded_names() -> list[str]:
    """Names of the embedded models, sorted: the folders that hold a `config.json`."""
    return sorted(entry.parent.name for entry in EMBEDDED.glob("*/config.json"))


def embedded_drafters() -> list[str]:
    """Names of the embedded draft modules, sorted."""
    return sorted(entry.parent.name for entry in DRAFTERS.glob("*/card.json"))
