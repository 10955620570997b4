"""Lumina-DiMOO: LLaDA with an image codebook after its text vocabulary; it draws captions, and writes text.

Lumina-DiMOO: An Omni Diffusion Large Language Model for Multi-Modal Generation and Understanding,
https://arxiv.org/abs/2510.06308
"""

from __future__ import annotations

from dataclasses import replace

from .base import architecture, register
from .llada import LLADA

LUMINA_DIMOO = register(
    replace(
        LLADA,
        name="lumina_dimoo",
        summary="Lumina-DiMOO (images of captions)",
        matches=lambda config: architecture(config) == "LLaDAForMultiModalGeneration",
        imaging="pardec.models.images.dimoo:build",
        text=True,
        draws="text",
        positions=lambda config: None,  # the authors draw pictures that are longer than the length in the config
    )
)
