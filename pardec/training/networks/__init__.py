"""The drafters that can be trained: one file for each kind."""

from __future__ import annotations

from .contracts import Network, Options, Target
from .dflash import DFlash
from .eagle import Eagle
from .hydra import Hydra
from .idlm import MaskLora
from .kangaroo import Kangaroo
from .medusa import Medusa
from .mtp import MtpLayer
from .prompts import Prompts

KINDS: dict[str, type[Network]] = {
    network.kind: network for network in (Eagle, Medusa, Hydra, DFlash, Prompts, Kangaroo, MtpLayer, MaskLora)
}

__all__ = ["KINDS", "Network", "Options", "Target"]
