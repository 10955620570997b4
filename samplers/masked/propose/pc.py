"""Scores a candidate by its probability, its rarity, and its distance from the start of the block.

PC-Sampler: Position-Aware Calibration of Decoding Bias in Masked Diffusion Models, https://arxiv.org/abs/2508.13021

    score_i = exp(-decay i) min(cap, -p(x_i) ln f(x_i))        i = 0, 1, ... within the block

f is the share of the token in a corpus, 1 / N for one that does not occur among its N tokens: frequent tokens, which
models are sure of everywhere (line ends, ends of text), come later. Without a select in the spec `fixed` is taken, as
published: scores are no probabilities. `decay` 0.25 is for text, 1 for code, 0 where no order is natural.

Deviates from the authors' code, which adds 1e-9 to f. Where no corpus is counted all tokens are equally frequent.
Exact: no; `sequential` is defined in order of confidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pardec.models.model import LanguageModel

from ...ops.frequencies import table_for, token_frequencies
from ...registry import register
from ..contracts import Canvas, Evidence, Proposal, Propose


@register("pc", stage="propose", paper="arXiv:2508.13021", checked="reference:reference.naive_selects.PC")
@dataclass(frozen=True)
class PC(Propose):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"decay": (0.25, 0.0, 1.0)}
    _surprisal: ClassVar[Tensor | None] = None  # [V] -ln f; an instance has its own once a corpus is counted

    decay: Annotated[float, "decay of the score per position of the block"] = 0.25
    cap: Annotated[float, "upper bound of the rarity-weighted probability"] = 10.0
    corpus: Annotated[
        str | None, "token counts: a text file, a .json file, or `tasks`; none: the package's table for the model"
    ] = None

    def __post_init__(self) -> None:
        self.require("decay", "cap", least=0)

    @property
    def default_select(self) -> str:
        return "fixed"

    def fit(self, model: LanguageModel) -> PC:
        corpus = table_for(model) if self.corpus is None else self.corpus
        if corpus is None:
            return self
        counted = replace(self, corpus=corpus)
        object.__setattr__(counted, "_surprisal", -token_frequencies(corpus, model).log().to(model.device))
        return counted

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        tokens, distribution = evidence.draw(canvas), evidence.distribution
        rarity = math.log(distribution.vocab) if self._surprisal is None else self._surprisal[tokens]
        offset = torch.arange(tokens.shape[1], device=tokens.device)
        score = (distribution.probability(tokens) * rarity).clamp(max=self.cap) * (-self.decay * offset).exp()
        return evidence.propose(tokens, score)
