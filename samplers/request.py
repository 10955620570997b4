"""The request that any loop decodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.images.conditioned import Conditioned, Prefix
from pardec.models.images.contracts import Condition
from pardec.models.model import LanguageModel

from .batching import RowRequest
from .ops.token_automaton import TokenAutomaton
from .rng import Source
from .traits import Trait


@dataclass(frozen=True)
class Request(RowRequest):
    """The arguments of one call of a loop, checked by the caller; lengths are in tokens.

    Attributes:
        canvases: per row [L_i] int64: prompt, then mask ids (-1 for autoregressive models) where tokens are to come.
        prompts: per row, where the generated region, and a prompt-aligned block grid, begins.
        absolute: lay the block grid from position 0 instead of from the prompt's end.
        min_p: leaves out tokens less likely than this share of the likeliest one.
        repetition_penalty: makes tokens that stand in the row less likely; None is off.
        presence_penalty: taken off the logits of tokens that the row has generated.
        frequency_penalty: the same, times how often it has generated them.
        logit_bias: pairs of an id and a number that is added to its logit.
        min_new_tokens: at this many positions after the prompt no end token is committed.
        cfg: guidance scale in l_u + cfg * (l_c - l_u); None is off.
        cfg_interval: of images: tokens after the first interval + 2 are not guided; None guides all.
        conditions: of images: what each row shows; positions before the first image token hold -1.
        prefix: what the model makes of the conditions.
        size: of images: height and width in pixels; None is the model's own.
        share_prompt: rows of one long prompt, or of prompts that begin alike, feed that once and have its K/V in memory
            once, where an autoregressive model can; rows of other requests cannot join them.
        samples: per row, which text of its prompt it is, counted from 0; () are all the first. Methods whose texts come
            from one pass read it; sampling tells them apart by seed.
        corpus: tokens that n-grams are counted in, where the sampler names a corpus.
        draft_model: the checkpoint that drafts, where the sampler's drafter needs one.
        stops: per row, what ends it beside `stop_ids`; () ends none.
        constrained_spans: per row, the gaps whose tokens depend on each other; masked models only. () are none.
        grammars: per row, what its text follows from left to right; autoregressive models only. () are none.
        processors: logits processors of transformers; autoregressive models only.
        logprobs: record the log-probability of each committed token, and of this many likeliest ones; None: no record.
        logprob_ids: candidates whose log-probabilities are recorded too, where `logprobs` is not None.
        finished: [B, L + 1] int64: the finished text of `Select.reference_sampler`, -1 where it has none.
    """

    per_row = (
        *("canvases", "prompts", "conditions", "samples", "stops", "constrained_spans", "grammars"),
        *("prefix", "allowed"),
    )

    canvases: tuple[Tensor, ...]
    prompts: tuple[int, ...]
    block_length: int
    source: Source
    absolute: bool = False
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_new_tokens: int = 0
    cfg: float | None = None
    cfg_interval: int | None = None
    conditions: tuple[Condition, ...] = ()
    prefix: Prefix | None = None
    size: tuple[int, int] | None = None
    share_prompt: bool = True
    samples: tuple[int, ...] = ()
    corpus: tuple[int, ...] | None = None
    draft_model: LanguageModel | DraftModule | None = None
    stop_ids: tuple[int, ...] = ()
    stops: tuple[Ending | None, ...] = ()
    allowed: Allowed | None = None
    constrained_spans: tuple[tuple[ConstrainedSpan, ...], ...] = ()
    grammars: tuple[Grammar | None, ...] = ()
    processors: tuple[Callable[[Tensor, Tensor], Tensor] | ByRow, ...] = ()
    logprobs: int | None = None
    logprob_ids: tuple[int, ...] = ()
    finished: Tensor | None = None

    @property
    def filters(self) -> dict[str, Any]:
        """The active filters, as arguments of `ops.distribution.filter_logits`."""
        every = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {name: value for name, value in every.items() if value is not None}

    @property
    def penalizes_counts(self) -> bool:
        """Whether tokens are penalized by how often the row has generated them."""
        return self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def reads_history(self) -> bool:
        """Whether logits are changed by the tokens before a position."""
        return bool(self.processors) or self.repetition_penalty is not None or self.penalizes_counts

    @property
    def extras(self) -> Mapping[Trait, str]:
        """The traits of the request's extra features, each with the name of the argument that asks for it."""
        asked = {
            Trait.TEMPERATURE: (f"temperature={self.temperature}", self.temperature > 0),
            Trait.CONDITIONS: ("images", bool(self.conditions)),
            Trait.PROCESSORS: ("logits processors", self.reads_history or bool(self.logit_bias)),
            Trait.ALLOWED_TOKENS: ("allowed", self.allowed is not None or any(self.constrained_spans)),
            Trait.GRAMMAR: ("response_format", any(self.grammars)),
            Trait.STOPS: ("stop", any(self.stops)),
            Trait.LATE_END: ("min_new_tokens", self.min_new_tokens > 0),
            Trait.LOGPROBS: ("logprobs", self.logprobs is not None),
        }
        return {trait: name for trait, (name, present) in asked.items() if present}

    @property
    def kind(self) -> tuple[Any, ...]:
        """A key that is equal for requests whose rows can share a batch; their samplers are compared separately."""
        shared = (getattr(self, each.name) for each in fields(self) if each.name not in _OF_ROWS)
        return (*shared, bool(self.conditions), tuple(map(id, self.processors)))

    def check_ends(self) -> None:
        """Raises SpecError for a position where only end tokens are allowed, and `min_new_tokens` excludes them."""
        if self.allowed is None or not self.min_new_tokens:
            return
        others = self.allowed.sets.clone()
        others[:, list(self.stop_ids)] = False
        ends = (~others.any(1)).cpu()
        for row, (at, start) in enumerate(zip(self.allowed.at, self.prompts, strict=True)):
            early = ends[at[start : start + self.min_new_tokens]]
            if early.any():
                raise SpecError(
                    f"allowed of row {row} has only end tokens at index {int(early.nonzero()[0])}, and "
                    f"min_new_tokens={self.min_new_tokens} excludes them there",
                    hint="leave min_new_tokens out, or allow another token",
                )


# Fields that may differ between the rows of a batch, that come with the sampler, or that are compared elsewhere.
_OF_ROWS = frozenset(
    (
        *("canvases", "prompts", "source", "conditions", "prefix", "share_prompt", "samples", "corpus", "draft_model"),
        *("stops", "allowed", "constrained_spans", "grammars", "processors", "finished"),
    )
)


class Ending(Protocol):
    """A condition that ends a row, in addition to end tokens."""

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """How many of the generated `ids`, more than `known`, remain when the row ends; None if it continues.

        The answer for a prefix of `ids` must not depend on what follows it.
        """
        ...


class Grammar(Protocol):
    """A grammar: the tokens that may follow those that a row has generated."""

    def mask(self, ids: Sequence[int]) -> np.ndarray:
        """[V] bool: the tokens that may follow the generated `ids`, at least one; a function of `ids` alone.

        After ids that the grammar does not allow the answer means nothing.
        """
        ...


class ByRow(Protocol):
    """A logits processor that also receives the indices of its rows."""

    def by_row(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [N, V] after the histories `ids` [N, L] of these `rows` [N] of the request."""
        ...


@dataclass(frozen=True, eq=False)
class ConstrainedSpan:
    """Positions from `start` on (from the row's first) whose tokens an automaton constrains together."""

    start: int
    automaton: TokenAutomaton


@dataclass(frozen=True)
class Allowed(RowRequest):
    """The allowed tokens at each position, as one of a few sets."""

    per_row = ("at",)

    sets: Tensor  # [S, V] bool; set 0 allows everything
    at: tuple[Tensor, ...]  # per row [L_i] int64: the set of each position


def conditioned_model(model: LanguageModel, request: Request, prefix: Prefix | None = None) -> LanguageModel:
    """`model` with the request's conditions before its tokens, guided by `cfg`; the model itself without conditions.

    Args:
        prefix: the model's encoding of the conditions, if it exists already; a draft model encodes them itself.

    Raises:
        ModelError: it does not generate images.
    """
    if not request.conditions:
        return model
    if model.imaging is None:
        raise ModelError(
            f"{model.name} generates no images, and the request has image conditions", "use an image model"
        )
    imaging = model.imaging if request.size is None else model.imaging.resized(*request.size)
    prefix = prefix if prefix is not None else imaging.prefix(request.conditions)
    stack = Conditioned(model.decoder, prefix, request.prompts, cfg=request.cfg, interval=request.cfg_interval)
    return replace(model, decoder=stack, imaging=imaging)
