"""Drafts with Medusa's heads on the target's last state; each predicts one further token, without a forward.

Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads, https://arxiv.org/abs/2401.10774

    q(. | node of depth d) = softmax(head_(d + 1)(h)),  h the target's normed state at the last token it has read

The distributions of all nodes of a level are the same. A head's logits are computed when its level is asked for; no
drafting forward is counted. `k` is cut to the number of heads.

Deviates from the authors' code: any shape, length controller and acceptance, rows of any lengths in a batch; a path is
never accepted beyond its own end. Their tree is the shape `paths` with `top=true`, their acceptance
`typical:reference=true`, after which the next token is the argmax; their nucleus acceptance, in which paths that share
a node sample after it again and again, is here `match` with `top_p`, which samples once per node.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext
from .draft_heads import StaticState
from .module_drafter import ModuleDrafter


@register("medusa", exact="greedy", checked="golden/heads reference:reference.naive_heads.medusa joint")
class Medusa(ModuleDrafter):
    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.ONE_FORWARD_DRAFTS}

    def start(self, context: DecodeContext) -> StaticState:
        return StaticState(context, self.fitting_module(context))
