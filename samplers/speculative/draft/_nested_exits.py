"""A checkpoint that drafts from several depths, during one request."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ...batching import put_rows
from ..contracts import DecodeContext, Draft
from ..draft_model import DraftModelState
from ..forward import catch_up_groups
from ..over_ids import LogitsOverIds
from ._exits import all_copies


class NestedState(DraftModelState):
    """The drafter in parts: part s runs the layers between exits s - 1 and s. A token has the slot of its position.

    Attributes:
        reach: [B, S] on the host: the first tokens of each row on which each part has run.
        inputs: [B, copies, S - 1, W, E] of the parts from the second on, by slot; valid below the reach of the part
            before it.
    """

    def __init__(self, context: DecodeContext, model: LanguageModel, exits: tuple[int, ...], tau: float) -> None:
        rows, cache = len(context.text), context.drafter_cache(model)
        super().__init__(context, model, cache, own=True)
        self.parts = [slice(start, stop) for start, stop in pairwise((0, *exits))]
        self.tau = tau
        self.reach = np.zeros((rows, len(self.parts)), dtype=np.int64)
        shape = rows, cache.copies, len(self.parts) - 1, 0, model.width
        self.inputs = torch.zeros(shape, dtype=model.dtype, device=model.device)

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        calls, live = self.calls, nodes[:, 0] >= 0
        stop = self.base + nodes[:, 0].cpu().numpy() + 1  # [B] behind the token that is fed
        rows = np.flatnonzero(live.cpu().numpy())
        result: Tensor | None = None
        for part in range(len(self.parts)):
            raw = self._fitted(self._advance(part, rows, stop[rows], draft))
            self.highest = self.highest + raw.amax(-1).sum()
            whole = raw.new_zeros(len(live), *raw.shape[1:])
            whole[torch.from_numpy(rows).to(raw.device)] = raw
            chosen = torch.zeros_like(live)
            chosen[torch.from_numpy(rows).to(live.device)] = True
            logits = self._processed(whole, draft, torch.where(chosen[:, None], nodes, -1))
            result = logits if result is None else torch.where(chosen[:, None, None], logits, result)
            if self.tau < 1:
                chosen = chosen & (logits[:, 0].softmax(-1).amax(-1) < self.tau)
            rows = np.flatnonzero(chosen.cpu().numpy())
            if not len(rows):
                break
        self.calls = calls + 1  # a token's layers, in however many parts
        assert result is not None, "there is at least one exit"
        return result

    def forward_over_ids(self, draft: Draft, nodes: Tensor) -> LogitsOverIds:
        return LogitsOverIds(self.forward(draft, nodes))

    def settle(self) -> None:
        """Rejected tokens are not in the text; the last one of it was never fed."""
        self.reach = np.minimum(self.reach, self.context.text.length[:, None] - 1)

    def keep(self, rows: np.ndarray) -> None:
        super().keep(rows)
        self.reach = self.reach[rows]
        self.inputs = self.inputs[torch.from_numpy(rows).to(self.inputs.device)]

    def put(self, where: np.ndarray, other: DraftModelState) -> None:
        assert isinstance(other, NestedState)
        super().put(where, other)
        self.reach = put_rows(self.reach, where, other.reach)
        self.inputs = put_rows(self.inputs, where, other.inputs)

    def _advance(self, part: int, rows: np.ndarray, stop: np.ndarray, draft: Draft) -> Tensor:
        """Runs a part on the tokens of `rows` [n] before `stop` [n] that it lacks: logits [n, 1, V] behind the last."""
        missing = stop - self.reach[rows, part]
        raw: Tensor | None = None
        for group in catch_up_groups(missing):
            logits = self._run_part(part, rows[group], missing[group], draft).logits()
            raw = logits.new_zeros(len(rows), *logits.shape[1:]) if raw is None else raw
            raw[torch.from_numpy(group).to(raw.device)] = logits
        self.reach[rows, part] = stop
        assert raw is not None, "rows are live"
        return raw

    def _run_part(self, part: int, rows: np.ndarray, missing: np.ndarray, draft: Draft) -> Hidden:
        text, whole = self.context.text, len(rows) == len(self.reach)
        device = text.device
        index, count = torch.from_numpy(rows).to(device), torch.from_numpy(missing).to(device)[:, None]
        first = torch.from_numpy(self.reach[rows, part]).to(device)[:, None]
        order = torch.arange(int(missing.max()), device=device)
        where = first + order
        slots = torch.where(order < count, where, -1)
        base = self.start[index, None]
        committed = text.tokens[index].gather(1, where.clamp(max=text.tokens.shape[1] - 1))
        drafted = draft.tokens[index].gather(1, (where - base).clamp(0, draft.width - 1))
        plan = Plan(
            tokens=self._tokens(torch.where(where > base, drafted, committed)),
            positions=slots,
            slots=slots,
            visible=Visible.causal(),
            lengths=first[:, 0] + count[:, 0],
            want=count - 1,
            soft=self._taken(part, rows, where) if part else None,
            layers=self.parts[part],
            rows=None if whole else index,
        )
        output = self._run(plan)
        if part + 1 < len(self.parts):
            self._give(part, rows, where, output.states)
        return output

    def _taken(self, part: int, rows: np.ndarray, where: Tensor) -> Tensor:
        """[copies * n, Q, E] the inputs of a part at the slots `where` [n, Q]."""
        copies = self.cache.copies
        states = self.inputs[:, :, part - 1].transpose(0, 1).flatten(0, 1)  # [copies * B, W, E]
        states = states[all_copies(rows, len(self.reach), copies, states.device)]
        at = where.clamp(max=states.shape[1] - 1).repeat(copies, 1)
        return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))

    def _give(self, part: int, rows: np.ndarray, where: Tensor, states: Tensor) -> None:
        """Stores `states` [copies * n, Q, E] as inputs of the next part; what lies behind a row's last is replaced."""
        more = int(where.max()) + 1 - self.inputs.shape[3]
        if more > 0:
            self.inputs = pad(self.inputs, (0, 0, 0, more))
        index = torch.from_numpy(rows).to(states.device)
        split = states.view(self.cache.copies, len(rows), *states.shape[1:]).transpose(0, 1)
        for copy in range(self.cache.copies):
            self.inputs[index[:, None], copy, part, where] = split[:, copy].to(self.inputs)
