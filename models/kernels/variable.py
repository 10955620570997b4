"""The environment variable that forces one version of the kernels."""

from __future__ import annotations

import os

VARIABLE = "PARDEC_KERNELS"


def forced() -> str:
    """The value of the variable, "auto" where it is not set."""
    return os.environ.get(VARIABLE) or "auto"
