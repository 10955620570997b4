"""Drafts with a model that reads a short context: the chunks of the prompt that its end asks for.

Long-Context Inference with Retrieval-Augmented Speculative Decoding, https://arxiv.org/abs/2502.20330

    x_i ~ q(. | beginning, chunks, query, text, x_1 .. x_(i-1)),  query = the last tokens of the prompt
    chunks: the prompt between beginning and query, cut every `chunk` tokens; the best by BM25 for the query, in order

The drafter has a cache of its own, of the short context alone, at consecutive positions: it may be the target itself,
for which `name` is left out. A prompt that is no longer than what would be kept is read whole, as by `model`. The
acceptance `enrich` adds the paper's transfer from drafter to target.

Deviates from the authors' code: chunks are ranked by the tokens that they share with the query and not by a second
model's embeddings, and are cut anywhere; the query is what the prompt ends with; rows of any lengths in a batch.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.trimmed import parameters_read

from ...conditioning import conditioned_model
from ...ops.bm25 import bm25
from ...registry import register
from ...spec import ModelName
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, Uniforms
from ._checkpoint import check_pair
from ._short_context import ShortContextState


@register(
    "rapid",
    stage="draft",
    paper="arXiv:2502.20330",
    exact="greedy",
    checked="reference:samplers.speculative.test_rapid.naive joint",
)
@dataclass(frozen=True)
class Rapid(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (5, 3, 8)}

    name: Annotated[ModelName | None, "of the drafting checkpoint; by default the target drafts for itself"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    chunk: Annotated[int, "tokens of a chunk"] = 64
    chunks: Annotated[int, "chunks kept"] = 8
    query: Annotated[int, "tokens at the prompt's end that are the query, and kept"] = 64
    begin: Annotated[int, "tokens at the prompt's beginning that are kept"] = 4

    def __post_init__(self) -> None:
        self.require("k", "chunk", "chunks", "query", least=1)
        self.require("begin", least=0)

    @property
    def needed_model(self) -> str | None:
        return self.name

    def width(self, model: LanguageModel) -> int:
        return self.k + 1

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """Parameters of the drafter over those of the target; what it saves in reading K/V is not counted."""
        return parameters_read(draft_model) / target.parameters if isinstance(draft_model, LanguageModel) else 1.0

    def start(self, context: DecodeContext) -> ShortContextState:
        drafter: LanguageModel | DraftModule | None = context.model
        if self.name is not None:
            drafter = context.request.draft_model
            if not isinstance(drafter, LanguageModel):
                raise ModelError("rapid: the request has no draft model", "hand it in as Request.draft_model")
            check_pair(drafter, context.model)
            drafter = conditioned_model(drafter, context.request)
        assert isinstance(drafter, LanguageModel)
        text = context.text
        prompts = [text.row(at)[: text.prompt[at]] for at in range(len(text))]
        if not context.request.conditions:  # the positions of an image's tokens are those of its grid
            prompts = [self.short_context(prompt) for prompt in prompts]
        return ShortContextState(context, drafter, prompts)

    def short_context(self, prompt: np.ndarray) -> np.ndarray:
        """What the drafter reads of a prompt [P]: its beginning, the best chunks in their order, and its end."""
        if len(prompt) <= self.begin + self.chunk * self.chunks + self.query:
            return prompt
        begin, body, query = np.split(prompt, [self.begin, len(prompt) - self.query])
        chunks = np.split(body, range(self.chunk, len(body), self.chunk))
        best = np.argsort(-bm25(chunks, query), kind="stable")[: self.chunks]  # the earlier of equal ones
        return np.concatenate((begin, *(chunks[at] for at in np.sort(best)), query))

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: ShortContextState) -> Draft:
        return state.draft(self.k, room, uniforms)

    def observe(self, outcome: RoundResult, context: DecodeContext, state: ShortContextState) -> None:
        state.compact_cache(outcome)
