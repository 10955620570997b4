"""Where what is prepared once is saved: compiled kernels, tables."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """$PARDEC_CACHE, else $XDG_CACHE_HOME/pardec, else ~/.cache/pardec."""
    if own := os.environ.get("PARDEC_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path(os.path.expanduser("~")) / ".cache") / "pardec"
