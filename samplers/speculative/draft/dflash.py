"""Drafts a block in one pass: masks denoised behind the target's states. DFlash, DFlash 2, DSpark.

DFlash: Block Diffusion for Flash Speculative Decoding, https://arxiv.org/abs/2602.06036
DSpark, https://arxiv.org/abs/2607.05147
DFlash 2, https://github.com/z-lab/dflash

    q_j(.) of the token j places behind the last one, j = 1 .. block - 1, all of one pass over [last, mask, mask, ..]
    DSpark:  q_j(. | x_(j-1)) = softmax(logits_j + W2 W1[x_(j-1)]), j = 1 .. block, x_0 the last token
    DFlash 2:  q_j(. | x_(j-1)) = softmax(logits_j + <A[x_(j-1)] * H h_j, B[.]>) over the 16 highest of logits_j

The folder decides which it is (see `models.draft_modules.dflash`). Trees over these are DDTree's with the shape
`dyspec` (https://arxiv.org/abs/2604.12989). Where a folder has a confidence head, length controllers are told its
estimate a_j of an acceptance and not the highest probability: `fallback:below=...` is the authors' cut.

Deviates from the authors' code: rows of any lengths in a batch; every block has its full width, at the end of a text,
too, so that a draft does not depend on the room that is left; q of DFlash 2 has the request's filters, theirs has none.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from pardec.models.hidden import Hidden

from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ._block import BlockState
from ._module import ModuleDrafter


@register(
    "dflash",
    stage="draft",
    paper="arXiv:2602.06036",
    exact="greedy",
    checked="reference:reference.naive_dflash.NaiveDFlash joint",
)
@dataclass(frozen=True)
class DFlash(ModuleDrafter):
    one_pass: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (15, 7, 4)}

    k: Annotated[int, "tokens drafted, which is how deep a tree grows; at most those of a block"] = 15
    taps: Annotated[str | None, "layers whose outputs it reads, as 1-9-17; by default its config's"] = None

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.taps is None else (("taps", self.taps),)

    def start(self, context: DecodeContext) -> BlockState:
        return BlockState(context, self.fitting_module(context))

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: BlockState) -> None:
        state.read_prompt(rows, hidden)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: BlockState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: BlockState) -> None:
        state.follow(outcome)
