"""Drafts with a masked diffusion model of the target's tokens, roughly, and further while it is confident: FailFast.

Fail Fast, Win Big: Rethinking the Drafting Strategy in Speculative Decoding via Diffusion LLMs,
https://arxiv.org/abs/2512.20573

    fill `step` masks, in forwards that commit what has a confidence of at least `tau` in a small block, or the surest;
    while all of them had a confidence of at least `low` and less than `k` tokens are drafted: fill `step` more

The masks up to the end of a block are seen, too. A block-causal model has the blocks of its family; its K/V of blocks
that are all text are kept, and those of a block that a rejection has cut are computed again. A bidirectional model has
blocks of `block` from the end of the text, and its forwards compute the whole text. Drafts are the likeliest tokens,
whatever the temperature, and so point masses: tokens committed together are drawn from no product of conditionals.

Deviates from the authors' code: rows of any lengths in a batch; bidirectional models as well.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError, PardecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan

from ...batching import RowState
from ...host_transfer import download, upload
from ...registry import register
from ...spec import ModelName
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, Uniforms
from ..draft_model import ModelDrafter, check_tokens
from ..forward import CacheRows


class DiffusionState(RowState):
    """The masked model during one request. Slots below `cached` [B] have the K/V of blocks that are all text."""

    per_row = ("cached", "cache_rows")

    def __init__(self, context: DecodeContext, model: LanguageModel, method: Diffusion) -> None:
        finite.demand_head(model)
        self.context, self.model, self.method = context, model, method
        config = model.decoding_config
        assert config.mask_id is not None, "a masked model"
        self.mask, self.block = config.mask_id, config.block if config.attention == "block-causal" else None
        self.cached = np.zeros_like(context.text.length)
        self.capacity = int(context.text.limit.max()) + (self.block or method.block)
        self.cache = None if self.block is None else model.new_cache(len(context.text), self.capacity)
        self.cache_rows = None if self.cache is None else CacheRows(model.decoder, self.cache)
        self.runs: list[finite.Run] = []  # the last forward

    def draft(self, remaining: np.ndarray) -> Draft:
        """A chain for each row, at most `remaining` [B] tokens long."""
        text, method = self.context.text, self.method
        base, room = text.length, (self.model.max_positions or self.capacity) - text.length
        budget = np.minimum(np.minimum(remaining, method.k), room).clip(min=0)
        if not budget.any():
            return Draft.none(text)
        self.calls, self.highest = 0, torch.zeros((), device=text.device)
        width = int((base + budget).max())
        tokens = torch.full((len(text), width), self.mask, device=text.device)
        known = torch.arange(width, device=text.device) < upload(base, text.device)[:, None]
        size = min(width, text.tokens.shape[1])
        tokens[:, :size] = torch.where(known[:, :size], text.tokens[:, :size], self.mask)
        goal = start = base
        going = budget > 0
        while going.any():
            start, goal = goal, np.where(going, np.minimum(goal + method.step, base + budget), goal)
            tokens, surest = self._fill(tokens, start, goal)
            going &= (goal < base + budget) & (surest >= method.low)
        if self.block is not None:
            self.cached = np.where(budget > 0, base // self.block * self.block, self.cached)
        order = torch.arange(int(budget.max()), device=text.device)
        drafted = tokens.gather(1, (upload(base, text.device)[:, None] + order).clamp(max=width - 1))
        drafted = drafted.clamp(max=self.context.model.vocab_size - 1)  # masks are left after a row's draft
        return replace(Draft.chain(text, drafted, goal - base), forwards=self.calls, highest=self.highest)

    def _fill(self, tokens: Tensor, start: np.ndarray, goal: np.ndarray) -> tuple[Tensor, np.ndarray]:
        """Commits the masks of `tokens` [B, W] from start[b] up to goal[b].

        Returns the tokens, and [B] on the host the least confidence of those committed here, 1 where there were none.
        """
        method, device = self.method, tokens.device
        base = upload(self.context.text.length if self.block is None else np.zeros_like(start), device)[:, None]
        begin, end = (upload(each, device)[:, None] for each in (start, goal))
        positions = begin + torch.arange(int((goal - start).max()), device=device)  # [B, n]
        open_ = positions < end
        positions = torch.where(open_, positions, -1)
        surest = torch.ones(len(tokens), device=device)
        while True:
            confidence, best = self._predict(tokens, positions, goal)
            group = torch.where(open_, (positions - base) // method.small, torch.iinfo(torch.int64).max)
            confidence = torch.where(open_ & (group == group.amin(1, keepdim=True)), confidence, -1.0)
            top = torch.zeros_like(open_).scatter_(1, confidence.argmax(1, keepdim=True), True)
            commit = open_ & ((confidence >= method.tau) | top)
            kept = tokens.gather(1, positions.clamp(min=0))
            written = torch.cat((tokens, tokens[:, :1]), 1)  # one extra column, for padding
            where = torch.where(commit, positions, tokens.shape[1])
            tokens = written.scatter(1, where, torch.where(commit, best, kept))[:, :-1]
            surest = torch.minimum(surest, torch.where(commit, confidence, 1.0).amin(1))
            open_ = open_ & ~commit
            left, *least = download(torch.cat((open_.any()[None].to(surest), surest)))
            if not left:
                return tokens, np.array(least)

    def _predict(self, tokens: Tensor, positions: Tensor, goal: np.ndarray) -> tuple[Tensor, Tensor]:
        """Confidence and likeliest token at `positions` [B, n], both [B, n], of one forward up to the blocks' ends."""
        model, device, text = self.model, tokens.device, self.context.text
        block = self.block or self.method.block
        origin = text.length if self.block is None else np.zeros_like(goal)
        end = np.minimum(origin - (origin - goal) // block * block, model.max_positions or self.capacity)
        end = np.where(goal > text.length, end, goal)
        start = self.cached
        first, sizes = (upload(each, device)[:, None] for each in (start, end - start))
        order = torch.arange(int((end - start).max()), device=device).expand(len(tokens), -1)
        slots = torch.where(order < sizes, first + order, -1)
        fed = tokens.gather(1, slots.clamp(0, tokens.shape[1] - 1))
        wanted = model.rows(positions) - first
        same = bool((end == end[0]).all() and (start == start[0]).all())
        plan = Plan(
            tokens=torch.where(slots < tokens.shape[1], fed, self.mask).clamp(max=model.vocab_size - 1),
            positions=slots,
            slots=slots,
            visible=model.visible(),
            lengths=(first + sizes)[:, 0],
            want=torch.where(positions >= 0, wanted, -1),
            uniform=int(end[0]) if same else None,
            span=(int(start[0]), int(end[0])) if same else None,
        )
        self.runs[:] = [(plan, self.cache)]
        logits = model.run(plan, self.cache).logits()
        self.calls += 1
        self.highest = self.highest + torch.where(positions >= 0, logits.amax(-1), 0).sum()
        logits[..., self.mask] = -torch.inf
        # A table may be longer or shorter than the target's due to padding; ids of one model alone are not drafted.
        confidence, best = logits[..., : self.context.model.vocab_size].softmax(-1).max(-1)
        return confidence, best

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        error = finite.failure(self.model, self.runs, cfg=None)
        return error or ModelError(f"the draft model {self.model.name} gives logits that are not finite")


@register("diffusion", exact="greedy", checked="reference:reference.naive_diffusion_draft.draft joint")
class Diffusion(ModelDrafter):
    role = "the masked model that drafts"
    provides = frozenset({Trait.DRAFTS_ONE_CHAIN, Trait.OBSERVES_TOKENS})
    conflicts: ClassVar[Reasons] = {
        Trait.CONDITIONS: Why("{me} drafts text, and the request has image conditions", "draft with eagle"),
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (60, 20, 10)}

    name: Annotated[ModelName | None, "the masked model: embedded name, folder or hub id"] = None
    k: Annotated[int, "most tokens drafted"] = 60
    step: Annotated[int, "tokens drafted at once"] = 10
    low: Annotated[float, "more tokens are drafted while every drafted one has this confidence"] = 0.45
    tau: Annotated[float, "least confidence of tokens that one forward commits together"] = 0.05
    small: Annotated[int, "positions in which a forward commits"] = 8
    block: Annotated[int, "masks that a bidirectional model sees at least; a block-causal one has its own blocks"] = 32

    def __post_init__(self) -> None:
        self.require("k", "step", "small", "block", least=1)
        self.require("low", "tau", least=0)

    def start(self, context: DecodeContext) -> DiffusionState:
        drafter = context.request.draft_model
        if not isinstance(drafter, LanguageModel):
            raise ModelError("diffusion: the request has no draft model", "load it, pass it as Request.draft_model")
        attention = drafter.decoding_config.attention
        if drafter.decoding_config.mask_id is None or attention not in ("bidirectional", "block-causal"):
            raise ModelError(
                f"{drafter.name} cannot draft with diffusion: it has {attention} attention"
                + (" and no mask token" if drafter.decoding_config.mask_id is None else ""),
                "name a bidirectional or block-causal masked model; an autoregressive one drafts with model:name=...",
            )
        check_tokens(drafter, context.model)
        return DiffusionState(context, drafter, self)

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: DiffusionState
    ) -> Draft:
        return state.draft(remaining)
