"""Drafts several tokens per pass: blocks of pairs (token, the target's state before it), as in EAGLE-1.

Falcon: Faster and Parallel Inference of Large Language Models through Enhanced Semi-Autoregressive Drafting and
Custom-Designed Decoding Tree, https://arxiv.org/abs/2412.12639

    a node of depth 0, k, 2 k, ..  starts a block: one pass of k queries gives the distributions after it and after
    its descendants of the next k - 1 levels, which thus depend on that node alone

With `block=1` this is `eagle`. Deviates from the paper: the tokens of a block are coupled by learned offsets, not by an
LSTM (see `models.draft_modules.falcon`); the tree is the spec's shape; rows of any lengths in a batch.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.plan import Hidden, Plan, Visible

from ...host_transfer import download, upload
from ...registry import register
from ..contracts import DecodeContext, Draft, SubsetLogits
from ..forward import catch_up_groups
from .eagle_state import PairState
from .module_drafter import ModuleDrafter, module_of


class BlockPairState(PairState):
    """The blocks of a round. Shapes ask for a draft level by level, so that the host knows where blocks start."""

    logits: Tensor  # [B, A, k, V] of the round's blocks
    ends: Tensor  # [B, A, E] the output of each block's last query
    inside: Tensor  # [B, A, R] bool: the slots after `start` that a block which continues this one attends to
    block_of: Tensor  # [B, T] the block that gives each node's distribution, -1 if it was not asked for

    def __init__(self, context: DecodeContext, module: object, cache: object, block: int) -> None:
        super().__init__(context, module, cache, own=True)  # type: ignore[arg-type]
        self.block, self.table = block, self.model.table(block)

    def _begin(self) -> None:
        super()._begin()
        self.level = 0

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        level, self.level = self.level, self.level + 1
        at = nodes.clamp(min=0)
        if not level:
            self._first(nodes)
            blocks = torch.zeros_like(nodes)
        else:
            blocks = self.block_of.gather(1, draft.parent.gather(1, at).clamp(min=0)).clamp(min=0)
            if level % self.block == 0:
                blocks = self._next(draft, nodes, blocks)
        known = pad(self.block_of, (0, draft.width + 1 - self.block_of.shape[1]), value=-1)
        self.block_of = known.scatter(1, torch.where(nodes >= 0, nodes, draft.width), blocks)[:, :-1]
        row = torch.arange(len(nodes), device=nodes.device)[:, None]
        raw = self.logits[row, blocks, level % self.block]
        self.highest = self.highest + torch.where(nodes >= 0, raw.amax(-1), 0).sum()
        return self._processed(self._fitted(raw), draft, nodes)

    def forward_subset(self, draft: Draft, nodes: Tensor) -> SubsetLogits:
        return SubsetLogits(self.forward(draft, nodes))

    def prune(self, nodes: Tensor) -> None:
        known = nodes < self.block_of.shape[1]
        self.block_of = torch.where(known, self.block_of.gather(1, nodes.clamp(max=self.block_of.shape[1] - 1)), -1)

    def _first(self, nodes: Tensor) -> None:
        """The block after node 0 of the rows that draft, with the committed pairs whose K/V are missing."""
        text, real, size = self.context.text, nodes[:, 0] >= 0, self.block
        device = text.device
        self.fed = download(real)
        live = np.flatnonzero(self.fed)
        missing = self.base[live] + 1 - self.cached[live]
        groups = catch_up_groups(missing)
        assert self.pending is not None
        parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for group in groups:
            count = upload(missing[group], device)[:, None]
            rows = upload(live[group], device)
            first = upload(self.cached[live[group]], device)[:, None]
            order = torch.arange(int(missing[group].max()) + size - 1, device=device)
            slots = torch.where(order < count + size - 1, first + order, -1)
            pair = order.minimum(count - 1)  # all queries of the block belong to the last pair
            wide = pair[..., None].expand(-1, -1, self.pending.shape[-1])
            soft = self.pending[rows].gather(1, wide) + self.table[(order - pair).clamp(max=size - 1)]
            own = torch.arange(int(slots.max()) + 1, device=device).minimum(self.start[rows][:, None] + 1)
            plan = Plan(
                tokens=self._tokens(text.tokens[rows].gather(1, first + pair + self.lag)),
                positions=slots,
                slots=slots,
                visible=Visible.segments(ids=own),
                lengths=self.start[rows] + size,
                want=count - 1 + torch.arange(size, device=device),
                soft=soft,
                rows=None if len(group) == len(text) else rows,
                narrow=True,
            )
            output = self._pass(plan)
            states = self.model.fed_back(output.states)
            if not output.narrowed:
                states = states.gather(1, plan.want[..., None].expand(-1, -1, states.shape[-1]))
            parts.append((rows, output.logits(), states[:, -1]))
        self.calls -= len(groups) - 1  # each row took part in one
        batch, first_part = len(text), parts[0]
        self.logits = first_part[1].new_zeros(batch, 1, *first_part[1].shape[1:])
        self.ends = first_part[2].new_zeros(batch, 1, first_part[2].shape[-1])
        for rows, logits, ends in parts:
            self.logits[rows, 0], self.ends[rows, 0] = logits, ends
        self.slots_used = real * size
        self.inside = torch.ones(batch, 1, size, dtype=torch.bool, device=device)
        self.block_of = self.start.new_zeros(batch, 0)

    def _next(self, draft: Draft, nodes: Tensor, above: Tensor) -> Tensor:
        """The blocks after `nodes` [B, K], which continue the blocks `above` [B, K]; their numbers [B, K]."""
        size, (batch, count) = self.block, nodes.shape
        real, at = nodes >= 0, nodes.clamp(min=0)
        old, new = self.inside.shape[-1], self.inside.shape[-1] + count * size
        step = torch.arange(size, device=nodes.device)
        slot = self.slots_used[:, None, None] + torch.arange(count, device=nodes.device)[:, None] * size + step
        before = pad(self.inside.gather(1, above[..., None].expand(-1, -1, old)), (0, new - old))
        inside = before.scatter(2, slot, True)
        first = before.scatter(2, slot[..., :1], True)
        visible = torch.cat((first[:, :, None], inside[:, :, None].expand(-1, -1, size - 1, -1)), 2).flatten(1, 2)
        start, fed = self.start[:, None], real[..., None].expand(-1, -1, size)
        positions = torch.where(fed, start[..., None] + draft.depth.gather(1, at)[..., None] + step, -1).flatten(1)
        states = self.ends.gather(1, above[..., None].expand(-1, -1, self.ends.shape[-1]))
        self.slots_used = self.slots_used + real.sum(1) * size
        rank = torch.arange(int(self.base.max()) + new, device=nodes.device) - start
        within = (rank >= 0) & (rank < new)
        drafted = visible.gather(2, rank.clamp(0, new - 1)[:, None].expand(-1, count * size, -1))
        plan = Plan(
            tokens=self._tokens(draft.tokens.gather(1, at)).repeat_interleave(size, 1),
            positions=positions,
            slots=torch.where(fed, start[..., None] + slot, -1).flatten(1),
            visible=Visible.mask((rank < 0)[:, None] | (drafted & within[:, None])),
            lengths=self.start + self.slots_used,
            want=torch.arange(count * size, device=nodes.device).expand(batch, -1),
            soft=(states[:, :, None] + self.table).flatten(1, 2),
        )
        output = self._pass(plan)
        ends = self.model.fed_back(output.states).view(batch, count, size, -1)[:, :, -1]
        logits = output.logits().view(batch, count, size, -1)
        number = self.logits.shape[1] + torch.arange(count, device=nodes.device)
        self.logits, self.ends = torch.cat((self.logits, logits), 1), torch.cat((self.ends, ends), 1)
        self.inside = torch.cat((pad(self.inside, (0, new - old)), inside), 1)
        return number.expand(batch, -1)

    def _pass(self, plan: Plan) -> Hidden:
        self.calls += 1
        output: Hidden = self.model.run(plan, self.cache)
        return output


@register("falcon", exact="greedy", checked="reference:reference.naive_falcon.outputs joint")
class Falcon(ModuleDrafter):
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 4
    block: Annotated[int | None, "tokens drafted per pass; default and maximum: as many as were trained"] = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block is not None:
            self.require("block", least=1)

    def start(self, context: DecodeContext) -> BlockPairState:
        module = module_of(context)
        block = module.block if self.block is None else self.block
        if block > module.block:
            raise SpecError(
                f"falcon: block must be at most {module.block}, as trained in {module.name}, got {block}",
                "leave block out",
            )
        longest = int(context.text.limit.max())
        scratch = (context.scratch + 1) * block
        return BlockPairState(context, module, module.new_cache(len(context.text), longest, scratch=scratch), block)
