"""Drafts with a model that reads a short context: the prompt's chunks most relevant to its end.

Long-Context Inference with Retrieval-Augmented Speculative Decoding, https://arxiv.org/abs/2502.20330

    x_i ~ q(. | beginning, chunks, query, text, x_1 .. x_(i-1)),  query = the last tokens of the prompt
    chunks: the prompt between beginning and query, cut every `chunk` tokens; the best by BM25 for the query, in order

The drafter has a cache of its own, of the short context alone, at consecutive positions: it may be the target itself,
for which `name` is left out. A prompt that is no longer than what would be kept is read whole, as by `model`. The
acceptance `enrich` adds the paper's transfer from drafter to target.

Deviates from the authors' code: chunks are ranked by the tokens that they share with the query and not by a second
model's embeddings, and are cut anywhere; the query is what the prompt ends with; rows of any lengths in a batch.
Exact: greedy and distribution, with an exact acceptance.

BM25 scores chunks by the tokens that they share with the query (The Probabilistic Relevance Framework: BM25 and Beyond,
https://doi.org/10.1561/1500000019):

    score(c) = sum over tokens t of the query  idf(t) n(t, c) (k1 + 1) / (n(t, c) + k1 (1 - b + b |c| / mean |c|))
    idf(t) = log(1 + (N - N_t + 1/2) / (N_t + 1/2)),  N_t of the N chunks contain t

Terms are token ids, so that BM25 needs no knowledge of the language.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...registry import register
from ...request import conditioned_model
from ...spec import ModelName
from ...traits import Trait
from ..contracts import DecodeContext
from ..draft_model import DraftModelState, StateDrafter, check_pair, parameter_ratio


class ShortContextState(DraftModelState):
    """A draft model whose text is a short prompt [P_b] per row and the row's generated tokens."""

    per_row = ("lag", "prompt", "short")
    lag: np.ndarray  # type: ignore[misc,assignment]  # [B] tokens of each row's prompt that the model does not read
    short: Tensor  # [B, P] int64 the short prompts, on the text's device
    prompt: np.ndarray  # [B] their lengths

    def __init__(self, context: DecodeContext, model: LanguageModel, prompts: Sequence[np.ndarray]) -> None:
        """`prompts`: one per live row, which ends like the row's own prompt."""
        text = context.text
        self.prompt = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.lag = text.prompt - self.prompt
        longest = int((text.limit - self.lag).max())
        super().__init__(context, model, model.new_cache(len(text), longest, scratch=context.scratch), own=True)
        whole = np.zeros((len(text), int(self.prompt.max())), dtype=np.int64)
        for row, prompt in zip(whole, prompts, strict=True):
            row[: len(prompt)] = prompt
        self.short = upload(whole, text.device)

    def _committed_tokens(self, rows: Tensor, where: Tensor) -> Tensor:
        tokens = self.context.text.tokens[rows]
        lag, prompt = (upload(each, where.device)[rows, None] for each in (self.lag, self.prompt))
        own = tokens.gather(1, (where + lag).clamp(max=tokens.shape[1] - 1))
        short = self.short[rows].gather(1, where.clamp(max=self.short.shape[1] - 1))
        return torch.where(where < prompt, short, own)


_K1, _B = 1.5, 0.75


def bm25(chunks: Sequence[np.ndarray], query: np.ndarray) -> np.ndarray:
    """The score [N] float64 of each of N chunks of token ids for a `query` [Q]; a repeated token counts each time.

    >>> bm25([np.array([1, 2, 2]), np.array([3, 4, 1])], np.array([2, 5])).round(2).tolist()
    [0.99, 0.0]
    """
    terms, times = np.unique(query, return_counts=True)
    count = np.array([[np.count_nonzero(chunk == term) for term in terms] for chunk in chunks], dtype=np.float64)
    size = np.array([len(chunk) for chunk in chunks], dtype=np.float64)
    containing = (count > 0).sum(0)
    idf = np.log1p((len(chunks) - containing + 0.5) / (containing + 0.5))
    weight = count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * size / size.mean())[:, None])
    scores: np.ndarray = weight @ (idf * times)
    return scores


@register("rapid", exact="greedy", checked="reference:samplers.speculative.test_rapid.naive joint")
class Rapid(StateDrafter):
    provides = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (5, 3, 8)}

    name: Annotated[ModelName | None, "the draft model; by default the target drafts for itself"] = None
    k: Annotated[int, "tokens drafted, which is how deep a tree grows"] = 5
    chunk: Annotated[int, "tokens per chunk"] = 64
    chunks: Annotated[int, "chunks kept"] = 8
    query: Annotated[int, "tokens at the prompt's end, which are the query and are kept"] = 64
    begin: Annotated[int, "tokens at the prompt's beginning that are kept"] = 4

    def __post_init__(self) -> None:
        self.require("k", "chunk", "chunks", "query", least=1)
        self.require("begin", least=0)

    @property
    def needed_model(self) -> str | None:
        return self.name

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """1 where the target drafts for itself; that it reads fewer K/V is not counted."""
        ratio = parameter_ratio(target, draft_model)
        return 1.0 if ratio is None else ratio

    def start(self, context: DecodeContext) -> ShortContextState:
        drafter: LanguageModel | DraftModule | None = context.model
        if self.name is not None:
            drafter = context.request.draft_model
            if not isinstance(drafter, LanguageModel):
                raise ModelError("rapid: the request has no draft model", "pass it as Request.draft_model")
            check_pair(drafter, context.model)
            drafter = conditioned_model(drafter, context.request)
        assert isinstance(drafter, LanguageModel)
        text = context.text
        prompts = [text.row(at)[: text.prompt[at]] for at in range(len(text))]
        if not context.request.conditions:  # the positions of an image's tokens are those of its grid
            prompts = [self.short_context(prompt) for prompt in prompts]
        return ShortContextState(context, drafter, prompts)

    def short_context(self, prompt: np.ndarray) -> np.ndarray:
        """The drafter's context for a prompt [P]: its beginning, the best chunks in text order, and its end."""
        if len(prompt) <= self.begin + self.chunk * self.chunks + self.query:
            return prompt
        begin, body, query = np.split(prompt, [self.begin, len(prompt) - self.query])
        chunks = np.split(body, range(self.chunk, len(body), self.chunk))
        best = np.argsort(-bm25(chunks, query), kind="stable")[: self.chunks]  # the earlier of equal ones
        return np.concatenate((begin, *(chunks[at] for at in np.sort(best)), query))
