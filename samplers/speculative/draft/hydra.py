"""Drafts with Hydra's heads, which read the target's last state and the tokens on the path to a node.

Hydra: Sequentially-Dependent Draft Heads for Medusa Decoding, https://arxiv.org/abs/2402.05109

    q(. | node x_d after x_0 .. x_(d-1)) = softmax(head_(d+1)([h ; e(x_0) ; .. ; e(x_d)])),  x_0 the last committed
    h the target's normed state at the last token it has read; Hydra++: h~ = norm'(layer(all such states so far))

All nodes of a level are one product, and one drafting forward. `k` is cut to the number of heads. The layer of Hydra++
has K/V of its own, which the states of accepted tokens enter at the end of each round.

Deviates from the authors' code: as `medusa` does; targets with grouped heads, trees that expand any rank; heads that
are not grounded read the layer of Hydra++ where there is one, as they are trained, which the authors' drafts leave out.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pardec.models.plan import Hidden, Plan, Visible

from ...host_transfer import upload
from ...registry import register
from ..contracts import DecodeContext, Draft, RoundResult
from .draft_heads import StaticState
from .module_drafter import ModuleDrafter


@register("hydra", exact="greedy", checked="golden/heads reference:reference.naive_heads.hydra joint")
class Hydra(ModuleDrafter):
    def start(self, context: DecodeContext) -> HydraState:
        return HydraState(context, self.fitting_module(context))


class HydraState(StaticState):
    """The state of the heads, and the K/V of the layer before them."""

    per_row = ("cache",)

    def __init__(self, context: DecodeContext, module: object) -> None:
        super().__init__(context, module)
        text, prefix = context.text, self.module.prefix
        self.cache = None if prefix is None else prefix.new_cache(len(text), int(text.limit.max()))

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        if not self.module.grounded:
            return super().forward(draft, nodes)
        self.level += 1
        self.calls += 1
        raw = self.module.grounded_logits(self.states, _paths(draft, nodes, self.level))
        return self._processed(raw, draft, nodes)

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        if self.cache is None:
            super().read_prompt(rows, hidden)
            return
        states, lengths = self.module.states.of(hidden), self.context.text.length[rows]
        which = upload(rows, self.states.device)
        refined = self._refined(states, np.zeros_like(lengths), lengths, which)
        self.states = self.states.index_copy(0, which, refined)

    def observe(self, outcome: RoundResult) -> None:
        if self.cache is None or outcome.states is None:
            super().observe(outcome)
            return
        # A row that continues gained its accepted tokens and one more: as many as its path has nodes, node 0 included.
        gained = outcome.gained
        path = outcome.verdict.path[:, : int(gained.max())]
        states = outcome.states.gather(1, path[..., None].expand(-1, -1, outcome.states.shape[-1]))
        self.states = self._refined(states, outcome.draft.base, gained)

    def _refined(self, states: Tensor, first: np.ndarray, counts: np.ndarray, which: Tensor | None = None) -> Tensor:
        """[n, E]: the layer's output at the last real one of the target's states [n, Q, E]; counts[b] of them are real.

        They stand at the positions from `first` [n] on; `which` [n] are the live rows, by default all.
        """
        width, device = int(counts.max()), states.device
        states = states[:, :width].to(self.states)
        same = bool((counts == width).all() and (first == first[0]).all())
        start = int(first[0])
        order = torch.arange(width, device=device).expand(len(states), width)
        base, count = (upload(each, device)[:, None] for each in (first, counts))
        positions = torch.where(order < count, base + order, -1)
        plan = Plan(
            tokens=torch.full_like(order, -1),
            positions=positions,
            slots=positions,
            visible=Visible.causal(),
            lengths=(base + count)[:, 0],
            want=count - 1,
            soft=states,
            rows=which if which is not None and len(which) < len(self.states) else None,
            uniform=start + width if same else None,
            span=(start, start + width) if same else None,
            narrow=True,
        )
        hidden = self.module.prefix(plan, self.cache)
        last = hidden.states
        if not hidden.narrowed:
            last = last.gather(1, plan.want[..., None].expand(-1, -1, last.shape[-1]))
        refined: Tensor = hidden.norm(last)[:, 0]
        return refined


def _paths(draft: Draft, nodes: Tensor, size: int) -> Tensor:
    """[B, K, size]: the tokens from node 0 to each of `nodes` [B, K], all at depth size - 1."""
    if draft.parents is None:
        return draft.tokens[:, None, :size]
    at, tokens = nodes.clamp(min=0), []
    for _ in range(size):
        tokens.append(draft.tokens.gather(1, at))
        at = draft.parent.gather(1, at).clamp(min=0)
    return torch.stack(tokens[::-1], -1)
