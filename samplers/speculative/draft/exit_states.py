"""The target's first layers as a draft model, as many of them as each row chooses.

`Choice` sets the exit and the length of each row's next draft, by counts of the tokens that each exit would have
drafted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.plan import Hidden, Plan, Visible

from ...batching import RowState
from ...host_transfer import download, upload
from ...ops.confidence import argmax
from ..contracts import DecodeContext, Draft, Length, LowerLayerStates, RoundResult
from ..draft_model import DraftModelState
from .exits import all_copies, of_rows


def tokens_per_layer(acceptance: np.ndarray, exits: np.ndarray, layers: int, most: int) -> np.ndarray:
    """[..., C, most + 1]: expected tokens of a round divided by the layers run, for each exit and length from 0 on.

    A token drafted after exit l is accepted with probability acceptance[..., C], independently of the others.

    >>> tokens_per_layer(np.array([0.5]), np.array([1]), 4, 2).round(3).tolist()
    [[0.25, 0.3, 0.292]]
    """
    length = np.arange(most + 1)
    expected = (acceptance[..., None] ** length).cumsum(-1)
    rate: np.ndarray = expected / (length * exits[:, None] + layers)
    return rate


class Choice(RowState, Length):
    """The counts of one request's rows, and the choices made from them. It ends drafts like a length controller.

    Attributes, one entry a row, on the host:
        matched, tested: [B, C] shadow tokens of each exit.
        sure: [B, 2, 2] sums of max q and numbers of tokens, of accepted and of rejected ones.
        exit: [B] the layers that draft in the next round.
        most: [B] and how many tokens.
    """

    per_row = ("matched", "tested", "sure", "exit", "most")

    def __init__(self, rows: int, exits: tuple[int, ...], layers: int, k: int, decay: float) -> None:
        self.exits, self.layers, self.k, self.decay = np.array(exits), layers, k, decay
        self.matched = np.tile(self.exits / layers, (rows, 1))
        self.tested = np.ones((rows, len(exits)))
        self.sure = np.zeros((rows, 2, 2))
        self.exit = np.full(rows, exits[len(exits) // 2])
        self.most = np.full(rows, k)
        self.confidence = np.zeros((rows, 0))  # [B, steps] of this round

    @property
    def threshold(self) -> np.ndarray:
        """[B]: the probability below which a draft ends; 0 until some tokens were accepted and some rejected."""
        total, count = self.sure[..., 0], self.sure[..., 1]
        mean = total / np.maximum(count, 1e-12)
        middle: np.ndarray = np.where((count > 0).all(1), mean.mean(1), 0)
        return middle

    def budget(self, most: int, context: DecodeContext, state: None) -> np.ndarray:
        self.confidence = self.confidence[:, :0]
        return self.most

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: None) -> Tensor:
        values = download(confidence.double())
        self.confidence = np.column_stack((self.confidence, values))
        return torch.from_numpy(values < self.threshold)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: None) -> None:
        """Learns from the confidence of this round's tokens up to the first rejected one."""
        accepted, drafted = outcome.levels()
        step = np.arange(self.confidence.shape[1])
        part = (
            (step < accepted[:, None]) & (step < drafted[:, None]),
            (step == accepted[:, None]) & (step < drafted[:, None]),
        )
        fresh = np.stack([np.stack(((self.confidence * each).sum(1), each.sum(1)), -1) for each in part], 1)
        self.sure = np.where(drafted[:, None, None] > 0, self.sure * self.decay + fresh, self.sure)
        self.confidence = self.confidence[:, :0]

    def count(self, rows: np.ndarray, matched: np.ndarray, tested: np.ndarray) -> None:
        """Adds the shadow tokens [n, C] of `rows` [n], `tested` [n] positions each, and updates these rows' choices."""
        self.matched[rows] = self.matched[rows] * self.decay + matched
        self.tested[rows] = self.tested[rows] * self.decay + tested[:, None]
        acceptance = self.matched[rows] / self.tested[rows]
        rate = tokens_per_layer(acceptance, self.exits, self.layers, self.k).reshape(len(rows), -1)
        best = rate.argmax(1)
        self.exit[rows], self.most[rows] = self.exits[best // (self.k + 1)], best % (self.k + 1)

    def rows_changed(self) -> None:
        self.confidence = np.zeros((len(self.most), 0))


@dataclass(frozen=True)
class _ByExit:
    """The output of a forward whose rows exit at different layers."""

    plan: Plan
    parts: list[tuple[np.ndarray, np.ndarray, Hidden]]  # plan rows, their rows in the part, and the part

    def logits(self, *, subset: bool = False) -> Tensor:
        """[B, K, V] after the plan's `want`; 0 in rows that were not fed."""
        width, whole = self.plan.want.shape[1], None
        for rows, own, hidden in self.parts:
            if len(own) == hidden.plan.batch:
                logits = hidden.logits(subset=subset)
            elif type(hidden) is not Hidden:  # guidance mixes copies of whole rows
                logits = hidden.logits(subset=subset)[upload(own, hidden.states.device)]
            else:  # other rows of the part run further layers
                index = torch.from_numpy((own[:, None] * width + np.arange(width)).ravel())
                logits = hidden.some(upload(index, hidden.states.device)).view(len(own), width, -1)
            if whole is None:
                whole = logits.new_zeros(self.plan.batch, *logits.shape[1:])
            whole[upload(rows, whole.device)] = logits
        assert whole is not None, "some row is fed"
        return whole


class ExitStates(DraftModelState):
    """Drafts on the target's cache; stores a round's states at every exit, by each node's slot.

    `states` is [copies * B, R, C, E], valid up to the exit of each row; with guidance the unconditional rows come
    after the conditional ones.
    """

    per_row = ("choice",)

    def __init__(self, context: DecodeContext, choice: Choice) -> None:
        super().__init__(context, context.model, context.cache)
        self.choice = choice
        self.head: Callable[[Tensor], Tensor] | None = None  # states [M, E] -> logits [M, V]
        self.fed_rows: np.ndarray | None = None  # [B] bool: the rows of the coming forward; None: not known

    def _begin(self) -> None:
        super()._begin()
        model, exits = self.model, self.choice.exits
        shape = len(self.start) * self.cache.copies, 0, len(exits), model.width
        self.states = torch.zeros(shape, dtype=model.dtype, device=self.start.device)
        self.exit = self.choice.exit

    def _feed(self, draft: Draft, nodes: Tensor) -> Hidden:
        self.fed_rows = draft.grows
        return super()._feed(draft, nodes)

    def _run(self, plan: Plan) -> Any:
        """One forward: each row of the plan runs the layers up to its exit."""
        calls = self.calls
        fed = self.fed_rows
        if fed is None:  # on a GPU, reading them would synchronize: rows that are not fed only add padding
            on_host = plan.slots.device.type == "cpu"
            fed = download((plan.slots >= 0).any(1)) if on_host else np.ones(plan.batch, dtype=bool)
        size = self.states.shape[1] + plan.width
        slot = torch.where(plan.slots >= 0, plan.slots - self.start[:, None], size)
        self.states = pad(self.states, (0, 0, 0, 0, 0, plan.width + 1))
        below, inputs = 0, None
        parts: list[tuple[np.ndarray, np.ndarray, Hidden]] = []
        for exit_ in np.unique(self.exit[fed]).tolist():
            rows = np.flatnonzero(fed & (self.exit >= exit_))
            output = self._run_part(plan, rows, slice(below, exit_), inputs)
            index = all_copies(rows, len(fed), self.cache.copies, slot.device)
            self._store(output, index, slot.repeat(self.cache.copies, 1)[index])
            ends = self.exit[rows] == exit_
            parts.append((rows[ends], np.flatnonzero(ends), output))
            goes_on = np.flatnonzero(~ends)
            inputs = output.states[all_copies(goes_on, len(rows), self.cache.copies, slot.device)]
            below = exit_
        self.states = self.states[:, :-1]
        self.calls = calls + 1  # a node's layers count as one forward, in any number of parts
        return _ByExit(plan, parts)

    def early_draft(self, draft: Draft) -> Draft:
        """The draft with its nodes' states at the deepest exit; their K/V are in the slots of the verify forward."""
        real, slot = self._feed_rest(draft)
        index = slot.repeat(self.cache.copies, 1)[..., None, None].expand(-1, -1, *self.states.shape[2:])
        self.states = self.states.gather(1, index)  # indexed by node from here on
        deepest = int(self.exit.max())
        self._deepen(draft, real, deepest)
        exits = self.choice.exits.tolist()
        taps = {exit_ - 1: self.states[:, :, at] for at, exit_ in enumerate(exits) if exit_ <= deepest}
        return replace(draft, early=LowerLayerStates(deepest, taps[deepest - 1], taps), forwards=self.calls)

    def count(self, outcome: RoundResult, due: np.ndarray) -> None:
        """Counts the shadow tokens of the rows that are `due` [B], and learns from all rows' confidence."""
        self.choice.observe(outcome, self.context, None)
        if outcome.states is None or self.head is None or not due.any():
            return
        rows = np.flatnonzero(due)
        if "matched" in outcome.on_host:
            matched, count = (outcome.on_host[name][rows] for name in ("matched", "count"))
        else:
            matched = download(self._matched(outcome, rows))
            count = download(outcome.verdict.count)[rows]
        self.choice.count(rows, matched, count + 1)

    def to_observe(self, outcome: RoundResult) -> dict[str, Tensor]:
        """What `count` reads on the host: see `Drafter.to_observe`."""
        if outcome.states is None or self.head is None:
            return {}
        return {"matched": self._matched(outcome, np.arange(len(outcome.before)))}

    def _matched(self, outcome: RoundResult, which: np.ndarray) -> Tensor:
        """[n, C]: how many shadow tokens of each exit are those that followed, in the rows `which` [n]."""
        assert outcome.states is not None, "not the prompt's round"
        assert self.head is not None, "it has drafted"
        verdict = outcome.verdict
        rows = upload(which, verdict.path.device)
        path, count, tokens = verdict.path[rows], verdict.count[rows], outcome.draft.tokens[rows]
        order = torch.arange(path.shape[1], device=path.device)
        follows = tokens.gather(1, path).roll(-1, 1).where(order < count[:, None], verdict.next[rows, None])
        stands = order <= count[:, None]  # the text before the shadow token is the committed one
        states = outcome.states[rows].gather(1, path[..., None].expand(-1, -1, outcome.states.shape[-1]))
        matched = []
        for each in states.chunk(len(self.choice.exits), -1):
            shadow = argmax(self.head(each.flatten(0, 1)).float()).view_as(path)
            matched.append(((shadow == follows) & stands).sum(1))
        return torch.stack(matched, 1)

    def _run_part(self, plan: Plan, rows: np.ndarray, layers: slice, inputs: Tensor | None) -> Hidden:
        """A part of the layers for these rows of `plan`, from their states `inputs` [copies * n, Q, E] on."""
        taps = tuple(exit_ - 1 for exit_ in self.choice.exits.tolist() if layers.start < exit_ <= layers.stop)
        output = super()._run(of_rows(plan, rows, layers=layers, hidden=taps, soft=inputs))
        self.head = output.head
        return output

    def _store(self, output: Hidden, rows: Tensor, slot: Tensor) -> None:
        """Stores the outputs at the exits that a part passed, of `rows` [N] of the states, at `slot` [N, Q]."""
        for layer, states in output.taps.items():
            at = int(np.flatnonzero(self.choice.exits == layer + 1)[0])
            self.states[rows[:, None], slot, at] = states.to(self.states)

    def _deepen(self, draft: Draft, real: Tensor, deepest: int) -> None:
        """Brings the rows that exit early to the deepest exit, all nodes of each in one forward."""
        order = torch.arange(draft.width, device=self.start.device)
        start, calls = self.start[:, None], self.calls
        depth = order if draft.parents is None else draft.depth
        plan = Plan(
            tokens=draft.ids,
            positions=torch.where(real, start + depth, -1),
            slots=torch.where(real, start + order, -1),
            visible=Visible.causal() if draft.parents is None else Visible.tree(draft.parent, draft.start),
            lengths=self.start + upload(draft.sizes, order.device),
            want=order.expand_as(draft.tokens),
        )
        levels = [*np.unique(self.exit[self.exit < deepest]).tolist(), deepest]
        for below, exit_ in pairwise(levels):
            rows = np.flatnonzero(self.exit <= below)
            index = all_copies(rows, len(self.exit), self.cache.copies, order.device)
            at = int(np.flatnonzero(self.choice.exits == below)[0])
            output = self._run_part(plan, rows, slice(below, exit_), self.states[index, :, at])
            self._store(output, index, order.expand(len(index), -1))
        self.calls = calls
