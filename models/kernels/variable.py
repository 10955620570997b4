"""The environment variable that forces one version of the kernels."""

from __future__ import annotations

import os

VARIABLE = "PARDEC_KERNELS"


def forced() -> str:
    """What the variable says, "auto" where it says nothing."""
    return os.environ.get(VARIABLE) or "auto"
