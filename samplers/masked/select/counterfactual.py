"""Commits a candidate that stays the likeliest when the other likely tokens are filled in.

LEAP: Look-Ahead Parallel Decoding for Diffusion Language Models, https://arxiv.org/abs/2605.10980

    drafts  = the open positions of the block whose likeliest token had a probability > draft in the last forward
    commit  = {i : p_i >= tau and argmax p_i = argmax p'_i},  p' its prediction where all other drafts are filled in

p' comes from the same forward, by copies of the block's positions after the canvas, which does not see them: tokens of
the drafts, and a copy of each open position that sees them in place of their masks (`DraftedForward`). A forward
computes up to two positions more for each open one of the block.
The summary of the paper that we know does not fix the layout of the copies; this one is ours: a copy that predicts i
stands where i is predicted, and sees neither a draft of i nor its own original. In a block's first step there are no
drafts, and p' = p.
Exact: no.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

from torch import Tensor

from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import CAUSAL_KINDS, Canvas, Proposal, Select


@register("counterfactual", checked="reference:samplers.masked.test_counterfactual.naive")
class Counterfactual(Select):
    provides = frozenset({Trait.LEAVE_ONE_OUT, Trait.GOES_BY_POSITION})  # drafts are kept by position
    conflicts: ClassVar[Reasons] = {
        Trait.LEAVE_ONE_OUT: Why("{me} and {other} both add copies of the block to a forward", "keep one"),
        Trait.BRANCHES: Why("{me} needs new predictions of its drafts, and {other} decides by old ones", "keep one"),
        Trait.READS_ATTENTION: Why("{me} adds copies of the block, and {does} of the canvas alone", "keep one"),
        Trait.HIDES_POSITIONS: Why("{me} adds copies after the canvas, and {does}", "keep one"),
        **dict.fromkeys(CAUSAL_KINDS, Why("{me} needs bidirectional attention, and {does}", "use threshold")),
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.7, 0.8, 0.6)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4)}

    tau: Annotated[float, "least score of a committed candidate, a probability"] = 0.7
    draft: Annotated[float, "tokens at least this probable are filled in, for the second prediction"] = 0.2

    def __post_init__(self) -> None:
        self.require("tau", "draft", least=0, most=1)

    @property
    def drafts_above(self) -> float:
        return self.draft

    def select(self, proposal: Proposal, canvas: Canvas, state: None) -> Tensor:
        first, second = proposal.evidence.distribution, proposal.evidence.leave_one_out
        assert second is not None, "the loop gives it to a stage that needs it"
        return proposal.eligible & (proposal.score >= self.tau) & (first.greedy[0] == second.greedy[0])
