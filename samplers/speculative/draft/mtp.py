"""Drafts with the checkpoint's own layer for multi-token prediction (MTP), or with one that was trained for it.

DeepSeek-V3 Technical Report, https://arxiv.org/abs/2412.19437

    q(. | x_1 .. x_i) after the pairs (x_2, h_1) .. (x_i, h_(i-1)),
    h_j = the target's state at position j where x_j is committed, else the layer's own output there

Without a `name` the layer is read from the target's own files. A layer is trained to predict one token; further ones
come from its own output, and fewer of them are right. A round drops the K/V of drafted pairs, and feeds the accepted
tokens again, with the target's states, in the first forward of the next round that drafts; the first such forward feeds
the prompt.

Deviates from the report: one layer drafts all tokens where the report has one for each; any shape and length, rows of
any lengths in a batch.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated

from pardec.models.draft_modules.contracts import ModuleName

from ...registry import register
from ...spec import DraftModuleName
from ...traits import Trait
from ..contracts import DecodeContext, SpeculativeSampler
from .eagle_state import PairState
from .module_drafter import ModuleDrafter, module_of


@register("mtp", exact="greedy", checked="reference:reference.naive_mtp.draft joint")
class Mtp(ModuleDrafter):
    name: Annotated[DraftModuleName | None, "embedded name, folder or hub id; by default the target's own files"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 3

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.OBSERVES_TOKENS}

    def check(self, sampler: SpeculativeSampler) -> None:
        """Accepts a missing name: the layer is then the target's own."""

    @property
    def needed_module(self) -> ModuleName:
        more = () if self.quantize is None else (("quantize", self.quantize),)
        return ModuleName(self.registered[0], self.name or "", more)

    def start(self, context: DecodeContext) -> PairState:
        module = module_of(context)
        return PairState(context, module, context.drafter_cache(module), own=True)
