"""Changes the tokens of a noisy canvas that the model would change most surely, a few at every step.

Scaling Behavior of Discrete Diffusion Language Models, https://arxiv.org/abs/2512.10858, appendix A.1; for a canvas
without masks as in Sumi, https://arxiv.org/abs/2606.19005

    gain_i = max_v p_i(v) - p_i(z_i),  p = softmax(logits)
    step: the `tokens` positions of the largest gain take a token drawn from softmax(logits / temperature)

A block begins with random tokens and takes `steps` forwards; positions that no step picks keep them, so `steps` times
`tokens` should be the block's length or more. With `tokens` as many as the block has positions and temperature 0 it is
the authors' greedy sampler, which overwrites all of them with the likeliest tokens.
Read in generation_sumi.py of tohoku-nlp/sumi-7b, whose defaults these are.

Deviates from the authors' code: equal gains go to the lowest position.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ...ops.rank import top
from ...registry import register
from ...traits import Reasons, Trait
from ..contracts import Canvas, Proposal, Revise, Revision
from ..ops.uniform_noise import CONFLICTS, REQUIRES, NoisyState, current_tokens, whole_block


@register("adaptive", checked="reference:reference.naive_uniform.decode")
class Adaptive(Revise):
    provides = frozenset({Trait.WRITES_BLOCKS})
    requires: ClassVar[Reasons] = REQUIRES
    conflicts: ClassVar[Reasons] = CONFLICTS
    default_select = "defer"
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tokens": (1, 2, 4)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tokens": (1, 2, 4, 8)}

    steps: Annotated[int, "forwards of a block"] = 128
    tokens: Annotated[int, "positions that a step changes"] = 1

    def __post_init__(self) -> None:
        self.require("steps", "tokens", least=1)

    def start(self, canvas: Canvas) -> NoisyState:
        return NoisyState.of(canvas)

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: NoisyState) -> Revision:
        evidence, taken = proposal.evidence, state.steps_taken(canvas)
        current = current_tokens(proposal, canvas)
        gain = evidence.distribution.greedy[1] - evidence.distribution.probability(current)
        ours = canvas.eligible | canvas.committed
        count = torch.full((len(gain), 1), self.tokens, device=gain.device)
        picked = top(gain.masked_fill(~ours, -torch.inf), count)
        tokens = torch.where(picked, proposal.tokens, current)
        return whole_block(tokens, evidence.filtered.probability(tokens), taken + 1 < self.steps, canvas)
