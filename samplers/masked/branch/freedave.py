"""Drafts the coming steps from the last forward and verifies them all in the next one, without loss.

Free Draft-and-Verification: Toward Lossless Parallel Decoding for Diffusion Large Language Models,
https://arxiv.org/abs/2510.00294

    hypothesis 0 is the row; hypothesis i commits to hypothesis i - 1 what the sampler would by the last forward
    one forward of all; step(i) = hypothesis i with what the sampler commits to it by its own prediction
    from 0 on, go to i + 1 as long as hypothesis i + 1 = step(i); the last one, i, survives, and becomes step(i)

Every hypothesis on this way is a state that the sampler without it passes through, and draws are keyed by step and
position: the tokens are the same, greedy or sampled, with any cache whose K/V follow from the tokens alone.
`subset=true` goes to every later hypothesis whose tokens step(i) commits as well, as the paper does with a threshold,
where a step may commit more than a draft: it skips states of the sampler, and is not exact.
Deviates from the published code, which drafts for one row; `eager` drafts, beyond the block, are not built.
Exact: greedy: the output of the sampler without it, greedy or sampled; not with `subset=true`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from ...registry import register
from ..contracts import Branch, Hypotheses, Proposal


@register("freedave", stage="branch", paper="arXiv:2510.00294", exact="greedy", checked="hand")
@dataclass(frozen=True)
class FreeDave(Branch):
    nested = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"drafts": (4, 2, 8)}

    drafts: Annotated[int, "hypotheses of a row beside itself, at most"] = 4
    subset: Annotated[bool, "a draft may be a part of what a step commits"] = False

    def __post_init__(self) -> None:
        self.require("drafts", least=1)

    @property
    def exactly(self) -> bool:
        return not self.subset

    @property
    def exact(self) -> str:
        return "relaxed" if self.subset else "greedy"

    @property
    def most(self) -> int:
        return self.drafts + 1

    def draft(self, number: int, chosen: Tensor, proposal: Proposal) -> Tensor:
        return chosen

    def survivors(self, hypotheses: Hypotheses) -> np.ndarray:
        canvas, window = hypotheses.canvas, hypotheses.canvas.window
        chosen = hypotheses.chosen & canvas.eligible
        # [N, L + 1] the row after the step, the mask id where it is still open.
        after = torch.where(canvas.open, canvas.mask_id, canvas.tokens)
        now = after.clone()
        after.scatter_(1, window, torch.where(chosen, hypotheses.tokens, after.gather(1, window)))
        now_host, after_host = now.cpu().numpy(), after.cpu().numpy()
        best = np.flatnonzero(hypotheses.number == 0)
        for at, first in enumerate(best.tolist()):
            current = first
            rest = range(first + 1, int(best[at + 1]) if at + 1 < len(best) else len(hypotheses.row))
            for other in rest:
                if hypotheses.ended[current]:
                    break
                if self._follows(now_host[current], after_host[current], now_host[other], canvas.mask_id):
                    current = other
                elif not self.subset:
                    break
            best[at] = current
        return best

    def _follows(self, now: np.ndarray, after: np.ndarray, other: np.ndarray, mask_id: int) -> bool:
        if not self.subset:
            return bool((after == other).all())
        known = other != mask_id
        return bool((other[known] == after[known]).all() and (known >= (now != mask_id)).all())
