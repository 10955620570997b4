"""The contracts of the verify loop: drafts, target distributions, verdicts, and the base class of each stage.

As in the masked loop, stages are immutable, and a stage's state for one request is the value that its `start` returns.
Rows are dimension 0 of every tensor and array in a state, so that finished rows can be removed (`take_rows`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor

from pardec.models.errors import SpecError

from ..ops.allowed import AllowedRows
from ..spec import Policy, Spec
from .drafts import Draft as Draft  # a part of the contracts
from .early_states import EarlyStates as EarlyStates
from .over_ids import LogitsOverIds
from .rounds import RoundResult as RoundResult
from .rounds import TargetDistributions as TargetDistributions
from .rounds import Verdict as Verdict
from .uniform_contracts import BatchedUniforms as BatchedUniforms
from .uniform_contracts import InverseCDFUniforms as InverseCDFUniforms
from .uniform_contracts import Uniforms as Uniforms

if TYPE_CHECKING:
    from pardec.models.caches.kv_cache import KVCache
    from pardec.models.draft_modules.contracts import DraftModule, ModuleName
    from pardec.models.hidden import Hidden, TargetStates
    from pardec.models.model import LanguageModel

    from ..request import Request
    from .sequences import Sequences

Siblings = Literal["without", "with"]  # how siblings are sampled: without replacement, or independently


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
    queries: Callable[[], tuple[Tensor, ...]] = tuple  # what `Stage.last_queries` asks for, of the last round

    @property
    def siblings(self) -> Siblings:
        """How siblings must be sampled for the acceptance."""
        return self.sampler.accept.siblings

    @property
    def scratch(self) -> int:
        """The slots that drafts take behind the longest text; the target's cache may have fewer than both need."""
        return self.cache.reach - int(self.text.limit.max())

    def drafter_cache(self, drafter: Any) -> KVCache:
        """An empty cache of a drafting model's own, or a module's, for the same texts and drafts."""
        cache: KVCache = drafter.new_cache(len(self.text), int(self.text.limit.max()), scratch=self.scratch)
        return cache


class Stage(Policy):
    """Base of all stages: immutable policies, with a state for each request made by `start`."""

    def check(self, sampler: SpeculativeSampler) -> None:
        """Raises SpecError if the stage cannot be combined with the others; called when a spec is resolved."""

    @property
    def last_queries(self) -> int:
        """How many of the target's queries in front of each row's next token `DecodeContext.queries` is to give.

        Of each layer they are [B, n, H, D], as they met the keys: that many of the prompt's last tokens, in later
        rounds that of the last accepted node alone, n = 1. Only the native decoder has them.
        """
        return 0

    def start(self, context: DecodeContext) -> Any:
        """The stage's state for a request, made before the prompt is fed; rows are dimension 0 of its tensors."""
        return None


class Drafter(Stage):
    """Proposes tokens. If drafts have `highest`, the state has `failure()`, the error for one that is not finite."""

    takes_shape: ClassVar[bool] = False  # whether a spec may name a shape for it
    takes_length: ClassVar[bool] = False  # whether a spec may name a length controller for it
    one_pass: ClassVar[bool] = False  # one drafting forward gives all of a round's tokens
    within_verify: ClassVar[bool] = False  # it drafts within the forward that verifies, in all rows and every round
    copies: ClassVar[bool] = False  # it drafts chains of known tokens, with no state but the text's
    in_pass: ClassVar[bool] = False  # it has states or queries of its own in the forward that verifies
    default_acceptance: ClassVar[str | None] = None  # if the spec names none; None: exact sampling, or greedy
    device: str | None = None  # that the checkpoint it needs runs on; None: the target's

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft, node 0 included."""
        raise NotImplementedError

    def refuse_kept_samples(self, request: Request, sampler: SpeculativeSampler) -> None:
        """Raises SpecError where what earlier requests left would change a sampled text."""
        if request.temperature and not sampler.accept.seeded:
            raise SpecError(
                f"{self.registered[0]}: with keep=true a sampled text would depend on the requests before it",
                hint="accept with match:noise=seeded, whose samples do not depend on the drafts, or leave keep out",
            )

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

    def target_taps(self, model: LanguageModel) -> TargetStates | None:
        """The same for a drafter without a module, by the layers of the target; `target_states` goes first."""
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


class Logits(Stage):
    """Changes the target's logits, behind all that excludes tokens and before temperature and filters.

    Drafters propose by the model's own logits. A stage is a function of the text before a token, so that a node of a
    draft, and a row that joins a batch, get what they would get alone.
    """

    def scores(self, ids: Tensor, logits: Tensor, prompts: Tensor) -> Tensor:
        """Changed logits [N, V], each behind a text of its own.

        Args:
            ids: [N, C] texts of one length, prompts included.
            logits: [N, V] behind them; -inf excludes a token. At least one that is finite has to stay so.
            prompts: [N] tokens of each text's prompt.
        """
        raise NotImplementedError


class Cache(Stage):
    """How the target's K/V are stored, and which of them a forward reads. It changes what the target predicts."""

    shares: ClassVar[bool] = False  # rows may have K/V of a common prompt, or of earlier requests, in it
    beyond: ClassVar[bool] = False  # texts may be longer than the checkpoint was made for

    def fit(self, model: LanguageModel) -> None:
        """Raises ModelError, before the first forward, for a model whose K/V it cannot keep."""

    def new_cache(
        self, model: LanguageModel, rows: int, capacity: int, *, scratch: int = 0, shared: int = 0
    ) -> KVCache:
        """An empty cache, as `LanguageModel.new_cache` makes one."""
        return model.new_cache(rows, capacity, scratch=scratch, shared=shared)

    def room(self, context: DecodeContext, room: np.ndarray, state: Any) -> np.ndarray:
        """[B] how deep the next draft may be, at most `room` [B]."""
        return room

    def settle(self, context: DecodeContext, state: Any) -> None:
        """Called after each round's commit, the prompt's included: what is committed may be compressed, or dropped."""


class Texts(Stage):
    """How one pass over a prompt writes several texts, its drafts; `one_pass` is its loop, without other stages."""

    k: int  # drafts, and the most texts of a prompt

    @property
    def needed_corpus(self) -> str | None:
        """The text file whose tokens the caller hands in as `Request.corpus`."""
        return None

    def begin(self, prompts: Sequence[Sequence[int]], request: Request) -> list[Any]:
        """What it knows of each prompt before the first forward."""
        return [None] * len(prompts)

    def candidates(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens that drafts may go on with, likeliest first, and their log-probabilities, both [B, T]."""
        raise NotImplementedError

    def scores(
        self, texts: Sequence[Sequence[int]], tokens: np.ndarray, logprobs: np.ndarray, state: Any
    ) -> np.ndarray:
        """[n, T], at most 0: what each of `tokens` [T] adds to the score of each of n drafts; `state` is `begin`'s."""
        raise NotImplementedError

    def mixture(self, scores: np.ndarray) -> np.ndarray:
        """[n] the share of each draft in the next input, from their `scores` [n]; they sum to 1."""
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
    """A resolved spec of the verify loop: one object a stage; `shape` and `length` only if the drafter takes them.

    With `texts` that is its loop, and `draft` and `accept` are what it reduces to with one text.
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

    def width(self, model: LanguageModel) -> int:
        """The most nodes of a draft while it grows, node 0 included."""
        most = self.draft.width(model)
        return most if self.shape is None else max(most, self.shape.width(most - 1))

    @property
    def stages(self) -> tuple[Any, ...]:
        """All stages that the spec has."""
        stages = (self.draft, self.shape, self.length, *self.logits, self.accept, self.cache, self.texts)
        return tuple(stage for stage in stages if stage is not None)
