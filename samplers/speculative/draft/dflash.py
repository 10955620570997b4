"""Drafts a block in one pass: masks denoised after the target's states. DFlash, DFlash 2, DSpark.

DFlash: Block Diffusion for Flash Speculative Decoding, https://arxiv.org/abs/2602.06036
DSpark, https://arxiv.org/abs/2607.05147
DFlash 2, https://github.com/z-lab/dflash

    q_j(.) of the token j places after the last one, j = 1 .. block - 1, all of one pass over [last, mask, mask, ..]
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

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.draft_modules.dflash import DFlashModule
from pardec.models.errors import PardecError
from pardec.models.plan import Hidden, Plan, Visible

from ...host_transfer import upload
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, DraftModel, RoundResult, Uniforms
from ..draft_model import DraftState, depth_budget
from .module_drafter import ModuleDrafter, module_failure

_PENDING = 64  # positions kept pending while nothing is drafted; more would be copied again in each round


class BlockState(DraftState, DraftModel):
    """The state of a block drafter during one request.

    The cache contains the context's K/V below `cached`; `pending` are the inputs of the positions from there on that
    have been verified since, `waiting` of them.
    """

    per_row = ("cached", "waiting", "cache", "pending")
    marginals: Tensor  # [B, D, Vd] logits of this round's blocks; [B, D, V] float32 without a Markov head
    states: Tensor  # [B, D, E] the states after them
    memory: Tensor | None  # [B, T, r] each node's memory, if the Markov head has one
    estimates: Tensor | None  # [B, K] of the last forward
    highest: Tensor  # [] the sum of the highest logits: see `models.finite`

    def __init__(self, context: DecodeContext, module: DFlashModule) -> None:
        self.context, self.module = context, module
        self.cache = module.new_cache(len(context.text), int(context.text.limit.max()))
        self.cached = np.zeros_like(context.text.length)
        self.waiting = np.zeros_like(self.cached)
        self.pending: Tensor | None = None  # [B, W, E]
        self.level = 0  # levels of this round drafted so far
        # A distribution depends on the depth alone unless processors read the path.
        self.pathless = not context.request.reads_history
        shape = context.sampler.shape
        self.unprocessed = shape is not None and Trait.UNPROCESSED_SCORES in shape.provides

    # --- the context ---

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        """Makes K/V of the prompts of these rows."""
        self.module.remember(self.module.fuse(self.module.states.of(hidden)), hidden.plan, self.cache)
        self.cached[rows] = self.context.text.length[rows]

    def observe(self, outcome: RoundResult) -> None:
        """Keeps the target's states at the positions that a round has verified."""
        if outcome.states is None:  # the prompt's round: see `read_prompt`
            return
        width, states = int(outcome.gained.max()), outcome.states
        if outcome.draft.parents is not None:
            path = outcome.verdict.path[:, :width, None]
            states = states.gather(1, path.expand(-1, -1, states.shape[-1]))
        fresh = self.module.fuse(states[:, :width])
        if self.pending is None or not self.waiting.any():
            self.pending, self.waiting = fresh, outcome.gained.copy()
            return
        old = int(self.waiting.max())
        start = upload(self.waiting, fresh.device)[:, None]
        index = start + torch.arange(fresh.shape[1], device=fresh.device)
        merged = pad(self.pending[:, :old], (0, 0, 0, fresh.shape[1]))
        self.pending = merged.scatter(1, index[..., None].expand_as(fresh), fresh)
        self.waiting = self.waiting + outcome.gained
        if old > _PENDING:
            self._catch_up()

    def _catch_up(self) -> None:
        """Makes K/V of the states that are pending."""
        if self.pending is None or not self.waiting.any():
            return
        width = int(self.waiting.max())
        plan = self._plan(self.cached, self.waiting, width)
        self.module.remember(self.pending[:, :width], plan, self.cache)
        self.cached = self.cached + self.waiting
        self.waiting = np.zeros_like(self.cached)

    # --- drafts ---

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """Drafts by the spec's shape and length, at most `most` tokens and `remaining` [B] deep."""
        context = self.context
        budget = depth_budget(context, min(most, self.module.layout.depth), remaining)
        if not (budget > 0).any():
            return Draft.none(context.text)
        self._catch_up()
        self._denoise(np.flatnonzero(budget > 0), int(budget.max()))
        shape = context.sampler.shape
        assert shape is not None, "drafters with a model have a shape"
        draft = shape.grow(self, context, budget, uniforms, context.state(shape))
        return replace(draft, forwards=1, highest=self.highest)

    def _denoise(self, live: np.ndarray, count: int) -> None:
        """One pass over the blocks of the `live` rows, and the head on the first `count` of their drafts."""
        module, text = self.module, self.context.text
        every, width = len(live) == len(text), module.block_size
        plan = self._plan(text.length[live] - 1, np.full(len(live), width), width)
        tokens = torch.full_like(plan.slots, module.layout.mask)
        tokens[:, 0] = text.last if every else text.last[upload(live, text.device)]
        rows = None if every else upload(live, text.device)
        states = module.run(replace(plan, tokens=tokens, rows=rows), self.cache, count)
        marginals = module.logits(states)
        self.highest = marginals.amax(-1).float().sum()
        if module.transition is None:
            marginals = module.over_vocabulary(marginals)
        self.states = states if rows is None else _spread(states, rows, len(text))
        self.marginals = marginals if rows is None else _spread(marginals, rows, len(text))
        self.level, self.memory, self.estimates = 0, None, None

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Logits after the next level of nodes; all nodes of one depth share a block position."""
        module, context = self.module, self.context
        level, self.level = self.level, self.level + 1
        raw, states = self.marginals[:, level : level + 1], self.states[:, level : level + 1]
        processed = not self.unprocessed
        wide = (-1, nodes.shape[1], -1)
        if module.transition is None:
            self.estimates = module.estimate(states, None)
            if processed and self.pathless:
                raw, processed = context.distribution(raw, draft, nodes[:, :1]), False
            raw = raw.expand(wide)
        else:
            at = nodes.clamp(min=0)
            states = states.expand(wide)
            embedded = module.transition.embed(draft.tokens.gather(1, at))
            raw, memory = module.transition.scores(raw, embedded, states, self._memory(draft, at))
            self.estimates = module.estimate(states, embedded)
            raw = module.over_vocabulary(raw)
            if memory is not None:
                self._remember(draft, nodes, memory)
        return context.distribution(raw, draft, nodes) if processed else raw

    def acceptance(self) -> Tensor | None:
        return self.estimates

    def prune(self, nodes: Tensor) -> None:
        if self.memory is not None:
            index = nodes.clamp(min=0, max=self.memory.shape[1] - 1)
            self.memory = self.memory.gather(1, index[..., None].expand(-1, -1, self.memory.shape[-1]))

    def _memory(self, draft: Draft, nodes: Tensor) -> Tensor | None:
        """[B, K, r]: the memory that the parents of `nodes` pass on."""
        if self.memory is None:
            return None
        parents = draft.parent.gather(1, nodes).clamp(min=0)
        return self.memory.gather(1, parents[..., None].expand(-1, -1, self.memory.shape[-1]))

    def _remember(self, draft: Draft, nodes: Tensor, memory: Tensor) -> None:
        known = memory.new_zeros(len(memory), 0, memory.shape[-1]) if self.memory is None else self.memory
        known = pad(known, (0, 0, 0, draft.width + 1 - known.shape[1]))
        target = torch.where(nodes >= 0, nodes, draft.width)[..., None].expand_as(memory)
        self.memory = known.scatter(1, target, memory)[:, :-1]

    def _plan(self, first: np.ndarray, counts: np.ndarray, width: int) -> Plan:
        """A plan of `counts` [B] positions per row from `first` [B] on, without tokens."""
        device = self.context.text.device
        same = bool((first == first[0]).all() and (counts == width).all())
        start = upload(first, device)[:, None]
        order = torch.arange(width, device=device)
        slots = start + order
        if not (counts == width).all():
            slots = torch.where(order < upload(counts, device)[:, None], slots, -1)
        stop = int(first[0]) + width
        return Plan(
            tokens=slots,
            positions=slots,
            slots=slots,
            visible=Visible.bidirectional(),
            lengths=upload(first + counts, device),
            want=slots,
            uniform=stop if same else None,
            span=(stop - width, stop) if same else None,
        )

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        return module_failure(self.module, "load in float32")

    # --- rows that leave and join ---

    def before_join(self, where: np.ndarray, other: BlockState) -> None:
        for state in (self, other):  # pending states of rows that join begin elsewhere
            state._catch_up()
            state.pending = None


def _spread(part: Tensor, rows: Tensor, batch: int) -> Tensor:
    """[batch, ...]: `part` [b, ...] in `rows` [b], and zeros in other rows."""
    return part.new_zeros(batch, *part.shape[1:]).index_copy_(0, rows, part)


@register("dflash", exact="greedy", checked="reference:reference.naive_dflash.NaiveDFlash joint")
class DFlash(ModuleDrafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (15, 7, 4)}

    k: Annotated[int, "tokens drafted, which is how deep a tree grows; at most those of a block"] = 15
    taps: Annotated[str | None, "target layers whose outputs the module reads, as 1-9-17; by default its config's"] = (
        None
    )

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.ONE_FORWARD_DRAFTS}

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.taps is None else (("taps", self.taps),)

    def start(self, context: DecodeContext) -> BlockState:
        return BlockState(context, self.fitting_module(context))
