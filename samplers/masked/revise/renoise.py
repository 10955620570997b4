"""Replaces every position that a step does not keep by a random token: decoding with uniform noise, not masks.

DiffusionGemma, https://huggingface.co/google/diffusiongemma-26B-A4B-it; the bound is EB-Sampler's,
https://arxiv.org/abs/2505.24857

Which positions are accepted, and when a canvas ends, `denoise` says; it is taken where the spec names no select.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Canvas, Proposal, Revise, Revision, Update
from ..select.denoise import Denoising, DenoisingState


@register("renoise", checked="reference:models.families.test_diffusion_gemma.published_generate")
class Renoise(Revise):
    provides = frozenset({Trait.RENOISES})
    requires: ClassVar[Reasons] = {
        Trait.MAY_WAIT: Why("{me} needs the select 'denoise', and the select is {other!r}", "leave the select out"),
        Trait.RANDOM_CANVAS: Why(
            "{me} is for models of random canvases, such as DiffusionGemma, and {other} has a mask token",
            "use remdm or wino, which reopen tokens of masked models",
        ),
    }
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)}

    gamma: Annotated[float, "most summed entropy of the accepted positions, without the largest, in nats"] = 0.1
    confidence: Annotated[float, "mean entropy below which a stable canvas ends, in nats"] = 0.005
    steps: Annotated[int, "most steps of a block"] = 48

    def __post_init__(self) -> None:
        self.require("gamma", "confidence", least=0)
        self.require("steps", least=1)

    @property
    def default_select(self) -> str:
        return f"denoise:gamma={self.gamma},confidence={self.confidence},steps={self.steps}"

    def start(self, canvas: Canvas) -> DenoisingState:
        return DenoisingState.of(canvas)

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: DenoisingState) -> Revision:
        rule = Denoising(self.gamma, self.confidence, self.steps)
        accepted, tokens, over = rule.decide(proposal, canvas, state)
        update = Update(accepted, tokens, proposal.evidence.filtered.probability(tokens))
        return Revision(~accepted, update, upload(~over, tokens.device))
