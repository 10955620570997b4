"""Drafts with the target's first layers, a trained adapter and its head; verifying continues from these layers.

Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    q = softmax(head(adapter(h_E))),  h_E the output of the first E layers;  a verified position runs layers E + 1 .. L

The second exit of the title, which ends a draft before uncertain tokens, is a length controller here:
`kangaroo:name=...,k=6+unsure:tau=0.6` has the authors' numbers.

The first layers run once on a node, as with `earlyexit`. The adapter has K/V of its own, which stay with the tokens
that are accepted. After a draft that was wholly accepted it lacks those of the last token, which is then fed with the
next one.

Deviates from the authors' code: rows of any lengths in a batch, drafts of any shape, tokens that are sampled.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import PardecError
from pardec.models.plan import Hidden, Plan, Visible

from ...batching import scatter_rows
from ...host_transfer import download, upload
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, RoundResult, Uniforms
from ..forward import catch_up_groups
from .earlyexit import Shallow
from .module_drafter import ModuleDrafter, module_failure


class AdapterState(Shallow):
    """The first layers on the target's cache, and the adapter after them with its own cache of the same slots.

    Attributes:
        adapted: [B] on the host: the first tokens of each row of which the adapter has K/V.
        pending: [B, W, E] the outputs of the first layers that it was not fed: entry j of row b is of slot
            adapted[b] + j. Those of all tokens before the last committed one are known.
        adapter_slots: [B, T] the slot after `start` of each node that it was fed, -1 of others; None: nothing.
    """

    per_row = ("adapted", "pending", "adapter_cache")

    def __init__(self, context: DecodeContext, module: Any) -> None:
        super().__init__(context, context.model, context.cache, layers=slice(0, module.exit_layers))
        rows = len(context.text)
        self.module = module
        self.adapter_cache = context.drafter_cache(module)
        self.adapted = np.zeros(rows, dtype=np.int64)
        self.pending = torch.zeros(rows, 0, module.width, dtype=module.dtype, device=module.device)
        self.adapter_slots: Tensor | None = None

    def read_prompt(self, rows: np.ndarray, hidden: Hidden) -> None:
        """Keeps the outputs of the first layers at every position of these rows' prompts."""
        self.pending = scatter_rows(self.pending, rows, self.module.states.of(hidden).to(self.pending))

    def observe(self, outcome: RoundResult) -> None:
        """Keeps the adapter's K/V of accepted tokens, and the states of accepted tokens that it was not fed."""
        if outcome.states is None:  # the prompt's round: see `read_prompt`
            return
        path, base = outcome.verdict.path, outcome.draft.base
        order = torch.arange(path.shape[1], device=path.device)
        lead = np.zeros_like(base)  # [B] nodes of the path, from node 0 on, that the adapter was fed
        if self.adapter_slots is not None:
            slot, fed = self._adapted(outcome)
            if outcome.draft.parents is not None:
                start = self.start[:, None]
                self.adapter_cache.move(start + slot, torch.where((fed > 0) & (slot != order), start + order, -1))
            lead = outcome.read("lead", lambda: {"lead": fed.sum(1)})["lead"]
        waiting = np.where(lead > 0, 0, base - self.adapted)
        self.adapted = np.where(lead > 0, base + lead, self.adapted)
        states = outcome.states.gather(1, path[..., None].expand(-1, -1, outcome.states.shape[-1])).to(self.pending)
        most = int(waiting.max())
        first = upload(waiting - lead, path.device)[:, None]
        behind = upload(lead, path.device)[:, None]
        index = torch.where(order >= behind, first + order, most + len(order))
        room = most + len(order) + 1 - min(most, self.pending.shape[1])
        merged = pad(self.pending[:, :most], (0, 0, 0, room))
        self.pending = merged.scatter(1, index[..., None].expand_as(states), states)[:, :-1]

    def to_observe(self, outcome: RoundResult) -> dict[str, Tensor]:
        if outcome.states is None or self.adapter_slots is None:
            return {}
        return {"lead": self._adapted(outcome)[1].sum(1)}

    def _adapted(self, outcome: RoundResult) -> tuple[Tensor, Tensor]:
        """[B, D]: the slot after `start` of each node of the path, -1 for none; and 1 until one was not fed."""
        path, count = outcome.verdict.path, outcome.verdict.count
        assert self.adapter_slots is not None, "the round drafted"
        spare = outcome.draft.width - self.adapter_slots.shape[1]
        slot = pad(self.adapter_slots, (0, max(0, spare)), value=-1).gather(1, path)
        order = torch.arange(path.shape[1], device=path.device)
        return slot, ((slot >= 0) & (order <= count[:, None])).long().cumprod(1)

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        error = module_failure(self.module)
        return error if "its weight" in str(error) else super().failure()

    def _raw(self, draft: Draft, nodes: Tensor, *, subset: bool = False) -> Tensor:
        begins = not self.slot.shape[1]
        output = self._feed(draft, nodes)
        plan, states = self.runs[-1][0], output.states[: len(nodes)]  # without the copies that guidance adds
        if begins:
            raw = self._adapt_committed(nodes, states)
        else:
            raw = self.module.run(replace(plan, soft=states, layers=None), self.adapter_cache).logits()
        self.highest = self.highest + torch.where(nodes >= 0, raw.amax(-1), 0).sum()
        return raw

    def _adapt_committed(self, nodes: Tensor, states: Tensor) -> Tensor:
        """Feeds the adapter all tokens before node 0; returns logits [B, 1, V] after node 0 with states [B, 1, E]."""
        fed = self.budgeted
        if fed is None or nodes.device.type == "cpu":
            fed = download(nodes[:, 0] >= 0)
        live = np.flatnonzero(fed)
        missing = self.base[live] + 1 - self.adapted[live]
        raw: Tensor | None = None
        for group in catch_up_groups(missing):
            rows = upload(live[group], states.device)
            count = upload(missing[group], states.device)[:, None]
            width = int(missing[group].max())
            order = torch.arange(width, device=states.device)
            first = upload(self.adapted[live[group]], states.device)[:, None]
            slots = torch.where(order < count, first + order, -1)
            inputs = self.pending[rows, : width - 1]
            inputs = pad(inputs, (0, 0, 0, width - inputs.shape[1]))
            at = (count - 1)[..., None].expand(-1, -1, inputs.shape[-1])
            plan = Plan(
                tokens=torch.zeros_like(slots),
                positions=slots,
                slots=slots,
                visible=Visible.causal(),
                lengths=first[:, 0] + count[:, 0],
                want=count - 1,
                soft=inputs.scatter(1, at, states[rows].to(inputs)),
                rows=None if len(group) == len(nodes) else rows,
            )
            logits = self.module.run(plan, self.adapter_cache).logits()
            raw = logits.new_zeros(len(nodes), *logits.shape[1:]) if raw is None else raw
            raw[rows] = logits
        assert raw is not None, "some row drafts"
        return raw


@register("kangaroo", exact="greedy", checked="reference:reference.naive_kangaroo.states joint")
class Kangaroo(ModuleDrafter):
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 6
    layers: Annotated[
        int | None, "how many of the target's first layers draft; default: from the adapter's config, else 2"
    ] = None

    @property
    def provides(self) -> frozenset[Trait]:
        return super().provides | {Trait.DRAFTS_DURING_VERIFY}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers is not None:
            self.require("layers", least=1)

    def options(self) -> tuple[tuple[str, Any], ...]:
        return () if self.layers is None else (("layers", self.layers),)

    def start(self, context: DecodeContext) -> AdapterState:
        return AdapterState(context, self.fitting_module(context))

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: AdapterState) -> Draft:
        draft = state.draft(self.k, remaining, uniforms)
        state.adapter_slots = state.slot if state.drafting else None
        return state.early(draft, state.module.exit_layers) if state.drafting else draft
