"""The contracts of the verify loop: drafts, target distributions, verdicts, and the base class of each stage.

As in the masked loop, stages are immutable, and a stage's state for one request is the value that its `start` returns.
Rows are dimension 0 of every tensor and array in a state, so that finished rows can be removed (`take_rows`).

- `Draft`: the tokens that one forward verifies.
- `SubsetLogits`: logits over part of the vocabulary, for drafters that cover few ids.
- `Uniforms`: the random numbers of one round, for acceptances and drafters.
- `TargetDistributions`, `Verdict`, `RoundResult`: the target's predictions after a draft, the accepted nodes, and the
  finished round.
- `LowerLayerStates`: the states of a draft's nodes after the target's first layers, if the drafter has run these.
- `ProbeNodes`: the probe nodes that a drafter adds to the verify forward, after the nodes of the draft, none of which
  attends to them.

Probe l of node n is at position `pos(n) + step[l] + 1`. It attends to the same slots as n, to n, and to the probes
above it in the chain of n. All probes 0 come first, then all probes 1: in every row the nodes, and the probes of the
first steps, are a prefix of the positions fed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ..host_transfer import download, to_host, upload
from ..ops.allowed import AllowedRows
from ..ops.confidence import argmax, picks, probability_of
from ..ops.inverse_cdf import sample
from ..renamed import refuse_former_names
from ..rng import Source
from ..spec import Policy, Spec
from ..traits import NONE, Reasons, Trait, Why

if TYPE_CHECKING:
    from pardec.models.caches.kv_cache import KVCache
    from pardec.models.draft_modules.contracts import DraftModule, ModuleName
    from pardec.models.model import LanguageModel
    from pardec.models.plan import Hidden, Plan, TargetStates

    from ..request import Request
    from .sequences import Sequences


@dataclass(frozen=True, eq=False)
class Draft:
    """Tokens to verify in one forward: a tree in topological order whose node 0 is the row's last committed token.

    Siblings are in the order in which they were sampled, and differ unless that was with replacement. `q[b, i]` is the
    distribution that node i was sampled from given its earlier siblings, processed as the target's are.
    """

    tokens: Tensor  # [B, T] int64; -1 means no token: see `ids`
    sizes: np.ndarray  # [B] on the host: nodes per row, at least 1; later columns are padding
    base: np.ndarray  # [B] on the host: the absolute position of node 0
    parents: Tensor | None = None  # [T] or [B, T] int64, -1 for node 0; None: the draft is a chain
    depths: Tensor | None = None  # [T] or [B, T] int64, given with `parents`
    levels: int | None = None  # the greatest depth, if the drafter knows it; acceptances then skip empty levels
    verify: Tensor | None = None  # [T] or [B, T] bool; False: the node is fed but never tested. None: all are tested
    preaccepted: Tensor | None = None  # [B, T] bool; True: accepted untested, by `follow` and `judge`
    q: Tensor | None = None  # [B, T, V] float32; None: every node is a point mass
    is_point_mass: Tensor | None = None  # [B, T] bool, given with `q`; True: the node is a point mass
    early: LowerLayerStates | None = None  # the outputs of the first layers, if the drafter has run them
    ignores_length_controller: np.ndarray | None = (
        None  # [B] bool, on the host: rows whose draft length the length controller does not set
    )
    queries: ProbeNodes | None = None  # the drafter's probe nodes, after the nodes; only it receives their outputs
    grows: np.ndarray | None = None  # [B] bool, on the host: rows of a growing draft that are fed next; None: not known
    forwards: int = 0  # forwards of a drafting model
    highest: Tensor | None = None  # [] the sum of the drafter's highest logits: see `models.finite`

    @property
    def width(self) -> int:
        """The number of nodes T, node 0 included."""
        return self.tokens.shape[1]

    @cached_property
    def ids(self) -> Tensor:
        """[B, T] int64: `tokens` as indices, with 0 in place of -1, the token of node 0 after an image's condition."""
        return self.tokens.clamp(min=0)

    @cached_property
    def start(self) -> Tensor:
        """[B] int64: the absolute position of node 0."""
        return upload(self.base, self.tokens.device)

    @cached_property
    def tested(self) -> Tensor:
        """[B, T] bool: the nodes that can be accepted."""
        device = self.tokens.device
        order = torch.arange(self.width, device=device)
        real = (order < upload(self.sizes, device)[:, None]) & (order > 0)
        return real if self.verify is None else real & self.verify

    @cached_property
    def parent(self) -> Tensor:
        """[B, T] int64: the index of each node's parent, -1 for node 0."""
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
        """An upper bound on the length of a path from node 0, on the host."""
        return self.width - 1 if self.levels is None else self.levels

    def of_rows(self, rows: np.ndarray) -> Draft:
        """The part of the draft that a forward of these rows needs."""
        where = upload(rows, self.tokens.device)
        parents, depths = self.parents, self.depths
        return Draft(
            self.tokens[where],
            self.sizes[rows],
            self.base[rows],
            parents if parents is None or parents.dim() == 1 else parents[where],
            depths if depths is None or depths.dim() == 1 else depths[where],
            queries=None if self.queries is None else self.queries.rows(rows),
        )

    @staticmethod
    def none(text: Sequences) -> Draft:
        """A draft of node 0 alone (each row's last committed token), so that the forward predicts the next token."""
        return Draft(text.last.unsqueeze(1), np.ones(len(text), dtype=np.int64), text.length - 1)

    @staticmethod
    def chain(text: Sequences, drafted: Tensor, counts: np.ndarray, **more: Any) -> Draft:
        """A chain of the first counts[b] tokens of `drafted` [B, K] after node 0, as wide as the longest row."""
        last, most = text.last.unsqueeze(1), int(counts.max(initial=0))
        tokens = torch.cat((last, drafted[:, :most]), 1) if most else last
        return Draft(tokens, counts + 1, text.length - 1, **more)


@dataclass(frozen=True, slots=True, eq=False)
class SubsetLogits:
    """Processed logits of some ids; all other ids have probability 0."""

    logits: Tensor  # [B, K, N]
    ids: Tensor | None = None  # [N] int64, the id of each column; None: column i is id i

    def tokens(self, columns: Tensor) -> Tensor:
        """The token ids of these columns [...]."""
        return columns if self.ids is None else self.ids.take(columns)


class Uniforms(Protocol):
    """A round's random numbers: keyed by seed, or recorded ones replayed in a test.

    `purpose` is any word. Numbers of one purpose and node are the same in a round, others independent of them.
    """

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        """[B] uniforms in (0, 1), float64, for testing `token` [B] at `node` in the rows where `tested` [B] is True."""

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        """[B] int64: one index per row, sampled in proportion to the nonnegative `weights` [B, V]."""

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        """[B, K, width] uniforms for absolute `positions` [B, K]; `fixed`: the same in every round."""


@dataclass(frozen=True, slots=True)
class RoundUniforms:
    """Uniforms keyed by row seed, round, node and purpose, so that a row gets the same ones alone and in any batch."""

    source: Source
    rows: np.ndarray  # [B] index in the request
    rounds: np.ndarray  # [B]
    device: torch.device

    def accept(self, node: int, tested: Tensor, token: Tensor) -> Tensor:
        return self.draw_uniform("accept", node)

    def accepts(self, width: int) -> Tensor:
        where = torch.arange(width, device=self.device).expand(len(self.rows), width)
        return self.source.uniform(self.rows, self.rounds, where, "accept")

    def draw(self, weights: Tensor, purpose: str, node: int = 0) -> Tensor:
        return sample(weights, self.draw_uniform(purpose, node))

    def noise(self, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        return self.source.uniform(
            self.rows, np.zeros_like(self.rounds) if fixed else self.rounds, positions, purpose, width
        )

    def draw_uniform(self, purpose: str, node: int = 0) -> Tensor:
        where = torch.full((len(self.rows), 1), node, device=self.device)
        return self.source.uniform(self.rows, self.rounds, where, purpose)[:, 0]


@runtime_checkable
class BatchedUniforms(Protocol):
    """Uniforms that do not depend on which tests take place: all uniforms of a round can be generated at once."""

    def accepts(self, width: int) -> Tensor:
        """[B, width]: the uniforms that `accept` returns for each node."""


@runtime_checkable
class InverseCDFUniforms(BatchedUniforms, Protocol):
    """Uniforms whose `draw` is the inverse CDF of one uniform per row, so that a kernel can compute it."""

    def draw_uniform(self, purpose: str, node: int = 0) -> Tensor:
        """[B] float64: the uniforms that `draw` uses."""


@dataclass(frozen=True, eq=False)
class TargetDistributions:
    """The target's predictions after every node: index i is the distribution of the token that follows node i."""

    raw: Tensor  # [B, T, V] float32 logits of the model, guidance included, nothing else changed
    logits: Tensor  # [B, T, V] float32 after the logits processors, temperature and filters
    greedy: bool  # temperature 0: a point mass at the argmax
    states: Tensor | None = None  # [B, T, S] the acceptance's `target_states` at every node
    extended: Tensor | None = None  # [B, T', V] like `raw`, after the nodes of the draft that `extend` returned

    @cached_property
    def pick(self) -> Tensor:
        """[B, T] int64: the likeliest token after each node; the lowest id on ties."""
        return self._picks[0] if self.greedy and self.raw is self.logits else argmax(self.logits)

    @cached_property
    def _picks(self) -> tuple[Tensor, Tensor | None]:
        return picks(self.raw)

    def score(self, rows: np.ndarray, nodes: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[N] float32, on a CPU: the model's probability of each of `tokens` [N] after `nodes` [N] of `rows` [N]."""
        if "_picks" in vars(self):
            likeliest, share = self._picks
            if share is not None and (likeliest.numpy()[rows, nodes] == tokens).all():
                known: np.ndarray = share.numpy()[rows, nodes]
                return known
        at = torch.from_numpy(rows * self.raw.shape[1] + nodes)
        return probability_of(self.raw, at, torch.from_numpy(tokens)).numpy()

    @cached_property
    def probs(self) -> Tensor:
        """[B, T, V] float32: the probabilities of `logits`; a point mass at temperature 0."""
        if self.greedy:
            return torch.zeros_like(self.logits).scatter_(-1, self.pick[..., None], 1.0)
        return self.logits.softmax(-1)


@dataclass(frozen=True, eq=False)
class Verdict:
    """The result of an acceptance for each row."""

    path: Tensor  # [B, D] int64: node 0 and the accepted nodes in order; meaningless after `count`
    count: Tensor  # [B] int64 accepted nodes, node 0 not counted
    next: Tensor  # [B] int64 the token after the path: recovered or bonus
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
    states: Tensor | None = None  # [B, T, S] the drafter's `target_states` at every node, then at its probe nodes
    on_host: Mapping[str, np.ndarray] = field(default_factory=dict)  # the loop's summary, and `Drafter.to_observe`

    def read(self, name: str, parts: Callable[[], Mapping[str, Tensor]]) -> Mapping[str, np.ndarray]:
        """The arrays of `Drafter.to_observe`, one of which has this `name`; reads `parts` if they have not come yet."""
        return self.on_host if name in self.on_host else to_host(parts())

    def levels(self) -> tuple[np.ndarray, np.ndarray]:
        """Accepted and drafted levels of each row, both [B], on the host; 0 where `ignores_length_controller`."""
        accepted = self.on_host["count"] if "count" in self.on_host else download(self.verdict.count)
        drafted = self.on_host.get("deepest", self.draft.sizes - 1)
        others = self.draft.ignores_length_controller
        return (accepted, drafted) if others is None else (np.where(others, 0, accepted), np.where(others, 0, drafted))


@dataclass(frozen=True, slots=True, eq=False)
class LowerLayerStates:
    """States after the first `layers` layers, run on every node by the drafter; their K/V are in the target's cache."""

    layers: int
    states: Tensor  # [B, T, E] inputs of the next layer
    taps: Mapping[int, Tensor] = field(default_factory=dict)  # layer -> [B, T, E] outputs of further layers among these

    def outputs(self, width: int) -> dict[int, Tensor]:
        """Layer -> [B, width, E]: the outputs of the layers that are known, valid at nodes and not at padding."""
        known = {**self.taps, self.layers - 1: self.states}
        return {layer: states[:, :width] for layer, states in known.items()}


Siblings = Literal["without", "with"]  # how siblings are sampled: without replacement, or independently


@dataclass(frozen=True, eq=False)
class DecodeContext:
    """What drafters can use during a request."""

    model: LanguageModel
    request: Request
    text: Sequences
    distribution: Callable[..., Tensor]  # (raw [B, K, V], draft, nodes [B, K]) -> logits, processed like the target's
    target_distribution: Callable[..., Tensor]  # the same, with the sampler's logits stages as well
    allowed: AllowedRows
    reads_ids: Callable[[], bool]  # whether processing some ids alone gives other logits than processing all ids
    cache: KVCache  # the target's; the slots after a row's committed tokens may be written
    sampler: SpeculativeSampler
    state: Callable[[Any], Any]  # a stage's state for this request
    queries: Callable[[], tuple[Tensor, ...]] = tuple  # the query vectors of the last round: see `Stage.last_queries`

    @property
    def siblings(self) -> Siblings:
        """How the acceptance needs siblings to be sampled."""
        return self.sampler.accept.siblings

    @property
    def scratch(self) -> int:
        """Cache slots for drafts after the longest text; the target's cache may be too small for both."""
        return self.cache.reach - int(self.text.limit.max())

    def drafter_cache(self, drafter: Any) -> KVCache:
        """A new empty cache for a draft model or draft module, with room for the same texts and drafts."""
        cache: KVCache = drafter.new_cache(len(self.text), int(self.text.limit.max()), scratch=self.scratch)
        return cache


FOR_MODELS = Why(
    "{me!r} needs a drafter with a model, and {other!r} has none", "leave {me!r} out, or draft with model:name=..."
)


class Stage(Policy):
    """Base of all stages: immutable policies; `start` makes the state of one request."""

    @property
    def last_queries(self) -> int:
        """How many attention query vectors before the next token `DecodeContext.queries` returns from the target.

        They are [B, n, H, D] per layer, as they were multiplied with the keys: in the first round those of that many of
        the prompt's last tokens, in later rounds that of the last accepted node alone, n = 1. Only the native decoder
        has them.
        """
        return 0

    def start(self, context: DecodeContext) -> Any:
        """The stage's state for a request, made before the prompt is fed; rows are dimension 0 of its tensors."""
        return None


class Drafter(Stage):
    """Proposes tokens. If its drafts set `highest`, its state has `failure()`, the error if that is not finite."""

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits of the drafter.

        `TAKES_SHAPE`, `TAKES_LENGTH`: a spec may name a shape, a length controller for it; `ONE_FORWARD_DRAFTS`: one
        drafting forward gives all of a round's tokens; `DRAFTS_DURING_VERIFY`: it drafts within the forward that
        verifies, in all rows and every round; `ADDS_VERIFY_NODES`: it adds probe nodes or states to it; `COPIES`:
        it drafts chains of known tokens, with no state but the text's; `READS_PROMPT`: `read_prompt` is to be called;
        `ADDS_BRANCHES`: its drafts are trees whatever the shape; `OBSERVES_TOKENS`: `observe` reads the draft, the
        verdict and states, and no distributions, which a round within a CUDA graph does not keep.
        """
        return NONE

    @property
    def held(self) -> tuple[Drafter, ...]:
        """The drafters inside this one; they are also checked against the rest of the sampler."""
        return ()

    default_acceptance: ClassVar[str | None] = None  # if the spec names none; None: exact sampling, or greedy
    device: str | None = None  # the device of the checkpoint it needs; None: the target's

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft, node 0 included; by default one more than the drafter's k."""
        k: int | None = getattr(self, "k", None)
        if k is None:
            raise self.undefined("width")
        return k + 1

    @property
    def needed_model(self) -> str | None:
        """The checkpoint that drafts, which the caller loads and hands in as `Request.draft_model`."""
        return None

    @property
    def needed_vocabulary(self) -> str | None:
        """The ids that the draft model's head keeps, as an argument of `models.trimmed.read_ids`; None: all ids."""
        return None

    @property
    def needed_module(self) -> ModuleName | None:
        """The draft module, bound to the target, which the caller hands in as `Request.draft_model` instead."""
        return None

    def target_states(self, request: Request) -> TargetStates | None:
        """The states of the target that `RoundResult.states` and `read_prompt` receive; None: none."""
        return None

    def target_taps(self, model: LanguageModel) -> TargetStates | None:
        """Like `target_states`, which takes precedence, by the target's layers; for drafters without a module."""
        return None

    def most_queries(self, nodes: int, request: Request) -> int:
        """The most probe nodes that the drafter adds to a draft of `nodes` nodes: see `Draft.queries`."""
        return 0

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The cost of one drafting forward divided by that of a target forward; None if unknown."""
        return None

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: Any) -> None:
        """Called with each group of rows of the prompt's forward; logits can be computed at any position."""

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        """A draft for every live row, at most `remaining` [B] deep, which leaves room for the bonus token."""
        raise self.undefined("propose")

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit, including the first round, which feeds the prompt."""

    def finish(self, rows: np.ndarray, context: DecodeContext, state: Any) -> None:
        """Called with the indices [n] of live rows whose text is complete, before they are removed."""

    def to_observe(self, outcome: RoundResult, state: Any) -> Mapping[str, Tensor]:
        """What `observe` will read on the host, by name: the transfer of the round's summary carries it.

        `outcome` is the round before its commit, in which nothing is gained yet. It is asked
        for on devices alone; on a CPU `observe` reads its tensors in place.
        """
        return {}


class Acceptance(Stage):
    """Decides which drafted tokens are accepted."""

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits of the acceptance.

        `FOLLOWS_PICK`: it picks one token after each node and accepts the child equal to it; `SEEDED`: its
        noise is fixed per position, so that its picks do not depend on the draft; `NEEDS_NO_HOST`:
        for a chain of point masses `accept` reads tensors and draws alone, and can be part of a CUDA graph.
        """
        return NONE

    @property
    def traits(self) -> frozenset[Trait]:
        return self.provides | {Trait.INDEPENDENT_SIBLINGS} if self.siblings == "with" else self.provides

    @property
    def siblings(self) -> Siblings:
        """How the drafter must sample siblings: see `Siblings`."""
        return "without"

    def target_states(self, request: Request) -> TargetStates | None:
        """The states of the target that `TargetDistributions.states` holds; None: none."""
        return None

    def extend(self, draft: Draft, context: DecodeContext, state: Any) -> Draft:
        """The draft to feed: `draft`, and nodes that the acceptance may add after each row's; by default it adds none.

        Added nodes must lie before the row's limit; only `TargetDistributions.extended` has their outputs.
        """
        return draft

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any) -> Verdict:
        """The accepted nodes and the token after them."""
        raise self.undefined("accept")


class DraftModel(Protocol):
    """A drafting model in one round: it is fed the nodes of a growing draft and predicts the token after each."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        refuse_former_names(cls, cls.__name__, family="ar", stage="draft_model")

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Processed logits [B, K, V] after `nodes` [B, K] of `draft`, whose ancestors must have been fed before.

        -1 is padding, which comes last in a row. Node 0 is fed first and alone.
        """

    def forward_subset(self, draft: Draft, nodes: Tensor) -> SubsetLogits:
        """Like `forward`, over only the ids that the model can draft, if the request's logits processing allows it."""
        return SubsetLogits(self.forward(draft, nodes))

    def greedy_chain(self, count: int) -> Tensor | None:
        """[1, 1 + count] node 0 and the likeliest tokens after it, drafted in one call before any other node is fed.

        None where they have to be drafted one by one. The request decodes greedily, and no controller stops a draft.
        """
        return None

    def prune(self, nodes: Tensor) -> None:
        """Keeps only these `nodes` [B, T] of the draft, in this order."""

    def acceptance(self) -> Tensor | None:
        """[B, K] the estimated acceptance rate of tokens drafted after each node of the last forward; None: unknown."""
        return None


class Shape(Stage):
    """Builds a draft, a chain or a tree, from a draft model's predictions."""

    requires: ClassVar[Reasons] = {Trait.TAKES_SHAPE: FOR_MODELS}

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits of the shape.

        `DRAFTS_ONE_CHAIN` or `DRAFTS_TREES`; `ADAPTIVE_TREES`: the number of a node's children depends on the sampled
        tokens; `UNPROCESSED_SCORES`: it grows by the drafter's own logits, not processed as the target's are.
        """
        return frozenset({Trait.DRAFTS_TREES})

    @property
    def fixed_depth(self) -> int | None:
        """The depth of a tree that is fixed beforehand; None: the drafter's k."""
        return None

    def width(self, k: int) -> int:
        """The most nodes of a draft `k` tokens deep, including node 0 and nodes that are pruned before verification."""
        raise self.undefined("width")

    def grow(
        self, draft_model: DraftModel, context: DecodeContext, budget: np.ndarray, uniforms: Uniforms, state: Any
    ) -> Draft:
        """Grows a draft at most `budget` [B] tokens deep."""
        raise self.undefined("grow")


class Logits(Stage):
    """Changes the target's logits, after tokens have been excluded and before temperature and filters.

    Drafters propose from the model's unchanged logits. A stage is a function of the text before a token, so that a
    node of a draft, and a row that joins a batch, get what they would get alone.
    """

    def scores(self, ids: Tensor, logits: Tensor, prompts: Tensor) -> Tensor:
        """The changed logits [N, V], one line per text.

        Args:
            ids: [N, C] texts of one length, prompts included.
            logits: [N, V] after them; -inf excludes a token. At least one finite logit has to stay finite.
            prompts: [N] tokens of each text's prompt.
        """
        raise self.undefined("scores")


class Cache(Stage):
    """Stores the target's K/V and chooses which of them a forward reads, which changes the target's predictions."""

    @property
    def provides(self) -> frozenset[Trait]:
        """Traits of the cache, always with `CHANGES_TARGET`.

        `SHARES_PROMPTS`: it may hold K/V of a prompt that rows share, or of earlier requests; `LONGER_TEXTS`: texts may
        be longer than the checkpoint was made for; `ENCODES_KV`: what it stores cannot be copied; `MOVES_KV`: it
        is not found by its place in the text.
        """
        return frozenset({Trait.CHANGES_TARGET})

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        """An empty cache, as `LanguageModel.new_cache` makes one."""
        return model.new_cache(rows, capacity, scratch=scratch, shared=shared)

    def max_depth(self, context: DecodeContext, remaining: np.ndarray, state: Any) -> np.ndarray:
        """[B] the most levels of the next draft, at most `remaining` [B]."""
        return remaining

    def settle(self, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit, the prompt's included; may compress or drop K/V of committed tokens."""


class Texts(Stage):
    """Decodes several texts (drafts) from one pass over the prompt; the loop `texts.prompt_decode` runs it."""

    k: int  # drafts per prompt, and the most texts per prompt

    @property
    def needed_corpus(self) -> str | None:
        """The text file whose tokens the caller hands in as `Request.corpus`."""
        return None

    def begin(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Any]:
        """Makes the state of each prompt before the first forward."""
        return [None] * len(prompts)

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that may continue a draft, likeliest first, and their log-probabilities, both [B, T]."""
        raise self.undefined("candidates")

    def scores(
        self, texts: Sequence[Sequence[int]], tokens: np.ndarray, logprobs: np.ndarray, state: Any
    ) -> np.ndarray:
        """[n, T], at most 0: what each of `tokens` [T] adds to the scores of n drafts; `state` was made by `begin`."""
        raise self.undefined("scores")

    def mixture(self, scores: np.ndarray) -> np.ndarray:
        """[n] the weight of each draft in the next input, from the drafts' `scores` [n]; weights sum to 1."""
        raise self.undefined("mixture")


class Length(Stage):
    """Controls how many tokens each round drafts."""

    # Traits: `DROPS_LAST`: the token at which `stop` is True is not drafted. `TIMES_ROUNDS`: it measures time, so that
    # two processes may decide differently. `OBSERVES_TOKENS`, as for a drafter: `observe` reads no distributions.
    requires: ClassVar[Reasons] = {Trait.TAKES_LENGTH: FOR_MODELS}

    def budget(self, most: int, context: DecodeContext, state: Any) -> np.ndarray:
        """[B] the most tokens to draft; the default is `most`, the drafter's limit, and 0 drafts none."""
        return np.full(len(context.text), most)

    def stop(self, confidence: Tensor, step: int, context: DecodeContext, state: Any) -> Tensor | None:
        """[B] bool: rows that stop drafting after drafted token `step`, counted from 0; None continues in all rows.

        `confidence` [B] is the highest probability of the distribution that the token is sampled from, or the
        drafting model's own estimate that it is accepted. It is known before the sample, so that dropping the token
        does not change its distribution. For a level of a tree it is that of its most certain node.
        """
        return None

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit."""


@dataclass(frozen=True)
class SpeculativeSampler:
    """A resolved spec of the verify loop, one object per stage; `shape` and `length` only if the drafter takes them.

    With `texts`, that stage's loop runs; with one text it reduces to `draft` and `accept`.
    """

    spec: Spec
    exact: str
    draft: Drafter
    accept: Acceptance
    shape: Shape | None = None
    length: Length | None = None
    logits: tuple[Logits, ...] = ()
    cache: Cache | None = None
    texts: Texts | None = None

    @cached_property
    def traits(self) -> frozenset[Trait]:
        """The union of all stages' traits."""
        return NONE.union(*(stage.traits for stage in self.stages))

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft while it grows, node 0 included."""
        most = self.draft.width(model)
        return most if self.shape is None else max(most, self.shape.width(most - 1))

    @property
    def stages(self) -> tuple[Any, ...]:
        """All stages of the spec."""
        stages = (self.draft, self.shape, self.length, *self.logits, self.accept, self.cache, self.texts)
        return tuple(stage for stage in stages if stage is not None)


@dataclass(frozen=True, slots=True)
class ProbeLayout:
    """The probe nodes after one node of a draft."""

    step: tuple[int, ...]  # the step of each probe node, from 0; in ascending order
    above: tuple[int, ...]  # the probe node before each one in its chain; -1: the node itself

    @property
    def steps(self) -> int:
        return max(self.step) + 1

    @staticmethod
    def single(steps: int) -> ProbeLayout:
        """One chain: one probe node per step, each after the one before."""
        return ProbeLayout(tuple(range(steps)), tuple(range(-1, steps - 1)))


@dataclass(frozen=True, slots=True)
class ProbeInjection:
    """The layer at which the probe nodes of one step enter the model."""

    layer: int  # probe nodes are made from its outputs at the nodes and run through the layers after it
    make: Callable[[Tensor], Tensor]  # outputs [.., E] -> states of the probe nodes [.., E]


@dataclass(frozen=True, eq=False)
class ProbeNodes:
    """The probe nodes after the nodes of a draft, numbered in each row directly after its nodes."""

    chains: ProbeLayout
    index: Tensor  # [B, L, T] int64: the number of probe l of node n among the row's nodes and probes, -1: none
    counts: np.ndarray  # [B, L] on the host: how many probes 0, probes 1, ... each row has
    inputs: Tensor | None = None  # [L, E] input vectors
    splices: tuple[ProbeInjection, ...] = ()  # instead of `inputs`: one per step, with one probe node per step
    run: Callable[[Plan, KVCache | None], Hidden] | None = None  # runs the forward with `inputs`; None: the model does

    def rows(self, rows: np.ndarray) -> ProbeNodes:
        """The probe nodes of these rows."""
        where = upload(rows, self.index.device)
        return replace(self, index=self.index[where], counts=self.counts[rows])

    def until(self, length: int) -> ProbeNodes:
        """The first `length` probe nodes of each node."""
        return replace(self, index=self.index[:, :length], counts=self.counts[:, :length])

    @property
    def total(self) -> np.ndarray:
        """[B] the number of probe nodes of each row."""
        total: np.ndarray = self.counts.sum(1)
        return total


def one_chain(does: str, otherwise: str = "") -> tuple[Reasons, Reasons]:
    """The `requires` and `conflicts` of an acceptance that verifies one chain per row.

    `does` tells what the acceptance does with the chain; `otherwise`, after a comma, another way out.
    """
    hint = f"draft with model:name=..., a draft module or lookup, without a shape{otherwise}"
    own_nodes = Why(f"{{me}} {does}, and {{other!r}} lays out its own nodes or keeps rejected tokens", hint)
    trees = Why(f"{{me}} {does}, and {{other!r}} drafts trees", f"leave the shape out: chain is the default{otherwise}")
    branches = Why(f"{{me}} {does}, and {{does}}", hint)
    return {Trait.DRAFTS_ONE_CHAIN: own_nodes}, {Trait.DRAFTS_TREES: trees, Trait.ADDS_BRANCHES: branches}
