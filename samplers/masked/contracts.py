"""The contracts of the masked loop: what stages are handed, and a base class for each stage.

Stages are immutable. What one remembers over a request is the value its `start` makes, handed back to every call;
each tensor or array in it has the live rows first, so that a finished row can leave (`take_rows`). Everything but a
stage's own method (`query`, `logits`, `select`, ...) has a default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ..ops.distribution import Distribution, filter_logits
from ..request import Request as Request
from ..spec import Policy, Spec
from .canvas import Canvas as Canvas
from .writing import Revision as Revision
from .writing import Writing as Writing

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

_LOWEST = torch.tensor(-torch.inf, device="cpu")  # made once: a Python number would become a tensor at every call


@dataclass(frozen=True)
class Evidence:
    """What one forward predicts for the active block, rows aligned to the block.

    Attributes:
        distribution: the model's own, the mask id at -inf.
        positions: [B, W] int64, absolute.
        eligible: [B, W] bool: the positions that may be committed.
        shadow: each position predicted without its own token, where a stage `needs_shadow`.
    """

    distribution: Distribution
    positions: Tensor
    eligible: Tensor
    request: Request
    shadow: Distribution | None = None

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
    shifted: np.ndarray | None = None  # [B] bool: predictions stand one position to the left, in whatever family


class Predictions(Protocol):
    """What a forward predicts beyond the active block: raw distributions, guidance included, the mask id at -inf."""

    def has(self, positions: Tensor) -> Tensor:
        """Whether this forward predicts each of `positions` [B, K]: bool [B, K]."""
        ...

    def at(self, positions: Tensor) -> Distribution:
        """The model's distribution at `positions` [B, K]; meaningless where `has` is False."""
        ...


class Stage(Policy):
    """What any stage of a masked sampler may define."""

    @property
    def default_select(self) -> str | None:
        """The select, as a spec, that goes with this stage where the spec names none."""
        return None

    def fit(self, model: LanguageModel) -> Self:
        """This stage with the parameters it leaves open taken from `model`.
        Raises SpecError if it does not work with this model.
        """
        return self


class Stateful(Stage):
    """A stage that is handed what it remembers."""

    def start(self, canvas: Canvas) -> Any:
        """The state of one request."""
        return None


class Cache(Stateful):
    """Which positions a forward queries.

    The first forward of a row is full whatever the answer, but for a prefix whose K/V come from the prefix cache.
    """

    stores: ClassVar[bool] = True  # False: earlier K/V are never read, so that none are kept
    attention: ClassVar[str | None] = None  # the attention of the only families that it is for
    needs_commit_order: ClassVar[bool] = False  # `Canvas.commit_order` is set before `query`

    def check(self, sampler: MaskedSampler) -> None:
        shadows = [stage for stage in sampler.revising if stage.needs_shadow]
        if shadows and self.attention in ("windowed-causal", "causal-prefix"):
            raise SpecError(
                f"{shadows[0].registered[0]} predicts each token without itself, and what {self.attention} models see "
                "follows the canvas",
                "leave that stage out",
            )

    @property
    def slides(self) -> bool:
        """Whether the active block begins at a row's first open position."""
        return False

    def query(self, canvas: Canvas, state: Any) -> QuerySpec:
        raise NotImplementedError

    def final(self, state: Any) -> np.ndarray | None:
        """[B] tokens from position 0 on that are final, and so are their K/V, after the forward that was last asked of.

        None: it does not know.
        """
        return None


class Inputs(Stateful):
    """Adds vectors to the inputs of the active block."""

    after_logits: ClassVar[bool] = False  # observes what the logits stages have made of a forward's distribution

    def soft(self, canvas: Canvas, state: Any) -> Tensor | None:
        """Before a forward: [B, W, E], or None where there is nothing to add."""
        raise NotImplementedError

    def observe(self, evidence: Evidence, embed: Callable[[Tensor], Tensor], canvas: Canvas, state: Any) -> None:
        """After it; `embed` mixes the model's embeddings, [B, W, V] weights -> [B, W, E]."""


class Logits(Stateful):
    """Changes the distribution of the active block: all of it, or a few logits (`Distribution.boosted`)."""

    def logits(self, evidence: Evidence, canvas: Canvas, state: Any) -> Distribution:
        raise NotImplementedError


class Propose(Stage):
    """A candidate and a score per position."""

    order_is_fixed: ClassVar[bool] = False  # the scores are known before the forward

    def propose(self, evidence: Evidence, canvas: Canvas) -> Proposal:
        raise NotImplementedError


class Select(Stateful):
    """Which candidates are committed: [B, W] bool."""

    default_propose: ClassVar[str] = "confidence"  # the proposer where the spec names none
    default_of: ClassVar[str | None] = None  # and its parameter `of`; None leaves it alone
    may_wait: ClassVar[bool] = False  # a step may commit nothing: it ends by itself

    def select(self, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor | Choice:
        raise NotImplementedError

    @property
    def reference_sampler(self) -> str | None:
        """A sampler, as a spec, whose finished text it compares with: `Request.finished`."""
        return None

    def tick(self, canvas: Canvas, state: Any) -> np.ndarray:
        """Before each forward: how many steps of the schedule commit nothing and are skipped, [B]."""
        return np.zeros_like(canvas.step)

    def total_steps(self, canvas: Canvas) -> np.ndarray | None:
        """At the start: how many steps the schedule takes in all, [B]; None where that is not fixed."""
        return None

    @property
    def counts_steps(self) -> bool:
        """Whether it defines `total_steps`."""
        return type(self).total_steps is not Select.total_steps

    def entry_step(self, canvas: Canvas) -> np.ndarray | None:
        """When a block is entered, before `tick`: the schedule's step at which it enters it, [B]; None: the next.

        A block that is complete before its steps are over leaves the others idle; the clock counts them too.
        """
        return None

    def knows_order(self, propose: Propose) -> bool:
        """Whether `commit_order` can tell, with this proposer, what will be committed."""
        return False

    def commit_order(self, canvas: Canvas, request: Request, state: Any) -> Tensor:
        """Before a forward, after `tick`, where a cache needs it: [B, W] int64 on the host.

        1 for the position that is committed first, then 2, 3, ..., and 0 for those that are not committed.
        """
        raise NotImplementedError


class Widen(Stateful):
    """Adds to what select chose, or takes from it: [B, W] bool in and out. Several apply in the order of the spec."""

    def widen(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Tensor:
        raise NotImplementedError


class Revise(Stateful):
    """Takes back or edits what the active block has committed. `evidence` then covers committed positions too."""

    @property
    def idle(self) -> bool:
        """Whether, with its parameters, it never revises anything."""
        return False

    @property
    def needs_shadow(self) -> bool:
        """Whether it reads `Evidence.shadow`."""
        return False

    def revise(self, chosen: Tensor, proposal: Proposal, canvas: Canvas, state: Any) -> Revision:
        """`chosen` [B, W] is what this step commits; it takes effect together with the revision."""
        raise NotImplementedError


class Finish(Stage):
    """Ends rows early."""

    def done(self, canvas: Canvas, request: Request) -> np.ndarray:
        """After each commit: the rows that end though positions are open, [B] bool on the host."""
        return np.zeros(len(canvas), dtype=bool)

    @property
    def fills(self) -> bool:
        """Whether it defines `fill`."""
        return type(self).fill is not Finish.fill

    def fill(self, predictions: Predictions, proposal: Proposal, canvas: Canvas) -> np.ndarray:
        """Before each commit: the rows whose open positions are all committed at once instead, [B] bool on the host."""
        raise NotImplementedError


BASES: Mapping[str, type[Stage]] = {
    "inputs": Inputs,
    "logits": Logits,
    "propose": Propose,
    "select": Select,
    "widen": Widen,
    "revise": Revise,
    "finish": Finish,
    "cache": Cache,
}


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

    @property
    def revising(self) -> tuple[Revise, ...]:
        """The revise stages that are not idle."""
        return tuple(stage for stage in self.revise if not stage.idle)

    @property
    def stateful(self) -> tuple[Stateful, ...]:
        """The stages that are handed a state."""
        return (self.cache, *self.inputs, *self.logits, self.select, *self.widen, *self.revise)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage."""
        return (*self.stateful, self.propose, *self.finish)
