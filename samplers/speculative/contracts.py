"""The contracts of the verify loop: drafts, target distributions, verdicts, and the base class of each stage.

As in the masked loop, stages are immutable, and a stage's state for one request is the value that its `start` returns.
Rows are dimension 0 of every tensor and array in a state, so that finished rows can be removed (`take_rows`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..ops.allowed import AllowedRows
from ..ops.rank import argmax
from ..spec import Policy, Spec
from .over_ids import LogitsOverIds
from .uniform_contracts import BatchedUniforms as BatchedUniforms
from .uniform_contracts import InverseCDFUniforms as InverseCDFUniforms
from .uniform_contracts import Uniforms as Uniforms

if TYPE_CHECKING:
    from pardec.models.draft_modules.contracts import DraftModule, ModuleName
    from pardec.models.hidden import Hidden, TargetStates
    from pardec.models.kv_cache import KVCache
    from pardec.models.model import LanguageModel

    from ..request import Request
    from .queries import Queries
    from .sequences import Sequences

Siblings = Literal["without", "with"]  # how siblings are sampled: without replacement, or independently


@dataclass(frozen=True, eq=False)
class Draft:
    """Tokens to verify in one forward: a tree in topological order whose node 0 is the row's last committed token.

    Siblings are in the order in which they were sampled, and differ unless that was with replacement. `q[b, i]` is the
    distribution that node i was sampled from given its earlier siblings, processed as the target's are.
    """

    tokens: Tensor  # [B, T] int64; -1 is no token: see `ids`
    sizes: np.ndarray  # [B] on the host: each row's nodes are its first ones, at least one; the rest is padding
    base: np.ndarray  # [B] on the host: the absolute position of node 0
    parents: Tensor | None = None  # [T] or [B, T] int64, -1 for node 0; None is a chain
    depths: Tensor | None = None  # [T] or [B, T] int64, given with `parents`
    levels: int | None = None  # the greatest depth, if the drafter knows it; saves acceptances empty levels
    verify: Tensor | None = None  # [T] or [B, T] bool; False: fed, never tested. None: all are
    sure: Tensor | None = None  # [B, T] bool; True: accepted untested; only with acceptances that have `follows_pick`
    q: Tensor | None = None  # [B, T, V] float32; None: every node is a point mass
    point: Tensor | None = None  # [B, T] bool, with `q`: True is a point mass
    early: EarlyStates | None = None  # the outputs of the first layers, if the drafter has run them
    uncontrolled: np.ndarray | None = None  # [B] bool, on the host: rows that the length controller has no part in
    queries: Queries | None = None  # of the drafter, behind the nodes: only it learns what comes out of them
    forwards: int = 0  # forwards of a drafting model
    highest: Tensor | None = None  # [] the sum of its highest logits, finite only if these are (see `models.finite`)

    @property
    def width(self) -> int:
        """Nodes T, node 0 included."""
        return self.tokens.shape[1]

    @cached_property
    def ids(self) -> Tensor:
        """[B, T] int64: `tokens` as indices; 0 for -1, which is node 0 behind the condition of an image."""
        return self.tokens.clamp(min=0)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: the absolute position of node 0."""
        return torch.from_numpy(self.base).to(self.tokens.device)

    @cached_property
    def tested(self) -> Tensor:
        """[B, T] bool: the nodes that can be accepted."""
        device = self.tokens.device
        order = torch.arange(self.width, device=device)
        real = (order < torch.from_numpy(self.sizes).to(device)[:, None]) & (order > 0)
        return real if self.verify is None else real & self.verify

    @cached_property
    def parent(self) -> Tensor:
        """[B, T] int64."""
        chain = torch.arange(-1, self.width - 1, device=self.tokens.device)
        return (chain if self.parents is None else self.parents).expand_as(self.tokens)

    @cached_property
    def depth(self) -> Tensor:
        """[B, T] int64: each node's distance from node 0 in positions."""
        batch, width = self.tokens.shape
        if self.parents is None:
            return torch.arange(width, device=self.tokens.device).expand(batch, width)
        assert self.depths is not None, "a tree comes with its depths"
        return self.depths.expand(batch, width)

    @cached_property
    def deepest(self) -> int:
        """An upper bound of the length of a path from node 0, on the host."""
        return self.width - 1 if self.levels is None else self.levels

    @staticmethod
    def none(text: Sequences) -> Draft:
        """Only each row's last committed token, so that the forward yields the next one."""
        return Draft(text.last[:, None], np.ones_like(text.length), text.length - 1)

    @staticmethod
    def chain(text: Sequences, drafted: Tensor, counts: np.ndarray, **more: Any) -> Draft:
        """The first counts[b] of `drafted` [B, K] behind each row's last committed token, cut to the widest."""
        tokens = torch.cat((text.last[:, None], drafted[:, : int(counts.max(initial=0))]), 1)
        return Draft(tokens, counts + 1, text.length - 1, **more)


@dataclass(frozen=True, slots=True, eq=False)
class EarlyStates:
    """The first `layers` layers, run on every node by the drafter; their K/V are where the verify pass reads them."""

    layers: int
    states: Tensor  # [B, T, E] inputs of the next layer


@dataclass(frozen=True, eq=False)
class TargetDistributions:
    """The target's predictions behind every node: index i is the distribution of the token that follows node i."""

    raw: Tensor  # [B, T, V] float32 logits of the model, guidance included, nothing else changed
    logits: Tensor  # [B, T, V] float32 after the logits processors, temperature and filters
    greedy: bool  # temperature 0: a point mass at the argmax
    states: Tensor | None = None  # [B, T, S] the acceptance's `target_states` at every node
    extended: Tensor | None = None  # [B, T', V] as `raw`, behind the nodes of the draft that `extend` returned

    @cached_property
    def pick(self) -> Tensor:
        """[B, T] int64: the likeliest token behind each node; the lowest id on ties."""
        return argmax(self.logits)

    @cached_property
    def probs(self) -> Tensor:
        """[B, T, V] float32: the probabilities of `logits`; a point mass at temperature 0."""
        if self.greedy:
            return torch.zeros_like(self.logits).scatter_(-1, self.pick[..., None], 1.0)
        return self.logits.softmax(-1)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The decision of an acceptance, row by row."""

    path: Tensor  # [B, D] int64: node 0 and the accepted nodes in order; meaningless behind `count`
    count: Tensor  # [B] int64 accepted nodes, node 0 not counted
    next: Tensor  # [B] int64 the token behind the path: recovered or bonus
    tested: Tensor | None = None  # [B, T] bool: the nodes whose test was reached
    ratio: Tensor | None = None  # [B, T] float32: the acceptance probability of each tested node
    deviation: Tensor | None = None  # [B] float32: accumulated deviation of a relaxed rule; see each rule
    pick: Tensor | None = None  # [B, T] int64: the token that follows each node, if the rule determines all of them


@dataclass(frozen=True, eq=False)
class RoundResult:
    """One round, as drafters and length controllers observe it after the commit."""

    draft: Draft
    verdict: Verdict
    distributions: TargetDistributions
    before: np.ndarray  # [B] lengths before the round's commit
    gained: np.ndarray  # [B] tokens committed, cut at an end token or the length limit
    states: Tensor | None = None  # [B, T, S] the drafter's `target_states` at every node, and behind them its queries'

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """The accepted and the drafted levels of each row, both [B], on the host; 0 of rows that are `uncontrolled`."""
        drafted = torch.where(self.draft.tested, self.draft.depth, 0).amax(1).cpu().numpy()
        accepted, others = self.verdict.count.cpu().numpy(), self.draft.uncontrolled
        return (accepted, drafted) if others is None else (np.where(others, 0, accepted), np.where(others, 0, drafted))


@dataclass(frozen=True, eq=False)
class DecodeContext:
    """What drafters can use during a request."""

    model: LanguageModel
    request: Request
    text: Sequences
    distribution: Callable[..., Tensor]  # (raw [B, K, V], draft, nodes [B, K]) -> processed logits, as the target's are
    allowed: AllowedRows
    reads_ids: Callable[[], bool]  # whether processed logits of some ids differ from those of these ids among all
    cache: KVCache  # the target's; the slots behind a row's committed tokens may be written
    sampler: SpeculativeSampler
    state: Callable[[Any], Any]  # a stage's state for this request

    @property
    def siblings(self) -> Siblings:
        """How siblings must be sampled for the acceptance."""
        return self.sampler.accept.siblings


class Stage(Policy):
    """Base of all stages: immutable policies, with a state for each request made by `start`."""

    def check(self, sampler: SpeculativeSampler) -> None:
        """Raises SpecError if the stage cannot be combined with the others; called when a spec is resolved."""

    def start(self, context: DecodeContext) -> Any:
        """The stage's state for a request, made before the prompt is fed; rows are dimension 0 of its tensors."""
        return None


class Drafter(Stage):
    """Proposes tokens. If drafts have `highest`, the state has `failure()`, the error for one that is not finite."""

    takes_shape: ClassVar[bool] = False  # whether a spec may name a shape for it
    takes_length: ClassVar[bool] = False  # whether a spec may name a length controller for it
    one_pass: ClassVar[bool] = False  # one drafting forward gives all of a round's tokens
    copies: ClassVar[bool] = False  # it drafts chains of known tokens, with no state but the text's
    in_pass: ClassVar[bool] = False  # it has states or queries of its own in the forward that verifies
    default_acceptance: ClassVar[str | None] = None  # if the spec names none; None: exact sampling, or greedy

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

    @property
    def needed_vocabulary(self) -> str | None:
        """What its head is cut to, as `pardec.models.trimmed.read_ids` takes it; None: nothing."""
        return None

    @property
    def needed_module(self) -> ModuleName | None:
        """The draft module, bound to the target, which the caller hands in as `Request.draft_model` instead."""
        return None

    def target_states(self, request: Request) -> TargetStates | None:
        """The states of the target that `RoundResult.states`, and the prompt's forward, are to have; None: none."""
        return None

    def most_queries(self, nodes: int, request: Request) -> int:
        """The most queries of its own behind a draft of `nodes` nodes: see `Draft.queries`."""
        return 0

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The cost of one drafting forward in forwards of the target; None if unknown."""
        return None

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: Any) -> None:
        """Called with each group of rows of the prompt's forward; logits can be computed at any position."""

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        """A draft for every live row, at most `room` [B] deep, which leaves space for the bonus token."""
        raise NotImplementedError

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit, including the first round, which feeds the prompt."""


class Acceptance(Stage):
    """Which drafted tokens are accepted."""

    follows_pick: ClassVar[bool] = False  # it picks one token behind each node and accepts the child equal to it

    @property
    def siblings(self) -> Siblings:
        """How siblings must be sampled."""
        return "without"

    @property
    def seeded(self) -> bool:
        """Whether its noise is fixed per position, so that its picks do not depend on the draft."""
        return False

    def target_states(self, request: Request) -> TargetStates | None:
        """The states of the target that `TargetDistributions.states` is to have; None: none."""
        return None

    def extend(self, draft: Draft, context: DecodeContext, state: Any) -> Draft:
        """The draft that is fed, with nodes of the acceptance's own behind each row's; by default without any.

        They must lie before the row's limit, and nothing but `TargetDistributions.extended` tells of them.
        """
        return draft

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any) -> Verdict:
        """The accepted nodes, and the token behind them."""
        raise NotImplementedError


class DraftModel(Protocol):
    """A drafting model in one round: it is fed the nodes of a growing draft and predicts the token behind each."""

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Processed logits [B, K, V] behind `nodes` [B, K] of `draft`, whose ancestors must have been fed before.

        -1 is padding, which comes last in a row. Node 0 is fed first and alone.
        """

    def forward_over_ids(self, draft: Draft, nodes: Tensor) -> LogitsOverIds:
        """As `forward`, over the ids alone that the model can draft, where the processing of the request allows it."""
        return LogitsOverIds(self.forward(draft, nodes))

    def prune(self, nodes: Tensor) -> None:
        """Reduces the draft to these of its nodes [B, T], in this order."""

    def acceptance(self) -> Tensor | None:
        """[B, K] how likely a token drafted behind each node of the last forward is accepted; None: it does not say."""
        return None


class Shape(Stage):
    """How a draft model's guesses grow into a draft: a chain, or a tree."""

    adaptive: ClassVar[bool] = False  # a node's number of children depends on the sampled tokens
    chains: ClassVar[bool] = False  # no node has more than one child

    @property
    def unprocessed(self) -> bool:
        """Whether it grows by the drafter's own logits, not processed as the target's are."""
        return False

    @property
    def fixed_depth(self) -> int | None:
        """How deep a tree is that is fixed beforehand; None: as deep as the drafter's k."""
        return None

    def width(self, k: int) -> int:
        """The most nodes of a draft `k` tokens deep, including node 0 and nodes that are pruned in the end."""
        raise NotImplementedError

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: Any
    ) -> Draft:
        """A draft at most `budget` [B] tokens deep."""
        raise NotImplementedError


class Length(Stage):
    """How many tokens a round drafts."""

    drops_last: ClassVar[bool] = False  # the token at which it stops is not drafted
    times_rounds: ClassVar[bool] = False  # it measures time, so that two processes may decide differently

    def budget(self, most: int, context: DecodeContext, state: Any) -> np.ndarray:
        """[B] the most tokens to draft, `most` being the drafter's own limit, which is the default; 0 drafts none."""
        return np.full(len(context.text), most)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: Any) -> Tensor | None:
        """[B] bool: whether to stop after drafted token `step`, counted from 0; None continues in all rows.

        `confidence` [B] is the highest probability of the distribution that the token is sampled from, or what the
        drafting model says itself of its acceptance. It is known before the sample, so that dropping the token does
        not change its distribution. For a level of a tree it is that of its most certain node.
        """
        return None

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit."""


@dataclass(frozen=True)
class SpeculativeSampler:
    """A resolved spec of the verify loop: one object a stage; `shape` and `length` only if the drafter takes them."""

    spec: Spec
    exact: str
    draft: Drafter
    accept: Acceptance
    shape: Shape | None = None
    length: Length | None = None

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft while it grows, node 0 included."""
        most = self.draft.width(model)
        return most if self.shape is None else max(most, self.shape.width(most - 1))

    @property
    def stages(self) -> tuple[Any, ...]:
        """All stages that the spec has."""
        return tuple(stage for stage in (self.draft, self.shape, self.length, self.accept) if stage is not None)
