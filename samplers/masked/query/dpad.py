"""Keeps a random part of the masks after the block, fewer the farther away; the model does not see the others.

DPad: Efficient Diffusion Language Models with Suffix Dropout, https://arxiv.org/abs/2508.14148

    a mask at distance d < window after the block stays with probability scale * N(x; 0, 1), x = d k / window,
    N the density of the standard normal distribution; farther masks do not stay

Drawn when a block is entered, by the row's seed, the block and the position. Every position keeps its number, and with
it the angles of its keys. What is left out is neither queried nor attended to: a forward is shorter, with any cache.
The paper's settings are k 4, scale 2, window 256 for GSM8K, and 3, 2.3, 512 for HumanEval.
Deviates from the authors' code: tokens that were given after the block stay; a row ends by `eos`, where it fills all
blocks after one that has an end token. That d is 0 at the first position after the block, and that each mask is drawn
by itself, is pardec's reading of the rule: the part of the code that draws has not been compared.
Exact: no.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar

import numpy as np
import torch

from ...registry import register
from ..contracts import Canvas, Request
from .suffix import SuffixQuery


@register("dpad", checked="reference:reference.naive_query.dpad")
class SuffixDropout(SuffixQuery):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"window": (512, 256, 128)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"window": (512, 256, 128, 64, 32)}

    k: Annotated[float, "standard deviations that the window spans"] = 4.0
    scale: Annotated[float, "factor of the Gaussian density that gives the probability to stay"] = 2.0
    window: Annotated[int, "positions after the block in which some masks stay visible"] = 256

    def __post_init__(self) -> None:
        self.require("k", "scale", "window", least=0)

    def survivors(self, distance: np.ndarray, canvas: Canvas, request: Request) -> np.ndarray:
        x = distance * (self.k / max(self.window, 1))
        probability = self.scale / math.sqrt(2 * math.pi) * np.exp(-x * x / 2)
        positions = torch.arange(canvas.length).expand(len(canvas), -1)
        uniform = request.source.uniform(canvas.rows, canvas.block_start, positions, "suffix").numpy()
        survivors: np.ndarray = (distance >= 0) & (distance < self.window) & (uniform < probability)
        return survivors
