"""Drafts with the target itself, some of its attention and MLP sub-blocks left out.

SWIFT: On-the-Fly Self-Speculative Decoding for LLM Inference Acceleration, https://arxiv.org/abs/2410.06916
Draft & Verify: Lossless Large Language Model Acceleration via Self-Speculative Decoding,
https://arxiv.org/abs/2309.08168
Accelerating Inference in Large Language Models with a Unified Layer Skipping Strategy,
https://arxiv.org/abs/2404.06954 (`skip=uniform`)

    skipped: a share `ratio` of the attention and MLP sub-blocks of all layers but the first and the last
    search: skip <- skip'  iff  match(skip') > match(skip);  match = share of the first `context` generated tokens that
    are the drafter's argmax, all fed in one forward; one candidate a round

Later requests of the model start from the result of a search and continue it; with `disk`, those of later processes do
(by the weights, `ratio` and `context`). While no row has `context` generated tokens, a half or a quarter of them are
used, and a candidate is judged once scored on `context` tokens in all, over several short requests. Where tokens are
sampled without seeded noise, each request has its own search: a seed gives the same text.

It drafts on the target's KV cache; its own K/V are written where the verify pass writes next.

Deviates from the authors' code: candidates are chosen at random or by exchanging one sub-block of the best one, without
Bayesian optimisation; a length controller decides when to stop (theirs is `layerskip:k=25+unsure:tau=0.8`). The search
is shared by the batch.
Exact: greedy and distribution, with an exact acceptance. How much is drafted depends on the batch and, with
`skip=search`, on earlier requests; so do a row's sampled tokens, not their distribution.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from ...ops.rank import argmax
from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, SpeculativeSampler, Uniforms
from ..draft_model import DraftModelState
from ._skipping import Search, Skip, shared_search, uniform


@register("layerskip", stage="draft", paper="arXiv:2410.06916", exact="greedy", checked="joint")
@dataclass(frozen=True)
class LayerSkip(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"ratio": (0.45, 0.3, 0.6), "k": (5, 3)}

    ratio: Annotated[float, "share of the inner layers' sub-blocks that is skipped"] = 0.45
    skip: Annotated[Literal["uniform", "search"], "whole layers evenly spread, or what the search finds"] = "uniform"
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    context: Annotated[
        int, "generated tokens that a choice is scored on, over several requests where they are short"
    ] = 32
    disk: Annotated[bool, "keep what a search finds in the cache folder, where later processes begin with it"] = False

    def __post_init__(self) -> None:
        self.require("ratio", least=0, most=1)
        self.require("k", "context", least=1)

    def check(self, sampler: SpeculativeSampler) -> None:
        if self.disk and self.skip != "search":
            raise SpecError("layerskip: disk=true keeps what a search finds", hint="write skip=search,disk=true")

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The sub-blocks that a forward runs, of all."""
        return 1 - len(uniform(target.layers, self.ratio)) / (2 * target.layers)

    def start(self, context: DecodeContext) -> Skipping:
        layers = context.model.layers
        state = Skipping(context, context.model, context.cache, skip=uniform(layers, self.ratio))
        if self.skip == "search":
            sampling = context.request.temperature and not context.sampler.accept.seeded
            state.search = (
                Search(layers, self.ratio)
                if sampling
                else shared_search(context.model, self.ratio, self.context, disk=self.disk)
            )
            state.skip = state.search.best
        return state

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Skipping) -> Draft:
        tries = state.improve(self.context)
        draft = state.draft(self.k, room, uniforms)
        return replace(draft, forwards=draft.forwards + tries)


class Skipping(DraftModelState):
    """The target without some sub-blocks."""

    search: Search | None = None

    @property
    def accepts_rows(self) -> bool:
        """Rows cannot join during a search, which scores the rows it began with."""
        return self.search is None

    def improve(self, context: int) -> int:
        """Scores one candidate of the search and returns the number of forwards it took.

        Rows need `context` generated tokens, or a half or a quarter of them, and free slots to feed them to.
        """
        text, search = self.context.text, self.search
        if search is None:
            return 0
        for count in (context, max(context // 2, 1), max(context // 4, 1)):
            enough = (text.length - text.prompt >= count) & (text.length - 1 + count <= self.cache.reach)
            if enough.any():
                break
        rows = np.flatnonzero(enough)
        prompts = tuple(text.row(at)[: text.prompt[at]].tobytes() for at in rows.tolist())
        skip = search.next(prompts, count / context) if prompts else None
        if skip is None:
            self.skip = search.best
            return 0
        search.record(skip, self._match(skip, rows, count))
        self.skip = search.best
        return 1

    def _match(self, skip: Skip, rows: np.ndarray, context: int) -> float:
        """The share of the first generated tokens of `rows` that are the argmax of the target without `skip`."""
        text, device = self.context.text, self.context.text.device
        which = torch.from_numpy(rows).to(device)
        first = torch.from_numpy(text.prompt[rows] - 1).to(device)[:, None]
        free = torch.from_numpy(text.length[rows] - 1).to(device)[:, None]  # slots behind the committed ones
        order = torch.arange(context, device=device).expand(len(rows), -1)
        slot = torch.arange(int(text.length[rows].max()) - 1 + context, device=device)
        rank = slot - free
        fed = (rank[:, None] >= 0) & (rank[:, None] <= order[..., None])
        tokens = text.tokens[which]
        plan = Plan(
            tokens=tokens.gather(1, first + order),
            positions=first + order,
            slots=free + order,
            visible=Visible.mask((slot < first)[:, None] | fed),
            lengths=free[:, 0] + context,
            want=order,
            skip=skip,
            rows=which,
        )
        guess = argmax(self.model.run(plan, self.cache).logits())
        return float((guess == tokens.gather(1, first + order + 1)).float().mean())
