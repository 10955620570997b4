"""Drafts with the target that reads a part of its keys and values, which a small model drafts for.

TriForce: Lossless Acceleration of Long Sequence Generation with Hierarchical Speculative Decoding,
https://arxiv.org/abs/2404.11912

    until a row has gamma tokens:
      y_i ~ m(. | text, x, y_1 .. y_(i-1)),  i = 1 .. k                         the small model
      y_i kept  iff  u m(y_i) < p'(y_i);  then one token of norm([p' - m]+), or of p' behind the last     the reading
    x_j accepted  iff  u p'(x_j) < p(x_j);  at the first rejection  next ~ norm([p - p']+)                the target

A token that leaves the inner loop is distributed as p' given what is before it, so that q = p' at the time it was drawn
makes the outer test exact. The reading is a cache of an autoregressive spec; after every round the target's own keys
and values replace those that were made through it.

Deviates from the authors' code: rows of any lengths in a batch; the small model reads its whole text; tokens drafted
are cut at the length limit alone, gamma and up to k more a round.
Exact: greedy and distribution, with an exact acceptance, whatever the small model and the reading do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch

from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel

from ...ops.verification import judge
from ...registry import register
from ...spec import ModelName
from ..contracts import (
    DecodeContext,
    Draft,
    Drafter,
    InverseCDFUniforms,
    RoundResult,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
)
from ..draft_model import DraftModelState
from ..reading import demand_plain_decoder, reading_of, refuse_stores
from ..shape.chain import Chain
from ._checkpoint import check_pair
from ._hierarchy import DraftedText, Hierarchy, InnerUniforms, MiddleModel


@register("triforce", stage="draft", paper="arXiv:2404.11912", exact="greedy", checked="joint")
@dataclass(frozen=True)
class TriForce(Drafter):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"gamma": (6, 4, 8), "k": (2, 3)}
    _reading: ClassVar[Any]

    name: Annotated[ModelName | None, "of the small checkpoint: embedded name, folder or hub id"] = None
    read: Annotated[str, 'spec of the reading, quoted: "retrieval:budget=512" or "streaming:window=496"'] = "retrieval"
    k: Annotated[int, "tokens that the small model drafts at a time"] = 2
    gamma: Annotated[int, "tokens to collect before the target verifies them; up to k more come"] = 6

    def __post_init__(self) -> None:
        self.require("k", "gamma", least=1)
        object.__setattr__(self, "_reading", reading_of(self.read, "triforce"))  # no field: it follows from the spec

    def check(self, sampler: SpeculativeSampler) -> None:
        refuse_stores("triforce", sampler)
        if not self.name:
            raise SpecError(
                "triforce: name is not given: the small checkpoint",
                hint="write triforce:name=... with an embedded name, a folder or a hub id of the target's vocabulary",
            )

    @property
    def needed_model(self) -> str | None:
        return self.name

    @property
    def last_queries(self) -> int:
        return int(self._reading.last_queries)

    def width(self, model: LanguageModel) -> int:
        return self.gamma + self.k + 1

    def start(self, context: DecodeContext) -> Hierarchy:
        small = context.request.draft_model
        if not isinstance(small, LanguageModel):
            raise ModelError(
                "triforce: the request has no small model", "load it and hand it in as Request.draft_model"
            )
        check_pair(small, context.model)
        demand_plain_decoder(context.model, "triforce")
        drafted = DraftedText(context.text, context.distribution)
        middle = MiddleModel(context, self._reading, self.gamma + self.k)
        sampler = replace(context.sampler, shape=Chain(), length=None)
        inner = replace(context, text=drafted.text, distribution=drafted.distribution, sampler=sampler)
        cache = context.drafter_cache(small)
        state = DraftModelState(inner, small, cache, own=True)
        state.reuse_prefixes()
        return Hierarchy(drafted, middle, state)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Hierarchy) -> Draft:
        assert isinstance(uniforms, InverseCDFUniforms), "the loop's are"
        drafted, text, middle, small = state.drafted, state.drafted.text, state.middle, state.small
        drafted.begin()
        middle.begin()
        forwards, highest = 0, middle.highest
        sampling = context.request.temperature > 0
        for number in range(self.gamma):  # each gives every open row a token at least
            open_rows = drafted.count < np.minimum(room, self.gamma)
            if not open_rows.any():
                break
            own = InnerUniforms(uniforms, number)
            left = np.where(open_rows, room - drafted.count - 1, 0)
            draft = small.draft(self.k, left, own)
            forwards += draft.forwards
            highest = highest + (0 if draft.highest is None else draft.highest)
            raw = middle.verify(draft)
            nodes = torch.arange(draft.width, device=raw.device)
            sizes = torch.from_numpy(draft.sizes).to(raw.device)[:, None]
            logits = drafted.distribution(raw, draft, torch.where(nodes < sizes, nodes, -1))
            distributions = TargetDistributions(raw, logits, greedy=not sampling)
            verdict = judge(draft, distributions.probs, own)
            lead = torch.arange(draft.width, device=raw.device) < verdict.count[:, None]
            tokens = torch.where(lead, draft.tokens.roll(-1, 1), verdict.next[:, None])
            counts = np.where(open_rows, verdict.count.cpu().numpy() + 1, 0)
            small_sees = RoundResult(draft, verdict, distributions, text.length.copy(), counts)
            drafted.commit(tokens, counts, distributions.probs if sampling else None)
            small.compact_cache(small_sees)
        return replace(drafted.draft(), forwards=forwards + middle.calls, highest=highest + middle.highest)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Hierarchy) -> None:
        state.middle.follow()
        state.small.cached = np.minimum(state.small.cached, context.text.length - 1)
