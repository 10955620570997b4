"""`pardec env`: the environment, for bug reports."""

from __future__ import annotations

import os

from . import options as o
from .common import Json, columns, dump

VARIABLES = ("PARDEC_KERNELS", "OMP_NUM_THREADS", "HF_HOME", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES")


@o.command
def env(json_: Json = False) -> None:
    """Print versions, devices and settings, for bug reports."""
    from ..environment import checkout, machine, versions

    values = {**versions(), **checkout(), **machine()}
    values |= {name: os.environ[name] for name in VARIABLES if name in os.environ}
    if json_:
        dump(values)
    else:
        print(columns(list(values.items())))
