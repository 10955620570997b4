"""Commits as many positions as keep a bound on their mutual information.

Accelerated Sampling from Masked Diffusion Models via Entropy Bounded Unmasking, https://arxiv.org/abs/2505.24857

    along the order of the scores, commit the longest run 1..m with sum H_i - max H_i <= gamma

The sum without its largest term bounds the mutual information of the run. H is the entropy of the whole distribution
that candidates are drawn from, after temperature, top-p and top-k; by default it gives the order too, the least first.
With `whole=true` the running sum itself has to stay below gamma, as rollout engines of SDAR have it
(https://arxiv.org/abs/2509.06949). Copies that take an entropy of the candidates' probabilities commit other positions.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...registry import register
from ...traits import Trait
from ..contracts import Canvas, Proposal, Select


@register("entropy_bound", checked="golden/sdar_moe reference:reference.naive_selects.entropy_bound")
class EntropyBound(Select):
    default_propose = "entropy"
    default_of = "filtered"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (0.1, 0.01, 0.03, 0.3)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (0.01, 0.03, 0.1, 0.3, 1.0, 2.0)}

    provides = frozenset({Trait.NEEDS_NO_HOST})

    gamma: Annotated[float, "most summed entropy of the committed positions, without the largest, in nats"] = 0.1
    whole: Annotated[bool, "bound the sum of all entropies, the largest included"] = False

    def __post_init__(self) -> None:
        if not self.gamma >= 0:
            raise SpecError(f"entropy_bound: gamma must be an entropy of at least 0 nats, got {self.gamma}")

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        entropy = proposal.evidence.filtered.confidence.entropy
        order = proposal.score.argsort(dim=1, descending=True, stable=True)  # ineligible positions come last
        ranked = entropy.gather(1, order)
        total = ranked.cumsum(1)
        within = total < self.gamma if self.whole else total - ranked.cummax(1).values <= self.gamma
        within[:, 0] = True
        run = within.cumprod(1).bool()
        return torch.zeros_like(run).scatter_(1, order, run) & proposal.eligible
