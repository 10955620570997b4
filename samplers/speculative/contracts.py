"""The seams of the verify loop: drafts, laws, verdicts, and the Protocol of each stage.

As in the masked loop, stages are immutable, and what one remembers over a request is the value its `start` made. Rows
are dimension 0 of every tensor and array in it, so that a finished row can leave (`take_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..ops.rank import argmax
from ..spec import Policy, Spec

if TYPE_CHECKING:
    from pardec.models.hidden import Hidden
    from pardec.models.kv_cache import KVCache
    from pardec.models.model import LanguageModel

    from ..request import Request
    from .sequences import Sequences

Siblings = Literal["without", "with"]  # how siblings are drawn: without replacement, or independently


@dataclass(frozen=True, eq=False)
class Draft:
    """Tokens to verify in one forward: a tree in topological order whose node 0 is the row's last committed token.

    Siblings stand in the order in which they were drawn and are different tokens, unless they were drawn with
    replacement. `q[b, i]` is the law that node i was drawn from given its earlier siblings, made like the target's.
    """

    tokens: Tensor  # [B, T] int64; -1 is no token: see `ids`
    sizes: np.ndarray  # [B] on the host: each row's nodes are its first ones, at least one; the rest is padding
    base: np.ndarray  # [B] on the host: the absolute position of node 0
    parents: Tensor | None = None  # [T] or [B, T] int64, -1 for node 0; None is a chain
    depths: Tensor | None = None  # [T] or [B, T] int64, given with `parents`
    levels: int | None = None  # the greatest depth, where the drafter knows it; spares acceptances useless levels
    verify: Tensor | None = None  # [T] or [B, T] bool; False: fed, never tested. None: all are
    sure: Tensor | None = None  # [B, T] bool; True: accepted untested; for acceptances that follow a pick
    q: Tensor | None = None  # [B, T, V] float32; None: every node is a point mass
    point: Tensor | None = None  # [B, T] bool, with `q`: True is a point mass all the same
    entered: Entered | None = None  # the states of the first layers, where the drafter has run them
    forwards: int = 0  # forwards of a drafting model that it took
    highest: Tensor | None = None  # [] of its logits, summed: not finite where they are not (see `models.finite`)

    @property
    def width(self) -> int:
        """Nodes T, node 0 included."""
        return self.tokens.shape[1]

    @cached_property
    def ids(self) -> Tensor:
        """[B, T] int64: `tokens` as indices into the vocabulary; 0 for what is no token of it.

        Behind the condition of a picture node 0 stands where no token was fed, and holds -1.
        """
        return self.tokens.clamp(min=0)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: the absolute position of node 0."""
        return torch.from_numpy(self.base).to(self.tokens.device)

    @cached_property
    def tested(self) -> Tensor:
        """[B, T] bool: the nodes that an acceptance may take."""
        device = self.tokens.device
        order = torch.arange(self.width, device=device)
        real = (order < torch.from_numpy(self.sizes).to(device)[:, None]) & (order > 0)
        return real if self.verify is None else real & self.verify

    @cached_property
    def parent(self) -> Tensor:
        """[B, T] int64."""
        batch, width = self.tokens.shape
        chain = torch.arange(-1, width - 1, device=self.tokens.device)
        return (chain if self.parents is None else self.parents).expand(batch, width)

    @cached_property
    def depth(self) -> Tensor:
        """[B, T] int64: how many positions behind node 0 each node stands."""
        batch, width = self.tokens.shape
        if self.parents is None:
            return torch.arange(width, device=self.tokens.device).expand(batch, width)
        assert self.depths is not None, "a tree comes with its depths"
        return self.depths.expand(batch, width)

    @cached_property
    def deepest(self) -> int:
        """An upper bound of the path behind node 0, known to the host."""
        return self.width - 1 if self.levels is None else self.levels

    @staticmethod
    def none(text: Sequences) -> Draft:
        """Nothing but each row's last committed token: the forward then says the next one."""
        return Draft(text.last[:, None], np.ones_like(text.length), text.length - 1)

    @staticmethod
    def chain(text: Sequences, drafted: Tensor, counts: np.ndarray, **more: Any) -> Draft:
        """The first counts[b] of `drafted` [B, K] behind each row's last committed token, cut to the widest."""
        tokens = torch.cat((text.last[:, None], drafted[:, : int(counts.max(initial=0))]), 1)
        return Draft(tokens, counts + 1, text.length - 1, **more)


@dataclass(frozen=True, slots=True, eq=False)
class Entered:
    """A drafter has run the first `layers` layers on every node, and their K/V lie where the verify pass reads them."""

    layers: int
    states: Tensor  # [B, T, E] what goes into the next layer


@dataclass(frozen=True, eq=False)
class TargetDistributions:
    """What the target says behind every node: row i is the law of the token that follows node i."""

    raw: Tensor  # [B, T, V] float32 logits of the model, guidance included, nothing else changed
    logits: Tensor  # [B, T, V] float32 after the logits processors, temperature and filters
    greedy: bool  # temperature 0: the law is its argmax

    @cached_property
    def pick(self) -> Tensor:
        """[B, T] int64: the likeliest token behind each node; the lowest id on ties."""
        return argmax(self.logits)

    @cached_property
    def probs(self) -> Tensor:
        """[B, T, V] float32: the processed law behind each node; a point mass at temperature 0."""
        if self.greedy:
            return torch.zeros_like(self.logits).scatter_(-1, self.pick[..., None], 1.0)
        return self.logits.softmax(-1)


@dataclass(frozen=True, eq=False)
class Verdict:
    """What an acceptance decides, row by row."""

    path: Tensor  # [B, D] int64: node 0 and the accepted nodes in order; meaningless behind `count`
    count: Tensor  # [B] int64 accepted nodes, node 0 not counted
    next: Tensor  # [B] int64 the token behind the path: recovered or bonus
    tested: Tensor | None = None  # [B, T] bool: the nodes whose test was reached
    ratio: Tensor | None = None  # [B, T] float32: the acceptance probability of each tested node
    deviation: Tensor | None = None  # [B] float32: what relaxed rules add up to, in total variation; see each rule
    pick: Tensor | None = None  # [B, T] int64: what would follow each node, where the rule says it of all


@dataclass(frozen=True, eq=False)
class Outcome:
    """One round as drafters and controllers see it afterwards."""

    draft: Draft
    verdict: Verdict
    distributions: TargetDistributions
    before: np.ndarray  # [B] lengths before the round's commit
    gained: np.ndarray  # [B] tokens committed, cut at an end token or the length limit
    hidden: Hidden | None = None  # the drafter's `hidden_layers`


class Uniforms(Protocol):
    """Where a round's random numbers come from: keyed by seed, or recorded ones replayed in a test."""

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        """[B] uniforms in (0, 1), float64, for the test of `node`.

        `tested` [B] says in which rows the test is held, `token` [B] what is tested.
        """
        ...

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        """[B] int64: one index a row, drawn in proportion to `weights` [B, V], at least 0."""
        ...

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        """[B, K, width] uniforms for absolute `positions` [B, K].

        `fixed` ones are keyed by position alone, the same in every round, and must serve nothing else.
        """
        ...


@runtime_checkable
class AtOnce(Protocol):
    """Chances whose numbers do not depend on which tests are held, so that a round's can be drawn at once."""

    def accepts(self, width: int) -> Tensor:
        """[B, width]: what `accept` gives for each node."""
        ...


@runtime_checkable
class Numbered(AtOnce, Protocol):
    """Chances at once whose draws are the inverse CDF of one number a row, so that a kernel may make them."""

    def number(self, purpose: str, node: int = 0) -> Tensor:
        """[B] float64: what `draw` goes by."""
        ...


@dataclass(frozen=True, eq=False)
class DecodeContext:
    """What a drafter has to work with for the length of a request."""

    model: LanguageModel
    request: Request
    text: Sequences
    distribution: Callable[..., Tensor]  # (raw [B, K, V], draft, nodes [B, K]) -> processed logits, as the target's are
    cache: KVCache  # the target's; slots behind a row's committed ones are free to be written
    sampler: SpeculativeSampler
    state: Callable[[Any], Any]  # what a stage remembers of this request

    @property
    def siblings(self) -> Siblings:
        """How the acceptance wants siblings drawn."""
        return self.sampler.accept.siblings


class Stage(Policy):
    """What the stages share: immutable policies, whose memory of a request is what `start` makes."""

    def check(self, sampler: SpeculativeSampler) -> None:
        """Raises SpecError where the stage cannot go with the others, when a spec is resolved."""

    def start(self, context: DecodeContext) -> Any:
        """What the stage remembers of a request, made before the prompt is fed; rows are dimension 0 of all in it."""
        return None


class Drafter(Stage):
    """Where drafted tokens come from. A state whose drafts have a `highest` has `failure()`, the error of a bad one."""

    takes_shape: ClassVar[bool] = False  # whether a shape can be named beside it
    takes_length: ClassVar[bool] = False  # whether a length controller can
    default_acceptance: ClassVar[str | None] = None  # where none is named; None: exact sampling, or greedy
    hidden_layers: ClassVar[tuple[int, ...]] = ()  # layers of the target whose outputs `Outcome.hidden` is to hold

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft, node 0 included."""
        raise NotImplementedError

    @property
    def reads_prompt(self) -> bool:
        """Whether `read_prompt` is to be called."""
        return False

    @property
    def needed_model(self) -> str | None:
        """The checkpoint that drafts, which the caller loads and hands in as `Request.draft_model`."""
        return None

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | None) -> float | None:
        """What one of the forwards that it counts costs, in forwards of the target; None where it does not know."""
        return None

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: Any) -> None:
        """Called with each group of rows of the prompt's forward, on which the head may run anywhere."""

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        """A draft for every live row, at most `room` [B] deep: what may still be accepted before the bonus token."""
        raise NotImplementedError

    def observe(self, outcome: Outcome, context: DecodeContext, state: Any) -> None:
        """After each round's commit; the first round, of the prompt, included."""


class Acceptance(Stage):
    """Which drafted tokens are accepted."""

    follows_pick: ClassVar[bool] = False  # it has one pick for each node and accepts the child that holds it

    @property
    def siblings(self) -> Siblings:
        """How it wants siblings drawn."""
        return "without"

    @property
    def seeded(self) -> bool:
        """Whether its noise is fixed per position, so that what it picks does not depend on the draft."""
        return False

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any) -> Verdict:
        """Which nodes are accepted, and the token behind them."""
        raise NotImplementedError


class DraftModel(Protocol):
    """A drafting model in one round: it is fed nodes of a draft that grows and says the law behind each."""

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Feeds `nodes` [B, K] of `draft`, whose ancestors it has heard; processed logits [B, K, V] behind them.

        An entry of -1 is padding, and a row's padding stands last. Node 0 comes first and alone.
        """
        ...

    def prune(self, nodes: Tensor) -> None:
        """From now on the draft is these nodes [B, T] of what it was, in this order."""
        ...


class Shape(Stage):
    """How a draft model's guesses grow into a draft: a chain, or a tree."""

    adaptive: ClassVar[bool] = False  # how many children a node has depends on which tokens they are

    def width(self, k: int) -> int:
        """The most nodes, node 0 included, of a draft `k` tokens deep; those included that are pruned in the end."""
        raise NotImplementedError

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: Any
    ) -> Draft:
        """A draft at most `budget` [B] tokens deep."""
        raise NotImplementedError


class Length(Stage):
    """How many tokens a round drafts."""

    drops_last: ClassVar[bool] = False  # the token that made it stop is left out
    times_rounds: ClassVar[bool] = False  # it decides by the clock, so that two processes may decide differently

    def budget(self, most: int, context: DecodeContext, state: Any) -> np.ndarray:
        """[B] how many tokens to draft at most, `most` being the drafter's own limit; 0 drafts none."""
        raise NotImplementedError

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: Any) -> Tensor | None:
        """[B] bool: whether to stop behind the drafted token `step`, from 0; None continues everywhere.

        `confidence` [B] is the highest probability of the distribution that the token is drawn from: known before the
        draw, so that leaving the token out does not change its distribution. Of a tree's level it is that of the surest
        node.
        """
        return None

    def observe(self, outcome: Outcome, context: DecodeContext, state: Any) -> None:
        """After each round's commit."""


@dataclass(frozen=True)
class SpeculativeSampler:
    """A resolved spec of the verify loop: one object a stage; no `shape` and `length` where the drafter needs none."""

    spec: Spec
    exact: str
    draft: Drafter
    accept: Acceptance
    shape: Shape | None = None
    length: Length | None = None

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft while it grows, node 0 included."""
        most = self.draft.width(model)
        return most if self.shape is None else self.shape.width(most - 1)

    @property
    def stages(self) -> tuple[Any, ...]:
        """Every stage there is."""
        return tuple(stage for stage in (self.draft, self.shape, self.length, self.accept) if stage is not None)
