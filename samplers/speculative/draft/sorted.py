"""Drafts with the first layers of a second checkpoint, and with more layers for tokens of low confidence.

S2D: Sorted Speculative Decoding For More Efficient Deployment of Nested Large Language Models,
https://arxiv.org/abs/2407.01955

    exits n_1 < n_2 < .. < n_S:  q_s = softmax(head(norm(h_(n_s)))),  the token is drawn from q_s of the first s with
    max q_s >= tau, or of the last exit

Every token begins with the first exit. If it is uncertain, the layers up to the next exit continue from the same
states; rows that continue form a group. Layers that a token skipped have no K/V of it: their input is stored, and they
run on it in the next forward that needs them. One set of weights drafts for any target of its vocabulary.
tau=0 is the first exit alone, tau=1 the last one.

Deviates from the paper: q is processed like the target's distribution, temperature and filters included, before its
maximum is compared with tau; one tau for all exits. Any checkpoint can be named; one that was trained for it learned
the sum of the losses at its exits (`scripts/train_text.py --exits`).
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan, Visible

from ...host_transfer import download, upload
from ...registry import register
from ...request import conditioned_model
from ...spec import ModelName
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, RoundResult, SubsetLogits, Uniforms
from ..draft_model import DraftModelState, ModelDrafter, check_pair
from ..forward import catch_up_groups
from .exits import all_copies, fitting_exits, parse_exits


class NestedState(DraftModelState):
    """The drafter in parts: part s runs the layers between exits s - 1 and s. A token has the slot of its position.

    Attributes:
        reach: [B, S] on the host: the first tokens of each row on which each part has run.
        inputs: [B, copies, S - 1, W, E] of the parts from the second on, by slot; valid below the reach of the part
            before it.
    """

    per_row = ("reach", "inputs")

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
        fed = download(nodes[:, 0]) if draft.grows is None else np.where(draft.grows, draft.width - 1, -1)
        stop = self.base + fed + 1  # [B] after the token that is fed
        rows = np.flatnonzero(fed >= 0)
        result: Tensor | None = None
        for part in range(len(self.parts)):
            last = part + 1 == len(self.parts)
            raw = self._fitted(self._advance(part, rows, stop[rows], draft))
            self.highest = self.highest + raw.amax(-1).sum()
            whole = raw.new_zeros(len(live), *raw.shape[1:])
            whole[upload(rows, raw.device)] = raw
            chosen = torch.zeros_like(live)
            chosen[upload(rows, live.device)] = True
            logits = self._processed(whole, draft, torch.where(chosen[:, None], nodes, -1))
            result = logits if result is None else torch.where(chosen[:, None, None], logits, result)
            if last:
                break
            if self.tau < 1:
                chosen = chosen & (logits[:, 0].softmax(-1).amax(-1) < self.tau)
                rows = np.flatnonzero(download(chosen))
            if not len(rows):
                break
        self.calls = calls + 1  # a token's layers count as one forward, in any number of parts
        assert result is not None, "there is at least one exit"
        return result

    def forward_subset(self, draft: Draft, nodes: Tensor) -> SubsetLogits:
        return SubsetLogits(self.forward(draft, nodes))

    def settle(self) -> None:
        """Drops K/V of rejected tokens; the text's last token was never fed."""
        self.reach = np.minimum(self.reach, self.context.text.length[:, None] - 1)

    def _advance(self, part: int, rows: np.ndarray, stop: np.ndarray, draft: Draft) -> Tensor:
        """Runs a part on the tokens of `rows` [n] before `stop` [n] that it lacks: logits [n, 1, V] after the last."""
        missing = stop - self.reach[rows, part]
        raw: Tensor | None = None
        for group in catch_up_groups(missing):
            logits = self._run_part(part, rows[group], missing[group], draft).logits()
            raw = logits.new_zeros(len(rows), *logits.shape[1:]) if raw is None else raw
            raw[upload(group, raw.device)] = logits
        self.reach[rows, part] = stop
        assert raw is not None, "rows are live"
        return raw

    def _run_part(self, part: int, rows: np.ndarray, missing: np.ndarray, draft: Draft) -> Hidden:
        text, whole = self.context.text, len(rows) == len(self.reach)
        device = text.device
        index, count = upload(rows, device), upload(missing, device)[:, None]
        first = upload(self.reach[rows, part], device)[:, None]
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
            self._give(part, rows, where, int((self.reach[rows, part] + missing.max()).max()), output.states)
        return output

    def _taken(self, part: int, rows: np.ndarray, where: Tensor) -> Tensor:
        """[copies * n, Q, E]: the inputs of a part at the slots `where` [n, Q]."""
        copies = self.cache.copies
        states = self.inputs[:, :, part - 1].transpose(0, 1).flatten(0, 1)  # [copies * B, W, E]
        states = states[all_copies(rows, len(self.reach), copies, states.device)]
        at = where.clamp(max=states.shape[1] - 1).repeat(copies, 1)
        return states.gather(1, at[..., None].expand(-1, -1, states.shape[-1]))

    def _give(self, part: int, rows: np.ndarray, where: Tensor, stop: int, states: Tensor) -> None:
        """Stores `states` [copies * n, Q, E] as inputs of the next part; replaces entries after a row's last one.

        All slots `where` [n, Q] are below `stop`.
        """
        more = stop - self.inputs.shape[3]
        if more > 0:
            self.inputs = pad(self.inputs, (0, 0, 0, more))
        index = upload(rows, states.device)
        split = states.view(self.cache.copies, len(rows), *states.shape[1:]).transpose(0, 1)
        for copy in range(self.cache.copies):
            self.inputs[index[:, None], copy, part, where] = split[:, copy].to(self.inputs)


@register("sorted", exact="greedy", checked="joint")
class Sorted(ModelDrafter):
    provides = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH})
    conflicts: ClassVar[Reasons] = {
        Trait.DRAFTS_TREES: Why(
            "{me} drafts chains, and {other!r} is a tree", "leave the shape out, or draft with model:name=..."
        )
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.7, 0.4, 0.9), "k": (5, 3, 8)}

    name: Annotated[ModelName | None, "the draft model: embedded name, folder or hub id"] = None
    exits: Annotated[str | None, "layers after which it can stop, joined by '-'; default: half of them, and all"] = None
    tau: Annotated[float, "more layers run if the likeliest token has less than this probability"] = 0.7
    k: Annotated[int, "tokens drafted"] = 5

    def __post_init__(self) -> None:
        self.require("k", least=1)
        self.require("tau", least=0, most=1)
        parse_exits("sorted", self.exits)

    def start(self, context: DecodeContext) -> NestedState:
        drafter = context.request.draft_model
        if not isinstance(drafter, LanguageModel):
            raise ModelError("sorted: the request has no draft model", "load it and pass it as Request.draft_model")
        check_pair(drafter, context.model)
        exits = parse_exits("sorted", self.exits) or tuple(sorted({max(1, drafter.layers // 2), drafter.layers}))
        fitting_exits("sorted", exits, drafter.layers, drafter.name)
        return NestedState(context, conditioned_model(drafter, context.request), exits, self.tau)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: NestedState) -> Draft:
        return state.draft(self.k, remaining, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: NestedState) -> None:
        state.settle()
