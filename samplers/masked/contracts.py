"""The contracts of the masked loop: the arguments and results of stages, and a base class for each stage.

Stages are immutable. A stage's state for one request is the value that its `start` returns; the loop passes it to
every call. Rows are dimension 0 of every tensor and array in a state, so that finished rows can be removed
(`take_rows`). Every method has a default, except the one that defines a stage (`query`, `logits`, `select`, ...).

- `AttentionSpec`, `AttentionMaps`: the attention weights of a forward, for stages that read them: one map per layer.
- `Evidence`, `Proposal`, `Choice`, `QuerySpec`, `Hypotheses`: the arguments and results of stages.
- `Decision`: the changes that one step makes to the canvas.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from ..batching import take_rows
from ..host_transfer import upload
from ..ops.chunked_distribution import ChunkedDistribution
from ..ops.distribution import DenseDistribution, Distribution, filter_logits
from ..request import Request as Request
from ..spec import Policy, Spec
from ..traits import NONE, Reasons, Trait, Why
from .canvas import Canvas as Canvas
from .canvas import DeviceCanvas
from .canvas import Revision as Revision
from .canvas import Span as Span
from .canvas import Update as Update

if TYPE_CHECKING:
    from pardec.models.caches.reuse_cache import LayerReuse
    from pardec.models.caches.skip_cache import EarlySkip
    from pardec.models.model import LanguageModel
    from pardec.models.plan import Ranking


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """The attention weights that a stage reads."""

    layers: tuple[int, ...]  # indices of the model's layers
    every: bool = False  # True: at all positions that a forward computes; False: at those of the block


def united(specs: Iterable[AttentionSpec | None]) -> AttentionSpec | None:
    """The union of the attention that several stages read; None if none reads any."""
    each = [spec for spec in specs if spec is not None]
    layers = sorted({layer for spec in each for layer in spec.layers})
    return AttentionSpec(tuple(layers), any(spec.every for spec in each)) if each else None


@dataclass(frozen=True, slots=True, eq=False)
class AttentionMaps:
    """The attention weights of M positions of each row in one forward, averaged over the heads.

    Column L of a map is the canvas's scratch slot, which nothing attends to. Under guidance the maps are from the rows
    with the condition.

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
        """[B, M, L + 1]: the mean over the layers that a stage reads."""
        assert spec is not None, "the stage says which layers it reads"
        each = [self.layers[layer] for layer in spec.layers]
        return each[0] if len(each) == 1 else torch.stack(each).mean(0)

    def rows_at(self, positions: Tensor, values: Tensor) -> Tensor:
        """The rows of `values` [B, M, ...] at `positions` [B, W] -> [B, W, ...]; 0 where a position has no map."""
        match, index = ((positions[:, :, None] == self.positions[:, None]) & self.known[:, None]).max(2)
        rows = torch.arange(len(index), device=index.device)[:, None]
        return values[rows, index] * match[..., None]

    def among(self, positions: Tensor, values: Tensor) -> Tensor:
        """[B, W, W]: how much each of `positions` [B, W] attends to each of them in the maps `values` [B, M, L + 1]."""
        rows = self.rows_at(positions, values)
        return rows.gather(2, positions[:, None].expand(-1, rows.shape[1], -1))


_LOWEST = torch.tensor(-torch.inf, device="cpu")  # made once: a Python number would become a tensor at every call


@dataclass(frozen=True)
class Evidence:
    """The predictions of one forward for the active block.

    Attributes:
        distribution: the model's distribution, with the mask id at -inf.
        positions: [B, W] int64, absolute.
        eligible: [B, W] bool: the positions that may be committed.
        leave_one_out: each position's distribution computed without its own token, if a stage has `LEAVE_ONE_OUT`.
        attention: attention weights, if a stage `reads_attention`.
        predictions: predictions outside the block, if a stage has `READS_WHOLE_ROW`.
        known: [B, W] bool on the host: the positions that the forward predicted; at others the distribution is
            meaningless, and may depend on other rows. None: the `eligible` positions.
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
        """[B, W] bool: the positions that the forward predicted."""
        return self.eligible if self.known is None else upload(self.known, self.eligible.device)

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
        if isinstance(canvas, DeviceCanvas):
            assert canvas.keys is not None, "captured with a temperature"
            return self.filtered.draw_all(canvas.keys(self.positions))
        uniform, vocab, positions = self.request.source.uniform, self.distribution.vocab, self.positions.flatten()
        every = canvas.revises or positions.device.type != "cpu"
        flat = np.arange(len(positions)) if every else np.flatnonzero(self.eligible.numpy())

        def noise(some: np.ndarray) -> Tensor:
            row, at = some // self.positions.shape[1], upload(some, positions.device)
            return uniform(canvas.rows[row], canvas.step[row], positions[at][:, None], "token", vocab)[:, 0]

        def keys(some: np.ndarray) -> Tensor:
            row, at = some // self.positions.shape[1], upload(some, positions.device)
            found: Tensor = keyed(canvas.rows[row], canvas.step[row], positions[at][:, None], "token")[:, 0]
            return found

        keyed: Any = getattr(self.request.source, "keys", None)  # recorded numbers have none

        tokens = canvas.tokens.gather(1, self.positions)
        index = upload(flat, positions.device)
        drawn = self.filtered.draw(flat, noise, keyed and keys)
        return tokens.flatten().index_copy_(0, index, drawn).view(tokens.shape)

    def take(self, rows: np.ndarray | Tensor) -> Evidence:
        """The evidence of these rows, in this order; rows may repeat. The forward's distribution must be unchanged.

        Rows that only the device knows have no `known`, and no attention.
        """
        distribution, at = self.distribution, upload(rows, self.positions.device)
        assert isinstance(distribution, DenseDistribution | ChunkedDistribution), "no stage has changed it"
        index = distribution.index
        if index is None:
            index = torch.arange(self.positions.numel(), device=at.device).view(self.positions.shape)
        attention = None
        if self.attention is not None and isinstance(rows, np.ndarray):
            attention = take_rows(self.attention, rows)
        return Evidence(
            distribution.reindexed(index[at]),
            self.positions[at],
            self.eligible[at],
            self.request,
            attention=attention,
            known=self.known[rows] if self.known is not None and isinstance(rows, np.ndarray) else None,
        )

    def slid(self, positions: Tensor, by: np.ndarray) -> Evidence:
        """The evidence of a window `by` [B] columns further, at `positions` [B, W].

        Eligible are those of its columns that were. The forward's distribution must be unchanged.
        """
        distribution, width = self.distribution, positions.shape[1]
        assert isinstance(distribution, DenseDistribution | ChunkedDistribution), "no stage has changed it"
        index = distribution.index
        if index is None:
            index = torch.arange(positions.numel(), device=positions.device).view(positions.shape)
        column = torch.arange(width, device=positions.device) + upload(by, positions.device)[:, None]
        inside, column = column < width, column.clamp(max=width - 1)
        return replace(
            self,
            distribution=distribution.reindexed(index.gather(1, column)),
            positions=positions,
            eligible=self.eligible.gather(1, column) & inside,
            attention=None,
            known=None,
        )

    def propose(self, tokens: Tensor, score: Tensor) -> Proposal:
        """A proposal of `tokens` with their scores where eligible, -inf elsewhere."""
        if score.device.type != "cpu":  # `where` would copy a number of the host to the device, and wait
            return Proposal(tokens, score.masked_fill(~self.eligible, -torch.inf), self)
        return Proposal(tokens, torch.where(self.eligible, score, _LOWEST), self)


@dataclass(frozen=True, slots=True)
class Proposal:
    """A candidate and its score for every position of the active block; a higher score is more certain."""

    tokens: Tensor  # [B, W] int64
    score: Tensor  # [B, W] float32, -inf where not eligible
    evidence: Evidence

    @property
    def eligible(self) -> Tensor:
        return self.evidence.eligible


@dataclass(frozen=True, slots=True)
class Choice:
    """The result of a select that also determines the tokens."""

    which: Tensor  # [B, W] bool
    tokens: Tensor  # [B, W] int64


@dataclass(frozen=True, slots=True)
class Growth:
    """How rows become longer after a step."""

    at: Tensor  # [B] the position after which masks are added
    count: Tensor  # [B] how many
    wait: Tensor  # [B] bool: rows that commit nothing in this step


@dataclass(frozen=True, slots=True)
class QuerySpec:
    """The positions that a forward computes: [start, stop) of each row, or any set as a mask. Arrays are on the host.

    The loop adds the positions whose outputs predict the wanted ones (one to the left in shifted families).
    """

    start: np.ndarray  # [B]
    stop: np.ndarray  # [B]
    mask: Tensor | None = None  # [B, L] bool; replaces the span
    must: np.ndarray | None = None  # [B] bool: commit exactly the block's first position if it is open
    only: Tensor | None = None  # [B, W] bool, on the host: the only positions of the block to predict
    # [B] bool: rows whose layers compute part of the positions: see `Cache.layer_reuse`.
    similar: np.ndarray | None = None
    ranking: Ranking | None = None  # importance of all positions, for a cache whose `layer_reuse` is an `EarlySkip`
    shifted: np.ndarray | None = None  # [B] bool: position p is predicted by the output at p - 1, in any family


class Predictions(Protocol):
    """A forward's predictions outside the active block: raw distributions, guidance included, the mask id at -inf."""

    def has(self, positions: Tensor) -> Tensor:
        """Whether this forward predicts each of `positions` [B, K]: bool [B, K]."""
        ...

    def at(self, positions: Tensor) -> Distribution:
        """The model's distribution at `positions` [B, K]; meaningless where `has` is False."""
        ...


@dataclass(frozen=True, eq=False)
class Hypotheses:
    """The hypotheses of all rows after one forward, sorted by row and, within a row, by number.

    There are N hypotheses of n rows.
    """

    row: np.ndarray  # [N] the live row of each hypothesis
    number: np.ndarray  # [N] the number of each within its row; 0 is the row itself
    canvas: Canvas  # the canvas of all N hypotheses
    proposal: Proposal  # [N, W] from the forward of each hypothesis
    chosen: Tensor  # [N, W] bool: the positions that the sampler commits in each
    tokens: Tensor  # [N, W] int64
    ended: np.ndarray  # [N] bool: a finish stage ends the row with this hypothesis

    @cached_property
    def table(self) -> Tensor:
        """[n, M] int64: the index among N of each hypothesis of a row, in order; -1 after the last."""
        first = np.flatnonzero(self.number == 0)
        order = np.arange(len(self.row)) - first[self.row]
        table = np.full((len(first), int(order.max()) + 1), -1)
        table[self.row, order] = np.arange(len(self.row))
        return upload(table, self.tokens.device)


CAUSAL_KINDS = (Trait.BLOCK_CAUSAL, Trait.WINDOWED_CAUSAL, Trait.CAUSAL_PREFIX)  # not bidirectional
_LEAVE_OUT, _ONE_OUT = "leave {me} out", "leave one of them out"


class Stage(Policy):
    """Base of all stages of a masked sampler, with the methods that any of them may define.

    A propose, select, widen or logits stage with the trait `NEEDS_NO_HOST` can be part of a captured step: the method
    of that name reads tensors alone, and arrays [B] of the stage's state through `upload`. It changes nothing but the
    tensors of that state. Of the canvas it reads `tokens`, `open`, `window` and `eligible`.
    """

    def reads_attention(self, layers: int) -> AttentionSpec | None:
        """The attention that it reads in `Evidence.attention`, of a model with this many layers; None: none."""
        return None

    @property
    def default_select(self) -> str | None:
        """The select to use with this stage, as a spec, if the user's spec names none."""
        return None

    def fit(self, model: LanguageModel) -> Self:
        """This stage with its unset parameters taken from `model`.
        Raises SpecError if a parameter does not work with this model.
        """
        return self

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self)


def _reads_attention(stage: Stage) -> frozenset[Trait]:
    return NONE if type(stage).reads_attention is Stage.reads_attention else frozenset({Trait.READS_ATTENTION})


def _remembers(stage: Stateful) -> frozenset[Trait]:
    """The traits of a stage that keeps a state over the steps and decides which tokens are committed."""
    if type(stage).start is Stateful.start:
        return NONE
    state = NONE if Trait.KEEPS_NO_STATE in stage.provides else frozenset({Trait.REMEMBERS})
    return state | {Trait.GOES_BY_POSITION}


class Stateful(Stage):
    """A stage with a state for each request, which the loop passes to its methods."""

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
        Trait.COUNTS_STEPS: Why("{does}, and {me} changes the blocks", "use another select"),
        Trait.SLIDES: Why("{does}, and so does {me}", "keep one"),
        Trait.LEAVE_ONE_OUT: Why("{other} is for blocks of one length, and {me} changes the blocks", "keep one"),
        **dict.fromkeys(CAUSAL_KINDS, Why("{me} changes the blocks, and {does}, which fixes them", "leave {me} out")),
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | {Trait.GOES_BY_POSITION}

    def span(self, canvas: Canvas, state: Any) -> Span:
        """Called before each forward: the span in which each row's open positions compete.

        A row that a revise stage holds in its complete block stays there, and keeps its part of the state's arrays.
        """
        raise self.undefined("span")

    def narrow(self, evidence: Evidence, canvas: Canvas, state: Any) -> Span | None:
        """Called after each forward: a smaller span that takes effect at once; None keeps the span."""
        return None


class Branch(Stage):
    """Runs several hypotheses of a row in one forward and keeps one of them.

    Hypothesis 0 is the unchanged row. The others are made from the last forward's predictions. No step of a row is
    lost: the sampler's other stages decide for each hypothesis as if it were the row.
    """

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits; `KEEPS_TOKENS`: tokens equal those without this stage, and combinations that differ are refused."""
        return frozenset({Trait.BRANCHES})

    conflicts: ClassVar[Reasons] = {
        Trait.LOGPROBS: Why(
            "{me} commits tokens of several forwards in a step, and logprobs need a single one", _ONE_OUT
        ),
        Trait.MOVES_BLOCKS: Why("{me} and {other} both change what a forward computes", "keep one"),
        Trait.ACTS_BETWEEN_STEPS: Why("{me} commits several steps at once, and {other} acts between them", _ONE_OUT),
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | {Trait.GOES_BY_POSITION}

    @property
    def depths(self) -> tuple[int, ...]:
        """How many steps each hypothesis of a row is ahead of the row, ascending from 0, the row itself."""
        raise self.undefined("depths")

    @property
    def needs(self) -> tuple[int, ...]:
        """How many open positions the block must have for each hypothesis to be made."""
        return self.depths

    def draft(self, step: int, number: np.ndarray, choice: Choice, proposal: Proposal) -> Choice:
        """The tokens that each of N hypotheses adds at its `step` (1 to its depth), by the last forward's predictions.

        `number` [N] is the number of each within its row. `choice` is what the sampler would commit next from that
        forward, after the hypothesis's earlier steps; a hypothesis that adds nothing at a step is dropped.
        """
        raise self.undefined("draft")

    def survivors(self, hypotheses: Hypotheses) -> Tensor:
        """[n] int64: the index among N of the hypothesis that each row continues from; called before the commit."""
        raise self.undefined("survivors")


class Query(Stateful):
    """Chooses the positions that the model sees; a forward neither computes the others nor attends to them.

    Visible positions keep their numbers, and so their rotary embeddings. Whenever the visible positions of a row
    change, the next forward computes all of them.
    """

    provides = frozenset({Trait.HIDES_POSITIONS})
    conflicts: ClassVar[Reasons] = {
        **dict.fromkeys(
            CAUSAL_KINDS, Why("{me} leaves out masks after the block, and {does}, which never sees them", _LEAVE_OUT)
        ),
        Trait.SLIDING_LAYERS: Why("{me} renumbers the cache slots, and {does}, which count slots", _LEAVE_OUT),
        Trait.CONDITIONS: Why(
            "{me} leaves out the masks after a block of text, and the neighbours of image tokens are on all sides",
            "leave {me} out",
        ),
    }

    def visible(self, canvas: Canvas, request: Request, state: Any) -> np.ndarray:
        """Called before each forward: the visible positions, [B, L] bool on the host.

        The loop adds everything up to the end of the active block, and all positions that are not open.
        """
        raise self.undefined("visible")


class Cache(Stateful):
    """Chooses the positions that a forward computes.

    The first forward of a row computes all positions in any case, except a prefix whose K/V come from the prefix cache.
    """

    attention: ClassVar[str | None] = None  # the only kind of attention it works with; None: any

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits that say how it treats the K/V and the block.

        `STORES_KV`: it reads K/V of earlier forwards; `WHOLE_BLOCK`: every forward computes all of the active block, so
        that tokens in it may move; `KV_OF_TOKENS`: since a block was entered, K/V do not depend on earlier forwards of
        it; `SLIDES`: the active block begins at a row's first open position; `REUSES_PREDICTIONS`: positions that are
        not computed keep the predictions of the forward that computed them last, whose highest logits
        `Canvas.max_logits` returns, [B, L] on the host. For a cache that requires `KNOWN_ORDER`, `Canvas.commit_order`
        is set before `query`.
        """
        return frozenset({Trait.STORES_KV})

    @property
    def traits(self) -> frozenset[Trait]:
        reuses = NONE if type(self).layer_reuse is Cache.layer_reuse else frozenset({Trait.REUSES_LAYERS})
        return self.provides | _reads_attention(self) | reuses

    def query(self, canvas: Canvas, state: Any) -> QuerySpec:
        raise self.undefined("query")

    def layer_reuse(self, layers: int) -> LayerReuse | EarlySkip | None:
        """The share of positions that each of `layers` layers computes in `QuerySpec.similar` rows; None: no reuse."""
        return None

    def observe(self, evidence: Evidence, canvas: Canvas, state: Any) -> None:
        """Called after each forward, before anything is committed."""

    def final(self, state: Any) -> np.ndarray | None:
        """[B] how many tokens from position 0 on are final, with their K/V, after the last forward; None: unknown."""
        return None


class Inputs(Stateful):
    """Adds vectors to the inputs of the active block."""

    # With `OBSERVES_CHANGED_LOGITS` it observes the distribution after the logits stages have changed it.
    provides = frozenset({Trait.ADDS_TO_INPUTS})
    conflicts: ClassVar[Reasons] = {
        Trait.CONDITIONS: Why(
            "{me} adds to the inputs of masks, and an image's rows begin with its condition", "leave {me} out"
        )
    }

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self) | {Trait.GOES_BY_POSITION}

    def soft(self, canvas: Canvas, state: Any) -> Tensor | None:
        """Called before a forward: the vectors to add, [B, W, E], or None if there is nothing to add."""
        raise self.undefined("soft")

    def observe(
        self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Any
    ) -> Distribution | None:
        """Called after a forward; `embed` mixes the model's embeddings, [B, W, V] weights -> [B, W, E].

        Returns the distribution that tokens are chosen from; None: that of the forward.
        """
        return None


class Logits(Stateful):
    """Changes the distribution of the active block: all of it, or a few logits (`Distribution.boosted`)."""

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self)

    def prepare(self, canvas: Canvas, state: Any) -> None:
        """Called before each `logits`: does its work on the host, such as counting steps."""

    def logits(self, evidence: Evidence, canvas: Canvas, state: Any) -> Distribution:
        raise self.undefined("logits")


class Propose(Stage):
    """Proposes a candidate and a score for each position."""

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        raise self.undefined("propose")


class Select(Stateful):
    """Selects the candidates to commit: [B, W] bool."""

    default_propose: ClassVar[str] = "confidence"  # the proposer if the spec names none
    default_of: ClassVar[str | None] = None  # the value of that proposer's parameter `of`; None: its default

    @property
    def traits(self) -> frozenset[Trait]:
        """Traits; with `MAY_WAIT` a step may commit nothing, and the method itself ensures that rows end."""
        traits = self.provides | _reads_attention(self) | _remembers(self)
        if self.reference_sampler is not None:
            traits |= {Trait.COMPARES_FINISHED_TEXT, Trait.GOES_BY_POSITION}
        if type(self).total_steps is not Select.total_steps:
            traits |= {Trait.COUNTS_STEPS, Trait.GOES_BY_POSITION}
        return traits

    def select(self, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor | Choice:
        raise self.undefined("select")

    def commits(self, canvas: Canvas, state: Any) -> np.ndarray | None:
        """[B] how many tokens the coming step commits, called after `skipped_steps`; None: the host cannot know."""
        return None

    @property
    def drafts_above(self) -> float | None:
        """The probability above which the last forward's likeliest tokens replace masks in leave-one-out predictions.

        Read with the trait `LEAVE_ONE_OUT`; None: these predictions see the canvas as it is.
        """
        return None

    @property
    def reference_sampler(self) -> str | None:
        """The spec of a sampler whose finished text (`Request.finished`) it compares with; None: no sampler."""
        return None

    def skipped_steps(self, canvas: Canvas, state: Any) -> np.ndarray:
        """[B], called before each forward: how many steps of the schedule commit nothing and are skipped."""
        return np.zeros_like(canvas.step)

    def total_steps(self, canvas: Canvas) -> np.ndarray | None:
        """[B], called at the start: the number of steps in the whole schedule; None if it is not fixed."""
        return None

    def entry_step(self, canvas: Canvas) -> np.ndarray | None:
        """[B], called when a block is entered, before `skipped_steps`: the schedule's step there; None: the next step.

        If a block is complete before its steps are over, the remaining ones are idle; the clock counts them too.
        """
        return None

    def commit_order(self, canvas: Canvas, request: Request, state: Any) -> Tensor:
        """[B, W] int64 on the host: the order of the coming commits, called before a forward if a cache needs it.

        1 for the position that is committed first, then 2, 3, ..., and 0 for positions that are not committed. It is
        called after `skipped_steps`. A select with `KNOWN_ORDER` always knows it, one with `ORDER_OF_SCORES` only with
        a proposer that has `KNOWN_SCORES`.
        """
        raise self.undefined("commit_order")


class Widen(Stateful):
    """Adds positions to the select's choice or removes some: [B, W] bool in and out; runs in the order of the spec."""

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | _reads_attention(self) | _remembers(self) | {Trait.WIDENS}

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor:
        raise self.undefined("widen")


class Revise(Stateful):
    """Masks or edits committed tokens of the active block; `evidence` then covers committed positions too."""

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits, given its parameters.

        `IDLE`: it never revises anything; `LEAVE_ONE_OUT`: it reads `Evidence.leave_one_out`; `MOVES_TOKENS`: tokens
        change their positions within the block, by `Revision.source`.
        """
        return NONE

    @property
    def traits(self) -> frozenset[Trait]:
        own = self.provides | _reads_attention(self) | {Trait.ACTS_BETWEEN_STEPS}
        return own if Trait.IDLE in own else own | {Trait.GOES_BY_POSITION}

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Revision:
        """The revision of this step; `chosen` [B, W] are the positions that the step commits at the same time."""
        raise self.undefined("revise")


class Finish(Stage):
    """Ends rows early, fills them, cuts them short, or lets them grow."""

    @property
    def begins_with(self) -> int:
        """The generated positions that a row begins with, of a stage that defines `grow`."""
        raise self.undefined("begins_with")

    def done(self, canvas: Canvas, request: Request) -> np.ndarray:
        """[B] bool on the host, called after each commit: the rows that end although positions are open."""
        return np.zeros(len(canvas), dtype=bool)

    @property
    def traits(self) -> frozenset[Trait]:
        traits = self.provides | _reads_attention(self)
        if type(self).fill is not Finish.fill:
            traits |= {Trait.FILLS_ROWS, Trait.ACTS_BETWEEN_STEPS, Trait.GOES_BY_POSITION}
        if type(self).cut is not Finish.cut:
            traits |= {Trait.CUTS_ROWS, Trait.ACTS_BETWEEN_STEPS}
        return traits

    def fill(self, predictions: Predictions, proposal: Proposal, canvas: Canvas) -> Tensor:
        """[B] bool, called before each commit: rows whose open positions are all committed now instead."""
        raise self.undefined("fill")

    def cut(self, predictions: Predictions, canvas: Canvas, request: Request) -> np.ndarray:
        """[B], called before the commit of a step that enters a block: the new ends of rows, after their blocks."""
        raise self.undefined("cut")

    def grow(
        self, predictions: Predictions, chosen: Tensor, proposal: Proposal, canvas: Canvas, request: Request
    ) -> Growth:
        """Called before each commit; `chosen` [B, W] is what the step commits. Needs `READS_WHOLE_ROW`."""
        raise self.undefined("grow")


@dataclass(frozen=True)
class MaskedSampler:
    """A resolved spec: one object per stage, or a tuple where several may apply."""

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
    block: Block | None = None  # None: blocks follow a fixed grid
    branch: Branch | None = None  # None: no hypotheses
    query: Query | None = None  # None: all positions of a row are visible

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
        """The stage that moves tokens within the block, or None."""
        return next((stage for stage in self.revising if Trait.MOVES_TOKENS in stage.provides), None)

    @cached_property
    def traits(self) -> frozenset[Trait]:
        """The union of all stages' traits."""
        return NONE.union(*(stage.traits for stage in self.stages))

    @property
    def growing(self) -> Finish | None:
        """The stage that lengthens rows, or None."""
        return next((stage for stage in self.finish if type(stage).grow is not Finish.grow), None)

    @property
    def filling(self) -> tuple[Finish, ...]:
        """The stages that may commit all open positions of a row at once."""
        return tuple(stage for stage in self.finish if Trait.FILLS_ROWS in stage.traits)

    @property
    def cutting(self) -> tuple[Finish, ...]:
        """The stages that may end rows after their active block."""
        return tuple(stage for stage in self.finish if Trait.CUTS_ROWS in stage.traits)

    @property
    def stateful(self) -> tuple[Stateful, ...]:
        """The stages with a state."""
        single = tuple(stage for stage in (self.block, self.query) if stage is not None)
        return (self.cache, *single, *self.inputs, *self.logits, self.select, *self.widen, *self.revise)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages."""
        branch = () if self.branch is None else (self.branch,)
        return (*self.stateful, *branch, self.propose, *self.finish)


@dataclass(frozen=True, slots=True)
class Decision:
    """The changes that one step makes to the canvas."""

    chosen: Update
    token_source: Stage  # the stage that determined the chosen tokens
    revision: Revision | None = None
    fill: Update | None = None
    columns: Tensor | None = None  # [B, K] positions that `fill` may write
