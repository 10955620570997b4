"""The state of a request whose target drafts for itself: blocks of masks that it fills in behind its causal text."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.draft_modules.adapter import DraftAdapter
from pardec.models.errors import ModelError, PardecError
from pardec.models.model import BlockDenoising
from pardec.models.plan import Plan, Visible

from ..contracts import DecodeContext, Draft, DraftModel, Uniforms
from ..draft_model import depth_budget


class MaskedBlocks(DraftModel):
    """The target as its own drafter in one round; it remembers nothing between rounds."""

    marginals: Tensor  # float32 [B, k, V] raw logits of this round's blocks
    highest: Tensor  # [] the sum of the highest logits: see `models.finite`

    def __init__(self, context: DecodeContext, denoising: BlockDenoising, adapter: DraftAdapter | None = None) -> None:
        self.context, self.denoising, self.adapter = context, denoising, adapter
        self.runs: list[finite.Run] = []  # the last drafting forward
        self.level = 0  # levels of this round that the shape has asked for
        shape, request = context.sampler.shape, context.request
        assert shape is not None, "drafters that take a shape have one"
        self.shape, self.unprocessed = shape, shape.unprocessed
        # A distribution depends on the depth alone unless processors read the path.
        self.pathless = not (request.processors or request.repetition_penalty is not None)

    def draft(self, most: int, room: np.ndarray, uniforms: Uniforms) -> Draft:
        """A draft of the spec's shape and length, at most `most` tokens and `room` [B] deep."""
        context, budget = self.context, depth_budget(self.context, most, room)
        if not (budget > 0).any():
            return Draft.none(context.text)
        self._denoise(np.flatnonzero(budget > 0), budget)
        draft = self.shape.grow(self, context, budget, uniforms, context.state(self.shape))
        return replace(draft, forwards=1, highest=self.highest)

    def _denoise(self, live: np.ndarray, budget: np.ndarray) -> None:
        """One forward over the blocks of the `live` rows, of `budget` [B] masks each."""
        model, text, count = self.context.model, self.context.text, int(budget.max())
        rows = None if len(live) == len(text) else torch.from_numpy(live).to(text.device)
        masks, first = budget[live], text.length[live] - 1
        same = bool((masks == count).all() and (first == first[0]).all())
        start, sizes = (torch.from_numpy(each).to(text.device)[:, None] for each in (first, masks + 1))
        order = torch.arange(count + 1, device=text.device).expand(len(live), -1)
        slots = torch.where(order < sizes, start + order, -1)
        tokens = torch.full_like(slots, self.denoising.mask_id)
        tokens[:, 0] = text.last if rows is None else text.last[rows]
        stop, before = int((first + masks).max()) + 1, int(first.min())
        visible = torch.arange(before, stop, device=text.device) < (start + sizes)  # [b, stop - before]
        plan = Plan(
            tokens=tokens,
            positions=slots,
            slots=slots,
            visible=Visible.mask(visible[:, None].expand(-1, count + 1, -1), before),
            lengths=(start + sizes)[:, 0],
            want=order[:, :-1] + (1 - self.denoising.shift),
            rows=rows,
            uniform=stop if same else None,
            span=(before, stop) if same else None,
        )
        self.runs[:] = [(plan, self.context.cache)]
        run = model.run if self.adapter is None else self.adapter.run
        raw = run(plan, self.context.cache).logits()
        self.highest = torch.where(order[:, :-1] < sizes - 1, raw.amax(-1), 0).sum()
        self.marginals = raw if rows is None else raw.new_zeros(len(text), *raw.shape[1:]).index_copy_(0, rows, raw)
        self.level = 0

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Behind the next level of nodes: all of one depth have the same position of the block."""
        level, self.level = self.level, self.level + 1
        raw, wide = self.marginals[:, level : level + 1], (-1, nodes.shape[1], -1)
        if self.unprocessed or not self.pathless:
            raw = raw.expand(wide)
            return raw if self.unprocessed else self.context.distribution(raw, draft, nodes)
        return self.context.distribution(raw, draft, nodes[:, :1]).expand(wide)

    def prune(self, nodes: Tensor) -> None:
        """Nothing is kept of the nodes."""

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        model = self.context.model
        error = finite.failure(model, self.runs, cfg=self.context.request.cfg)
        return error or ModelError(f"{model.name}, which drafts for itself, gives logits that are not finite")

    def keep(self, rows: np.ndarray) -> None:
        """Nothing is of a row."""

    def put(self, where: np.ndarray, other: MaskedBlocks) -> None:
        """Nothing is of a row."""
