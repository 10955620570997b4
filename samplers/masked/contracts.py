"""The seams of the masked loop: what a request holds, what stages see, and the Protocol of each stage.

Stages are immutable. What one remembers over a request is the value its `start` made, handed back to every call;
each tensor or array in it has the live rows first, so that a finished row can leave (`take_rows`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pardec.models.images.conditioned import Prefix
from pardec.models.images.contracts import Condition
from pardec.models.kv_cache import KVCache

from ..ops.distribution import Distribution, filter_logits
from ..rng import Source
from ..spec import Spec
from .canvas import Canvas, Revision, Writing

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_NEVER = torch.tensor(-torch.inf, device="cpu")  # made once: a number becomes a tensor at every call


@dataclass(frozen=True)
class Request:
    """What one call of a loop decodes. Checked by the caller; lengths are in tokens."""

    canvases: tuple[
        Tensor, ...
    ]  # per row [L_i] int64: prompt, then mask ids (-1 for AR models) where tokens are to come
    prompts: tuple[int, ...]  # per row: where the generated region, and a prompt-aligned block grid, begins
    block_length: int
    source: Source
    absolute: bool = False  # lay the block grid from position 0 instead of from the prompt's end
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None  # leaves out what is less likely than so much of the likeliest
    repetition_penalty: float | None = None  # tokens that stand in the row are less likely by it; None is off
    min_new_tokens: int = 0  # at so many positions after the prompt no end token is committed
    cfg: float | None = None  # l_u + cfg * (l_c - l_u); None is off
    cfg_interval: int | None = None  # of pictures: tokens behind the first interval + 2 are not guided; None: all are
    conditions: tuple[Condition, ...] = ()  # what the rows show, of pictures; positions before the first cell hold -1
    prefix: Prefix | None = None  # what the model makes of them
    draft_model: LanguageModel | None = None  # the checkpoint that drafts, where the sampler's drafter needs one
    stop_ids: tuple[int, ...] = ()
    stops: tuple[Ending | None, ...] = ()  # per row, what ends it besides; () ends none
    allowed: Allowed | None = None
    processors: tuple[Callable[[Tensor, Tensor], Tensor] | ByRow, ...] = ()  # transformers' logits processors; AR only
    finished: Tensor | None = (
        None  # [B, L + 1] int64 text of a reference decode, -1 where there is none; see `Referring`
    )

    @property
    def filters(self) -> dict[str, Any]:
        """What `filter_logits` takes beside the temperature, of what is asked for."""
        asked = {"top_k": self.top_k, "top_p": self.top_p, "min_p": self.min_p}
        return {name: value for name, value in asked.items() if value is not None}


class Ending(Protocol):
    """What ends a row beside its end tokens."""

    def first(self, ids: Sequence[int], known: int = 0) -> int | None:
        """How many of the generated `ids`, more than `known`, stand when the row ends; None where it goes on.

        It says of every beginning of `ids` what it says of them.
        """
        ...


class ByRow(Protocol):
    """In place of a logits processor: one that is told which rows it sees."""

    def by_row(self, rows: Tensor, ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [N, V] behind the histories `ids` [N, L]; `rows` [N] are the rows of the request they are of."""
        ...


@dataclass(frozen=True)
class Allowed:
    """Which tokens may stand where; every position takes one of a few sets."""

    sets: Tensor  # [S, V] bool; set 0 allows everything
    at: tuple[Tensor, ...]  # per row [L_i] int64: the set of each position

    @cached_property
    def forced(self) -> Tensor | None:
        """[R, L] int64: the one token that may stand at a position, -1 where several may; None if nowhere is but one.

        Behind a row's end stands -1.
        """
        only = torch.where(self.sets.sum(-1) == 1, self.sets.long().argmax(-1), -1)
        if bool((only < 0).all()):
            return None
        return pad_sequence([only[at.to(only.device)] for at in self.at], batch_first=True, padding_value=-1)

    def take(self, rows: Sequence[int]) -> Allowed:
        """For these rows only."""
        return Allowed(self.sets, tuple(self.at[row] for row in rows))


@dataclass(frozen=True)
class Evidence:
    """What one forward says of the active block, rows aligned to the block. `eligible` marks what may be committed."""

    distribution: Distribution  # the model's own distribution, the mask id at -inf
    positions: Tensor  # [B, W] int64 absolute
    eligible: Tensor  # [B, W] bool
    request: Request
    shadow: Distribution | None = (
        None  # what a stage with `shadow` asked for: each position predicted without its own token
    )

    @property
    def logits(self) -> Tensor:
        """[B, W, V] float32."""
        return self.distribution.logits

    @cached_property
    def filtered(self) -> Distribution:
        """The distribution that candidates are drawn from: after temperature, top-p, top-k and min-p."""
        temperature, filters = self.request.temperature, self.request.filters
        if filters:
            return self.distribution.mapped(partial(filter_logits, temperature=temperature, **filters))
        return self.distribution.scaled(temperature) if temperature else self.distribution

    def draw(self, canvas: Canvas) -> Tensor:
        """A candidate per position, [B, W] int64: the argmax at temperature 0, else a keyed draw from `filtered`.

        On a CPU what is neither open nor revised is not drawn: the token that stands there does.
        """
        if not self.request.temperature:
            return self.distribution.greedy[0]
        uniform, vocab, positions = self.request.source.uniform, self.distribution.vocab, self.positions.flatten()
        every = canvas.revises or positions.device.type != "cpu"
        places = np.arange(len(positions)) if every else np.flatnonzero(self.eligible.numpy())

        def noise(some: np.ndarray) -> Tensor:
            row, at = some // self.positions.shape[1], torch.from_numpy(some).to(positions.device)
            return uniform(canvas.rows[row], canvas.step[row], positions[at][:, None], "token", vocab)[:, 0]

        tokens = canvas.tokens.gather(1, self.positions)
        index = torch.from_numpy(places).to(positions.device)
        drawn = self.filtered.draw(places, noise)
        return tokens.flatten().index_copy_(0, index, drawn).view(tokens.shape)

    def propose(self, tokens: Tensor, score: Tensor) -> Proposal:
        """The candidates with their scores where eligible."""
        return Proposal(tokens, torch.where(self.eligible, score, _NEVER), self)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and its score for every position of the active block; higher is surer."""

    tokens: Tensor  # [B, W] int64
    score: Tensor  # [B, W] float32, -inf where not eligible
    evidence: Evidence

    @property
    def eligible(self) -> Tensor:
        return self.evidence.eligible


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """Which positions a forward queries: [start, stop) of each row, or any set as a mask. Arrays live on the host.

    The loop itself adds the rows whose output predicts the wanted positions (one to the left in shifted families).
    """

    start: np.ndarray  # [B]
    stop: np.ndarray  # [B]
    mask: Tensor | None = None  # [B, L] bool; when given it replaces the span
    must: np.ndarray | None = None  # [B] bool: commit exactly the block's first position if it is open
    only: Tensor | None = None  # [B, W] bool: on the host: nothing else of the block is to be predicted


class Cache(Protocol):
    """Which positions does this forward query? The first forward of a request is full whatever the answer."""

    stores: bool  # False: earlier K/V is never read, so none is kept

    def query(self, canvas: Canvas, state: Any) -> QuerySpec: ...


class Inputs(Protocol):
    """Adds vectors to the inputs of the active block's open positions."""

    def soft(self, canvas: Canvas, state: Any) -> Tensor | None:
        """Before a forward: [B, W, E], or None where there is nothing to add."""
        ...

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Any) -> None:
        """After it; `embed` mixes the model's embeddings, [B, W, V] weights -> [B, W, E]."""
        ...


class LogitsStage(Protocol):
    """Changes the law of the active block: the whole of it, or a few logits (`Law.raised`)."""

    def logits(self, evidence: Evidence, canvas: Canvas, state: Any) -> Distribution: ...


class Propose(Protocol):
    """A candidate and a score per position."""

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A select's answer where it names the tokens as well."""

    which: Tensor  # [B, W] bool
    tokens: Tensor  # [B, W] int64


class Select(Protocol):
    """Which candidates are committed: [B, W] bool. What a schedule may define besides: `Scheduled`, `Ahead`."""

    def select(self, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor | Choice: ...


@runtime_checkable
class Scheduled(Protocol):
    """A select with a clock: told before each forward, it answers how many idle steps the clock skips, [B]."""

    def tick(self, canvas: Canvas, state: Any) -> np.ndarray: ...


@runtime_checkable
class Planned(Protocol):
    """A select that knows how many steps it takes in all, [B]; asked once, at the start."""

    def planned(self, canvas: Canvas) -> np.ndarray: ...


@runtime_checkable
class Laid(Protocol):
    """A select whose plan says at which step it enters the active block, [B]; asked before `tick`, once a block.

    A block that is complete before its steps are over leaves the others idle: the clock counts them too.
    """

    def begins(self, canvas: Canvas) -> np.ndarray: ...


@runtime_checkable
class Ahead(Protocol):
    """A select that can know before a forward what it will commit, asked after `tick`.

    [B, W] int64 on the host: 1 for what it commits first, then 2, 3, ..., and 0 for what it does not commit. It says
    nothing true unless the select's order, or the proposer's scores, are `blind`: known without the forward.
    """

    def ahead(self, canvas: Canvas, request: Request, state: Any) -> Tensor: ...


@runtime_checkable
class Referring(Protocol):
    """A select that is told, in `Request.finished`, what the sampler `of` (a spec) ends with on the same request."""

    of: str


class Widen(Protocol):
    """Adds to what select chose: [B, W] bool in and out."""

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor: ...


class Revise(Protocol):
    """Takes back or edits what the active block has committed. `evidence` then covers committed positions too.

    `shadow = True` asks for `evidence.shadow` beside it; `idle = True` says that nothing is ever revised.
    """

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Revision:
        """`chosen` [B, W] is what this step commits; it takes effect together with the revision."""
        ...


class Outlook(Protocol):
    """The forward just made, beyond the active block; raw laws, guidance included, the mask id at -inf."""

    def has(self, positions: Tensor) -> Tensor:
        """Whether this forward predicts each of `positions` [B, K]: bool [B, K]."""
        ...

    def at(self, positions: Tensor) -> Distribution:
        """The model's distribution at `positions` [B, K]; meaningless where `has` is False."""
        ...


@runtime_checkable
class Filling(Protocol):
    """A finish that may commit all open positions at once, in place of this step's commit: [B] bool on the host."""

    def fill(self, outlook: Outlook, proposal: Proposal, canvas: Canvas) -> np.ndarray: ...


class Finish(Protocol):
    """Which rows are done though positions are open: [B] bool on the host, asked after each commit."""

    def done(self, canvas: Canvas, request: Request) -> np.ndarray: ...


@runtime_checkable
class Checked(Protocol):
    """A stage that cannot go with every other one: raises SpecError when a spec is resolved."""

    def check(self, sampler: MaskedSampler) -> None: ...


@runtime_checkable
class Admitting(Protocol):
    """A stage that cannot do every request: raises SpecError before the first forward."""

    def admit(self, request: Request) -> None: ...


@runtime_checkable
class Fitting(Protocol):
    """A stage with parameters whose default is the model's; refuses a model that it is not for with SpecError."""

    def fitted(self, model: LanguageModel) -> Fitting:
        """The same with what it leaves open taken from `model`; itself where nothing is open."""
        ...


@runtime_checkable
class Remembering(Protocol):
    """A stage with a memory: `start` makes the state of one request, which every other call is handed."""

    def start(self, canvas: Canvas) -> Any: ...


@dataclass(frozen=True)
class MaskedSampler:
    """A resolved spec: one object a stage."""

    spec: Spec
    exact: str
    cache: Cache
    inputs: tuple[Inputs, ...]
    logits: tuple[LogitsStage, ...]
    propose: Propose
    select: Select
    widen: tuple[Widen, ...]
    revise: tuple[Revise, ...]
    finish: tuple[Finish, ...]

    @property
    def revising(self) -> tuple[Revise, ...]:
        """The revise stages that, with their parameters, revise anything (`idle` says otherwise)."""
        return tuple(stage for stage in self.revise if not getattr(stage, "idle", False))

    @property
    def stages(self) -> tuple[Any, ...]:
        """Every stage."""
        several = (*self.inputs, *self.logits, *self.widen, *self.revise, *self.finish)
        return (self.cache, self.propose, self.select, *several)


__all__ = [
    "Admitting",
    "Ahead",
    "Allowed",
    "ByRow",
    "Cache",
    "Canvas",
    "Checked",
    "Choice",
    "Ending",
    "Evidence",
    "Filling",
    "Finish",
    "Fitting",
    "Inputs",
    "Laid",
    "LogitsStage",
    "MaskedSampler",
    "Outlook",
    "Planned",
    "Proposal",
    "Propose",
    "QuerySpec",
    "Referring",
    "Remembering",
    "Request",
    "Revise",
    "Revision",
    "Scheduled",
    "Select",
    "Widen",
    "Writing",
    "take_rows",
]


def take_rows(value: Any, rows: np.ndarray) -> Any:
    """`value` with only these rows, in this order, in every tensor and array it holds (rows are dimension 0).

    What has a method `keep` of its own, as caches do, is told and stays the same object.
    """
    if hasattr(value, "keep"):
        value.keep(torch.from_numpy(rows) if isinstance(value, KVCache) else rows)
        return value
    if isinstance(value, Tensor):
        return value[torch.as_tensor(rows, device=value.device)]
    if isinstance(value, np.ndarray):
        return value[rows]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kept = {f.name: take_rows(getattr(value, f.name), rows) for f in dataclasses.fields(value)}
        return dataclasses.replace(value, **kept)
    if isinstance(value, tuple):
        return tuple(take_rows(item, rows) for item in value)
    if isinstance(value, dict):
        return {key: take_rows(item, rows) for key, item in value.items()}
    return value
