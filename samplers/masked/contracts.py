"""The contracts of the masked loop: what stages are handed, and a base class for each stage.

Stages are immutable. What one remembers over a request is the value its `start` makes, handed back to every call;
each tensor or array in it has the live rows first, so that a finished row can leave (`take_rows`). Everything but a
stage's own method (`query`, `logits`, `select`, ...) has a default.

What positions attend to in a forward, where a stage reads it: rows and columns by position, one map a layer.

What stages are handed and what they answer: the evidence of a forward, proposals, choices, queries, hypotheses.

What one step of the masked loop does to the canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..batching import take_rows
from ..ops.chunked_distribution import ChunkedDistribution
from ..ops.distribution import DenseDistribution, Distribution, filter_logits
from ..request import Request as Request
from ..spec import Policy, Spec
from ..traits import NONE, Reasons, Trait, Why
from .canvas import Canvas as Canvas
from .canvas import Revision as Revision
from .canvas import Span as Span
from .canvas import Update as Update

if TYPE_CHECKING:
    from pardec.models.caches.reuse_cache import LayerReuse
    from pardec.models.model import LanguageModel


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """Which attention a stage reads."""

    layers: tuple[int, ...]  # of the model's
    every: bool = False  # of all positions that a forward queries, and not of the block's alone


def united(specs: Iterable[AttentionSpec | None]) -> AttentionSpec | None:
    """What several stages read together; None if none reads any."""
    each = [spec for spec in specs if spec is not None]
    layers = sorted({layer for spec in each for layer in spec.layers})
    return AttentionSpec(tuple(layers), any(spec.every for spec in each)) if each else None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """What M positions of each row attended to in one forward, meaned over the heads.

    Column L of a map is the canvas's bin, which nothing attends to. Under guidance the maps are those of the half with
    the condition.

    Attributes:
        positions: [B, M] int64, L pads.
        layers: layer -> [B, M, L + 1] float32, rows in the order of `positions`; each sums to 1 over what is visible.
        count: the model's layers.
    """

    positions: Tensor
    layers: Mapping[int, Tensor]
    count: int

    @property
    def known(self) -> Tensor:
        """[B, M] bool: the rows that are not padding."""
        bin_column = next(iter(self.layers.values())).shape[-1] - 1
        return self.positions < bin_column

    def mean(self, spec: AttentionSpec | None) -> Tensor:
        """[B, M, L + 1] the mean over the layers that a stage reads."""
        assert spec is not None, "the stage says which layers it reads"
        each = [self.layers[layer] for layer in spec.layers]
        return each[0] if len(each) == 1 else torch.stack(each).mean(0)

    def rows_at(self, positions: Tensor, values: Tensor) -> Tensor:
        """Rows of `values` [B, M, ...] at `positions` [B, W] -> [B, W, ...], 0 where a position is not among them."""
        match, index = ((positions[:, :, None] == self.positions[:, None]) & self.known[:, None]).max(2)
        rows = torch.arange(len(index), device=index.device)[:, None]
        return values[rows, index] * match[..., None]

    def among(self, positions: Tensor, values: Tensor) -> Tensor:
        """[B, W, W] how much each of `positions` [B, W] attends to each, by `values` [B, M, L + 1]."""
        rows = self.rows_at(positions, values)
        return rows.gather(2, positions[:, None].expand(-1, rows.shape[1], -1))


_LOWEST = torch.tensor(-torch.inf, device="cpu")  # made once: a Python number would become a tensor at every call


@dataclass(frozen=True)
class Evidence:
    """What one forward predicts for the active block, rows aligned to the block.

    Attributes:
        distribution: the model's own, the mask id at -inf.
        positions: [B, W] int64, absolute.
        eligible: [B, W] bool: the positions that may be committed.
        shadow: each position predicted without its own token, where a stage has `LEAVE_ONE_OUT`.
        attention: what positions attend to, where a stage `reads_attention`.
        predictions: what the forward predicts beyond the block, where a stage has `READS_WHOLE_ROW`.
        known: [B, W] bool on the host: the positions that the forward has predicted; at others the distribution means
            nothing, and may depend on other rows. None: no others than `eligible`.
    """

    distribution: Distribution
    positions: Tensor
    eligible: Tensor
    request: Request
    leave_one_out: Distribution | None = None
    attention: AttentionMaps | None = None
    predictions: Predictions | None = None
    known: np.ndarray | None = None

    @property
    def predicted(self) -> Tensor:
        """[B, W] bool: the positions that the forward has predicted."""
        return self.eligible if self.known is None else torch.from_numpy(self.known).to(self.eligible.device)

    @property
    def logits(self) -> Tensor:
        """[B, W, V] float32."""
        return self.distribution.logits

    @cached_property
    def filtered(self) -> Distribution:
        """The distribution that candidates are sampled from: after temperature, top-p, top-k and min-p."""
        temperature, filters = self.request.temperature, self.request.filters
        if filters:
            return self.distribution.mapped(partial(filter_logits, temperature=temperature, **filters))
        return self.distribution.scaled(temperature) if temperature else self.distribution

    def measured(self, of: Literal["raw", "filtered"]) -> Distribution:
        """The distribution that a proposer's parameter `of` names."""
        return self.distribution if of == "raw" else self.filtered

    def draw(self, canvas: Canvas) -> Tensor:
        """A candidate per position, [B, W] int64: the argmax at temperature 0, else a keyed draw from `filtered`.

        On a CPU only open positions are drawn, unless a stage revises; the others keep their tokens.
        """
        if not self.request.temperature:
            return self.distribution.greedy[0]
        uniform, vocab, positions = self.request.source.uniform, self.distribution.vocab, self.positions.flatten()
        every = canvas.revises or positions.device.type != "cpu"
        flat = np.arange(len(positions)) if every else np.flatnonzero(self.eligible.numpy())

        def noise(some: np.ndarray) -> Tensor:
            row, at = some // self.positions.shape[1], torch.from_numpy(some).to(positions.device)
            return uniform(canvas.rows[row], canvas.step[row], positions[at][:, None], "token", vocab)[:, 0]

        tokens = canvas.tokens.gather(1, self.positions)
        index = torch.from_numpy(flat).to(positions.device)
        return tokens.flatten().index_copy_(0, index, self.filtered.draw(flat, noise)).view(tokens.shape)

    def take(self, rows: np.ndarray) -> Evidence:
        """The evidence of these rows, in this order; one may be repeated. Only of a forward's own distribution."""
        distribution, at = self.distribution, torch.from_numpy(rows).to(self.positions.device)
        assert isinstance(distribution, DenseDistribution | ChunkedDistribution), "no stage has changed it"
        index = distribution.index
        if index is None:
            index = torch.arange(self.positions.numel(), device=at.device).view(self.positions.shape)
        attention = None if self.attention is None else take_rows(self.attention, rows)
        return Evidence(
            distribution.reindexed(index[at]),
            self.positions[at],
            self.eligible[at],
            self.request,
            attention=attention,
            known=None if self.known is None else self.known[rows],
        )

    def propose(self, tokens: Tensor, score: Tensor) -> Proposal:
        """The candidates with their scores where eligible."""
        return Proposal(tokens, torch.where(self.eligible, score, _LOWEST), self)


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
class Choice:
    """What a select returns if it names the tokens as well."""

    which: Tensor  # [B, W] bool
    tokens: Tensor  # [B, W] int64


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """Which positions a forward queries: [start, stop) of each row, or any set as a mask. Arrays live on the host.

    The loop itself adds the rows whose output predicts the wanted positions (one to the left in shifted families).
    """

    start: np.ndarray  # [B]
    stop: np.ndarray  # [B]
    mask: Tensor | None = None  # [B, L] bool; when given it replaces the span
    must: np.ndarray | None = None  # [B] bool: commit exactly the block's first position if it is open
    only: Tensor | None = None  # [B, W] bool, on the host: nothing else of the block is to be predicted
    # [B] bool: of rows whose layers compute a share of the queries, `Cache.layer_reuse`.
    similar: np.ndarray | None = None
    shifted: np.ndarray | None = None  # [B] bool: predictions stand one position to the left, in whatever family


class Predictions(Protocol):
    """What a forward predicts beyond the active block: raw distributions, guidance included, the mask id at -inf."""

    def has(self, positions: Tensor) -> Tensor:
        """Whether this forward predicts each of `positions` [B, K]: bool [B, K]."""
        ...

    def at(self, positions: Tensor) -> Distribution:
        """The model's distribution at `positions` [B, K]; meaningless where `has` is False."""
        ...


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """What the hypotheses of all rows came to in one forward; hypotheses of a row stand together, by number.

    Letters: N hypotheses of n rows.
    """

    row: np.ndarray  # [N] which live row each is of
    number: np.ndarray  # [N] from 0, the row itself
    canvas: Canvas  # of all N
    proposal: Proposal  # [N, W] by the forward of each
    chosen: Tensor  # [N, W] bool: what the sampler commits to each
    tokens: Tensor  # [N, W] int64
    ended: np.ndarray  # [N] bool: a finish stage ends the row there


CAUSAL_KINDS = (Trait.BLOCK_CAUSAL, Trait.WINDOWED_CAUSAL, Trait.CAUSAL_PREFIX)  # of attention: not bidirectional
_LEAVE_OUT, _ONE_OUT = "leave it out", "leave one out"


class Stage(Policy):
    """What any stage of a masked sampler may define."""

    def reads_attention(self, layers: int) -> AttentionSpec | None:
        """Which attention of a model of so many layers it reads in `Evidence.attention`; None: none."""
        return None

    @property
    def default_select(self) -> str | None:
        """The select, as a spec, that goes with this stage where the spec names none."""
        return None

    def fit(self, model: LanguageModel) -> Self:
        """This stage with the parameters it leaves open taken from `model`.
        Raises SpecError if a parameter does not work with this model.
        """
        return self

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self)


def _reads_attention(stage: Stage) -> frozenset[Trait]:
    return NONE if type(stage).reads_attention is Stage.reads_attention else frozenset({Trait.READS_ATTENTION})


def _remembers(stage: Stateful) -> frozenset[Trait]:
    """Of a stage that decides what is committed."""
    if type(stage).start is Stateful.start:
        return NONE
    state = NONE if Trait.KEEPS_NO_STATE in stage.provides else frozenset({Trait.REMEMBERS})
    return state | {Trait.GOES_BY_POSITION}


class Stateful(Stage):
    """A stage that is handed what it remembers."""

    def start(self, canvas: Canvas) -> Any:
        """The state of one request."""
        return None


class Block(Stateful):
    """Which open positions may be committed, where blocks do not follow a fixed grid.

    `Canvas.window` then covers all that a row generates, so that what other stages remember stays aligned;
    `block_start` and `block_end` move within it.
    """

    provides = frozenset({Trait.MOVES_BLOCKS})
    conflicts: ClassVar[Reasons] = {
        Trait.COUNTS_STEPS: Why("{does}, and {me} moves them", "name another select"),
        Trait.SLIDES: Why("{does}, and so does {me}", "keep one"),
        Trait.LEAVE_ONE_OUT: Why("{other} is for blocks of one length, and {me} moves them", "keep one"),
        **dict.fromkeys(CAUSAL_KINDS, Why("{me} moves blocks, and {does}, which fixes them", "leave it out")),
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | {Trait.GOES_BY_POSITION}

    def span(self, canvas: Canvas, state: Any) -> Span:
        """Before each forward."""
        raise NotImplementedError

    def narrow(self, evidence: Evidence, canvas: Canvas, state: Any) -> Span | None:
        """After it: a span within the one before, which holds at once; None leaves it."""
        return None


class Branch(Stage):
    """Asks a row as several hypotheses in one forward, of which one survives.

    Hypothesis 0 is the row as it is. The others are made from what the last forward predicted, and no step of a row is
    lost: the sampler's other stages decide for each hypothesis as if it were the row.
    """

    @property
    def provides(self) -> frozenset[Trait]:
        """With `KEEPS_TOKENS` it keeps the tokens of the sampler without it, and what would not is refused."""
        return frozenset({Trait.BRANCHES})

    conflicts: ClassVar[Reasons] = {
        Trait.LOGPROBS: Why("{me} takes the tokens of a step from several forwards, and logprobs are of one", _ONE_OUT),
        Trait.MOVES_BLOCKS: Why("{me} and {other} each decide what a forward is asked", "keep one"),
        Trait.ACTS_BETWEEN_STEPS: Why("{me} commits several steps at once, and {other} acts between them", _ONE_OUT),
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | {Trait.GOES_BY_POSITION}

    @property
    def depths(self) -> tuple[int, ...]:
        """How many steps each hypothesis of a row is further than it, ascending: first 0, the row itself."""
        raise NotImplementedError

    @property
    def needs(self) -> tuple[int, ...]:
        """The open positions of the block without which each hypothesis is not made."""
        return self.depths

    def draft(self, step: int, number: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
        """What each of N hypotheses adds at its `step`, from 1 to its depth, by what the last forward predicted.

        `number` [N] is which of its row each is. `choice` is what the sampler would commit next by that forward, after
        the hypothesis's earlier steps; a hypothesis that adds nothing at a step is dropped.
        """
        raise NotImplementedError

    def survivors(self, hypotheses: Hypotheses) -> np.ndarray:
        """[n] the index, of N, of the hypothesis that each row goes on from; that is committed to as well."""
        raise NotImplementedError


class Query(Stateful):
    """Which positions of a row the model sees; a forward neither computes the others nor attends to them.

    Positions keep their numbers, so that those that are left are rotated as ever. A row is asked in full, as far as it
    is visible, whenever what is visible of it changes.
    """

    provides = frozenset({Trait.HIDES_POSITIONS})
    conflicts: ClassVar[Reasons] = {
        **dict.fromkeys(
            CAUSAL_KINDS, Why("{me} leaves out masks after the block, and {does}, which never sees them", _LEAVE_OUT)
        ),
        Trait.SLIDING_LAYERS: Why("{me} closes up the slots of what is left, and {does}, which count them", _LEAVE_OUT),
        Trait.CONDITIONS: Why(
            "{me} leaves out what comes after a block of text, and the cells of an image stand on all of its sides",
            "leave that stage out",
        ),
    }

    def visible(self, canvas: Canvas, request: Request, state: Any) -> np.ndarray:
        """Before each forward: [B, L] bool on the host.

        The loop itself adds everything up to the end of the active block, and what is not open.
        """
        raise NotImplementedError


class Cache(Stateful):
    """Which positions a forward queries.

    The first forward of a row is full whatever the answer, but for a prefix whose K/V come from the prefix cache.
    """

    attention: ClassVar[str | None] = None  # the attention of the only families that it is for

    @property
    def provides(self) -> frozenset[Trait]:
        """What it does with the K/V and the block.

        `STORES_KV`, which only a cache leaves out that never reads earlier K/V; `WHOLE_BLOCK`: every forward queries
        all of the active block, so that tokens in it may move; `KV_OF_TOKENS`: since a block was entered, K/V do not
        depend on earlier forwards of it; `SLIDES`: the active block begins at a row's first open position;
        `REUSES_PREDICTIONS`: positions that are not queried keep the predictions of the forward that queried them last,
        whose highest logits `Canvas.max_logits` gives, [B, L] on the host. One that requires `KNOWN_ORDER` finds
        `Canvas.commit_order` set before `query`.
        """
        return frozenset({Trait.STORES_KV})

    @property
    def traits(self) -> frozenset[Trait]:
        reuses = NONE if type(self).layer_reuse is Cache.layer_reuse else frozenset({Trait.REUSES_LAYERS})
        return self.provides | _reads_attention(self) | reuses

    def query(self, canvas: Canvas, state: Any) -> QuerySpec:
        raise NotImplementedError

    def layer_reuse(self, layers: int) -> LayerReuse | None:
        """How much each of so many layers computes of the rows that are `QuerySpec.similar`; None: there are none."""
        return None

    def observe(self, evidence: Evidence, canvas: Canvas, state: Any) -> None:
        """After each forward, before anything is committed."""

    def final(self, state: Any) -> np.ndarray | None:
        """[B] tokens from position 0 on that are final, and so are their K/V, after the forward that was last asked of.

        None: it does not know.
        """
        return None


class Inputs(Stateful):
    """Adds vectors to the inputs of the active block."""

    # With `OBSERVES_CHANGED_LOGITS` it observes what the logits stages have made of a forward's distribution.
    provides = frozenset({Trait.ADDS_TO_INPUTS})
    conflicts: ClassVar[Reasons] = {
        Trait.CONDITIONS: Why(
            "{me} adds to the inputs of masks, and an image's begin with its condition", "leave that stage out"
        )
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self) | {Trait.GOES_BY_POSITION}

    def soft(self, canvas: Canvas, state: Any) -> Tensor | None:
        """Before a forward: [B, W, E], or None where there is nothing to add."""
        raise NotImplementedError

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Any) -> None:
        """After it; `embed` mixes the model's embeddings, [B, W, V] weights -> [B, W, E]."""


class Logits(Stateful):
    """Changes the distribution of the active block: all of it, or a few logits (`Distribution.boosted`)."""

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self)

    def logits(self, evidence: Evidence, canvas: Canvas, state: Any) -> Distribution:
        raise NotImplementedError


class Propose(Stage):
    """A candidate and a score per position."""

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        raise NotImplementedError


class Select(Stateful):
    """Which candidates are committed: [B, W] bool."""

    default_propose: ClassVar[str] = "confidence"  # the proposer where the spec names none
    default_of: ClassVar[str | None] = None  # and its parameter `of`; None leaves it alone

    @property
    def traits(self) -> frozenset[Trait]:
        """With `MAY_WAIT` a step may commit nothing, and it ends by itself."""
        traits = self.provides | _reads_attention(self) | _remembers(self)
        if self.reference_sampler is not None:
            traits |= {Trait.COMPARES_FINISHED_TEXT, Trait.GOES_BY_POSITION}
        if type(self).total_steps is not Select.total_steps:
            traits |= {Trait.COUNTS_STEPS, Trait.GOES_BY_POSITION}
        return traits

    def select(self, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor | Choice:
        raise NotImplementedError

    @property
    def reference_sampler(self) -> str | None:
        """A sampler, as a spec, whose finished text it compares with: `Request.finished`."""
        return None

    def skipped_steps(self, canvas: Canvas, state: Any) -> np.ndarray:
        """Before each forward: how many steps of the schedule commit nothing and are skipped, [B]."""
        return np.zeros_like(canvas.step)

    def total_steps(self, canvas: Canvas) -> np.ndarray | None:
        """At the start: how many steps the schedule takes in all, [B]; None where that is not fixed."""
        return None

    def entry_step(self, canvas: Canvas) -> np.ndarray | None:
        """When a block is entered, before `skipped_steps`: the schedule's step at which it does, [B]; None: the next.

        A block that is complete before its steps are over leaves the others idle; the clock counts them too.
        """
        return None

    def commit_order(self, canvas: Canvas, request: Request, state: Any) -> Tensor:
        """Before a forward, after `skipped_steps`, where a cache needs it: [B, W] int64 on the host.

        With `KNOWN_ORDER` it can always tell, with `ORDER_OF_SCORES` beside a proposer that has `KNOWN_SCORES`.

        1 for the position that is committed first, then 2, 3, ..., and 0 for those that are not committed.
        """
        raise NotImplementedError


class Widen(Stateful):
    """Adds to what select chose, or takes from it: [B, W] bool in and out. Several apply in the order of the spec."""

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self)

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor:
        raise NotImplementedError


class Revise(Stateful):
    """Takes back or edits what the active block has committed. `evidence` then covers committed positions too."""

    @property
    def provides(self) -> frozenset[Trait]:
        """What it does, with its parameters.

        `IDLE`: it never revises anything; `LEAVE_ONE_OUT`: it reads `Evidence.leave_one_out`; `MOVES_TOKENS`: tokens
        change their positions within the block, by `Revision.source`.
        """
        return NONE

    @property
    def traits(self) -> frozenset[Trait]:
        own = self.provides | _reads_attention(self) | {Trait.ACTS_BETWEEN_STEPS}
        return own if Trait.IDLE in own else own | {Trait.GOES_BY_POSITION}

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Revision:
        """`chosen` [B, W] is what this step commits; it takes effect together with the revision."""
        raise NotImplementedError


class Finish(Stage):
    """Ends rows early, fills them, or cuts them short."""

    def done(self, canvas: Canvas, request: Request) -> np.ndarray:
        """After each commit: the rows that end though positions are open, [B] bool on the host."""
        return np.zeros(len(canvas), dtype=bool)

    @property
    def traits(self) -> frozenset[Trait]:
        traits = self.provides | _reads_attention(self)
        if type(self).fill is not Finish.fill:
            traits |= {Trait.FILLS_ROWS, Trait.ACTS_BETWEEN_STEPS, Trait.GOES_BY_POSITION}
        if type(self).cut is not Finish.cut:
            traits |= {Trait.CUTS_ROWS, Trait.ACTS_BETWEEN_STEPS}
        return traits

    def fill(self, predictions: Predictions, proposal: Proposal, canvas: Canvas) -> np.ndarray:
        """Before each commit: the rows whose open positions are all committed at once instead, [B] bool on the host."""
        raise NotImplementedError

    def cut(self, predictions: Predictions, canvas: Canvas, request: Request) -> np.ndarray:
        """In a step that enters a block, before its commit: where rows end from now on, after their block; [B]."""
        raise NotImplementedError


@dataclass(frozen=True)
class MaskedSampler:
    """A resolved spec: one object a stage."""

    spec: Spec
    exact: str
    cache: Cache
    inputs: tuple[Inputs, ...]
    logits: tuple[Logits, ...]
    propose: Propose
    select: Select
    widen: tuple[Widen, ...]
    revise: tuple[Revise, ...]
    finish: tuple[Finish, ...]
    block: Block | None = None  # None: the blocks of a grid
    branch: Branch | None = None  # None: a row is asked as itself alone
    query: Query | None = None  # None: a row is asked with all of its positions

    @property
    def revising(self) -> tuple[Revise, ...]:
        """The revise stages that are not idle."""
        return tuple(stage for stage in self.revise if Trait.IDLE not in stage.provides)

    @property
    def reading(self) -> tuple[Stage, ...]:
        """The stages that read attention."""
        return tuple(stage for stage in self.stages if Trait.READS_ATTENTION in stage.traits)

    @property
    def moving(self) -> Revise | None:
        """The stage that moves tokens within the block, if there is one."""
        return next((stage for stage in self.revising if Trait.MOVES_TOKENS in stage.provides), None)

    @cached_property
    def traits(self) -> frozenset[Trait]:
        """Everything that a stage has."""
        return NONE.union(*(stage.traits for stage in self.stages))

    @property
    def filling(self) -> tuple[Finish, ...]:
        """The stages that may commit a row at once."""
        return tuple(stage for stage in self.finish if Trait.FILLS_ROWS in stage.traits)

    @property
    def cutting(self) -> tuple[Finish, ...]:
        """The stages that may end rows after their block."""
        return tuple(stage for stage in self.finish if Trait.CUTS_ROWS in stage.traits)

    @property
    def stateful(self) -> tuple[Stateful, ...]:
        """The stages that are handed a state."""
        single = tuple(stage for stage in (self.block, self.query) if stage is not None)
        return (self.cache, *single, *self.inputs, *self.logits, self.select, *self.widen, *self.revise)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage."""
        branch = () if self.branch is None else (self.branch,)
        return (*self.stateful, *branch, self.propose, *self.finish)


@dataclass(frozen=True, slots=True)
class Decision:
    """What one step does to the canvas."""

    chosen: Update
    token_source: Stage  # the stage that names the tokens chosen
    revision: Revision | None = None
    fill: Update | None = None
    columns: Tensor | None = None  # [B, K] positions that `fill` may write
