"""Drafts with one layer that attends to a window of tokens and to the K/V of the target's last layer.

LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and Verification,
https://arxiv.org/abs/2502.17421

    q(. | x_1 .. x_i) = softmax(head(layer(x_(i-511) .. x_i;  K/V of the target's last layer at verified positions)))

Beyond its window the drafter sees the text through the target's own cache alone (see
`models.draft_modules.longspec`). The verify pass of a tree reads the prefix without a mask, as the paper's does: the
kernel in C does both parts in one pass (`models.kernels.attention_parts` merges them elsewhere).

Deviates from the authors' code: rows of any lengths in a batch, drafts of any shape; committed tokens attend to what is
before them, as in training, where the code's prompt pass lets them see all of it, which no draft depends on.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from pardec.models.draft_modules.longspec import TargetKeys
from pardec.models.errors import PardecError
from pardec.models.plan import Hidden, Plan

from ...host_transfer import download, upload
from ...registry import register
from ...request import Request
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext
from ..draft_model import DraftModelState
from .module_drafter import ModuleDrafter, module_failure, module_of


@register("longspec", exact="greedy", checked="reference:samplers.speculative.test_longspec.naive joint")
class LongSpec(ModuleDrafter):
    conflicts: ClassVar[Reasons] = {
        Trait.CHANGES_TARGET: Why(
            "{me}: it reads the target's keys, of which {other!r} keeps a part", "leave one of them out"
        ),
        Trait.CONDITIONS: Why("{me} drafts text, and the request has image conditions", "draft with eagle"),
    }

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides - {Trait.READS_PROMPT}

    def target_states(self, request: Request) -> None:
        return None

    def start(self, context: DecodeContext) -> LongSpecState:
        module = module_of(context)
        return LongSpecState(context, module, context.drafter_cache(module), own=True)


class LongSpecState(DraftModelState):
    """The state of the layer, with its own K/V in addition to the target's."""

    model: Any  # the module

    def failure(self) -> PardecError:
        return module_failure(self.model)

    def _run(self, plan: Plan) -> Hidden:
        self.calls += 1
        output: Hidden = self.model.run(plan, self.cache, self._target_keys(plan))
        return output

    def _target_keys(self, plan: Plan) -> TargetKeys:
        """The target's K/V of all committed tokens but the last."""
        cache, rows, device = self.context.cache, plan.rows, self.start.device
        base = self.base if rows is None else self.base[download(rows)]
        k, v = cache.k[-1], cache.v[-1]
        if cache.shared is not None:
            k, v = _whole(cache.shared.k[-1], k), _whole(cache.shared.v[-1], v)
        if rows is not None:
            k, v = k[rows.to(k.device)], v[rows.to(v.device)]
        # The last committed token of a row and the nodes of a draft come after all verified positions.
        behind = plan.width == 1 or not plan.narrow
        uniform = int(base[0]) if behind and (base == base[0]).all() else None
        return TargetKeys(k.to(device), v.to(device), upload(base, device), uniform)


def _whole(shared: Tensor, own: Tensor) -> Tensor:
    """[B, S, K, D]: a copy of the shared part [1, P + 1, K, D] without its last entry, then each row's own part."""
    return torch.cat((shared[:, :-1].expand(len(own), -1, -1, -1), own), 1)
