"""Drafts where that gains tokens per second, from copies or a model, and decodes plainly where nothing does.

BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms, https://arxiv.org/abs/2505.15141
Not-a-Bandit: Provably No-Regret Drafter Selection in Speculative Decoding for LLMs, https://arxiv.org/abs/2510.20064

    model:  r_M = sum gained / sum cost of its recent rounds,     cost = 1 + token * tokens fed + c * drafting forwards
    copy:   r_C = g(n) / (1 + token * tokens copied),  g(n) = mean of what recent copies after n equal tokens gave
    copy  iff  there is something to copy and r_C > r_M

The copy costs nothing to guess, so it is guessed in every round: an unused guess is compared with the tokens that the
round commits, and counts like a used one. So no round is spent on trying, and a switch takes a round or two. If all
committed tokens agree with an unused guess, its further tokens count as g(n). Sums fade by a factor per round, and
start with values that favour long matches. Without a `model` every draft is a copy.

    draft iff  tokens / seconds of rounds with drafts > tokens / seconds of rounds without,  measured for the batch

The clock decides this for all rows at once, from the first rounds of a request on, and remembers both rates for later
requests of the same model, spec and number of rows. `measured=false` always drafts. Greedy tokens do not depend on the
clock. Sampled ones do, with an unchanged distribution: a seed gives the same tokens again with `measured=false` only.

Deviates from the papers: only the copy is judged in rounds in which it was not played, since its guess is free; recent
rounds count more than older ones; no bounds of confidence. Every row chooses between copy and model by its own past
alone, with assumed costs; with `measured=false` the same text is drafted the same way on every machine.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import PardecError, SpecError
from pardec.models.kernels.cpu.blocks import BlockWeight
from pardec.models.kernels.cpu.int8 import Int8Weight
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden

from ... import pace
from ...host_transfer import upload
from ...pace import RoundTimer
from ...registry import register
from ...request import Request
from ...traits import NONE, Trait
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ..sequences import Sequences
from .nested_drafter import Nesting, nested, not_the_spec_of
from .text_history import NGramIndex, PerRow

_SIZES = (1, 2, 3)  # tokens of a match that are told apart
_START = (2.0, 2.0, 2.5, 3.5)  # prior tokens of a copy after a match of 0, 1, .. tokens, counted as one round
_FADE_COPY = 0.85
_FADE_MODEL = 0.9


@dataclass
class BanditState:
    """The gains of two drafters, and their drafts in this round; rows are live rows."""

    model: Any  # the drafters' states
    copy: Any
    texts: PerRow[NGramIndex]
    gained: np.ndarray  # [B] tokens gained in the model's rounds, with decay
    cost: np.ndarray  # [B] cost of the model's rounds, with decay
    copied: np.ndarray  # [B, N] tokens gained by copies, per match length
    rounds: np.ndarray  # [B, N] rounds with copies, per match length
    size: np.ndarray  # [B] the match's length in this round
    guess: np.ndarray  # [B, K] the copied tokens of this round, once it is over
    count: np.ndarray  # [B] the number of copied tokens
    used: np.ndarray  # [B] bool: rows whose draft is the copy
    token: float  # cost of a position fed to the target, in forwards of it
    forward: float = 0.0  # cost of a forward of the model
    one_forward: bool = False  # whether a forward drafts all tokens of a round
    copies: Tensor | None = None  # [B, K] `guess` where it was drafted
    timer: RoundTimer | None = None  # decides whether a round drafts
    idle: bool = False  # whether this round has no drafts

    @staticmethod
    def start(model: Any, copy: Any, rows: int, token: float) -> BanditState:
        """The state before the first round, with these states of the drafters."""
        nothing, none = np.zeros(rows), np.zeros(rows, dtype=np.int64)
        copied = np.tile(np.array(_START), (rows, 1))
        texts = PerRow(NGramIndex(_SIZES) for _ in range(rows))
        guess = np.zeros((rows, 0), dtype=np.int64)
        sums = nothing, nothing.copy(), copied, np.ones_like(copied)
        return BanditState(model, copy, texts, *sums, none, guess, none.copy(), none > 0, token)

    def failure(self) -> PardecError:
        """The error for logits of the drafting model that are not finite."""
        error: PardecError = self.model.failure()
        return error

    def choose(self, copied: Draft, text: Sequences) -> None:
        """Sets `used`: the rows that use `copied` in this round."""
        self.copies, self.count = copied.tokens[:, 1:], copied.sizes - 1
        self.used = self.count > 0
        if not self.used.any():
            return
        for at, index in enumerate(self.texts.rows):
            index.extend(text.row(at)[len(index.text) :].tolist())
        self.size = np.array([index.longest() for index in self.texts.rows])
        rate = self._mean() / (1 + self.token * self.count)
        self.used &= rate > self.gained / self.cost

    def rest(self) -> None:
        """Begins rounds without drafts, from which `learn` learns nothing."""
        self.copies, self.count, self.used = None, np.zeros_like(self.count), np.zeros_like(self.used)
        self.idle = True

    def learn(self, outcome: RoundResult, text: Sequences, price: np.ndarray) -> None:
        """Updates the statistics after a round; `price` [B]: the cost of the model's draft."""
        played = ~self.used & (outcome.draft.sizes > 1)
        fade = np.where(played, _FADE_MODEL, 1)
        self.gained = self.gained * fade + np.where(played, outcome.gained, 0)
        self.cost = self.cost * fade + np.where(played, price, 0)
        row, known = np.arange(len(played)), self.count > 0
        if not known.any():
            return
        fade = np.where(known, _FADE_COPY, 1)
        for sums, more in ((self.copied, self.would_give(outcome, text)), (self.rounds, known)):
            sums[row, self.size] = sums[row, self.size] * fade + np.where(known, more, 0)

    def would_give(self, outcome: RoundResult, text: Sequences) -> np.ndarray:
        """[B]: the tokens that the round's copy gained, or would have gained."""
        order = np.arange(self.guess.shape[1])
        where = np.minimum(outcome.before[:, None] + order, text.host.shape[1] - 1)
        known = order < np.minimum(outcome.gained, self.count)[:, None]
        same = known & (text.host[np.arange(len(self.size))[:, None], where] == self.guess)
        agreed = same.cumprod(1).sum(1)
        open_end = (agreed == outcome.gained) & (agreed < self.count)
        tokens = np.minimum(agreed + np.where(open_end, np.maximum(1, self._mean()), 1), self.count + 1)
        result: np.ndarray = np.where(self.used, outcome.gained, tokens)
        return result

    def _mean(self) -> np.ndarray:
        """[B]: the mean number of tokens that a copy after such a match gains."""
        row = np.arange(len(self.size))
        value: np.ndarray = self.copied[row, self.size] / self.rounds[row, self.size]
        return value


@dataclass
class CopyState:
    """The state where there is no model."""

    copy: Any  # the drafter's state
    timer: RoundTimer | None


def joined(drafted: Draft, copied: Draft, used: np.ndarray) -> Draft:
    """A draft with the chains of `copied` in the rows `used` [B], and the model's draft in the others."""
    if used.all():
        return replace(copied, ignores_length_controller=used)
    width, device = max(drafted.width, copied.width), drafted.tokens.device
    rows = upload(used, device)[:, None]
    more = width - drafted.width

    def wide(value: Tensor, fill: float = 0) -> Tensor:
        return pad(value.expand(len(used), -1), (0, more), value=fill)

    chain = pad(copied.tokens, (0, width - copied.width))
    order = torch.arange(width, device=device)
    tree = drafted.parents is not None
    q = drafted.q
    if q is not None:
        point = torch.zeros(len(used), width, q.shape[-1], dtype=q.dtype, device=device)
        point.scatter_(2, chain.clamp(min=0)[..., None], 1)
        q = torch.where(rows[..., None], point, pad(q, (0, 0, 0, more)))
    return replace(
        drafted,
        tokens=torch.where(rows, chain, wide(drafted.tokens)),
        sizes=np.where(used, copied.sizes, drafted.sizes),
        parents=torch.where(rows, order - 1, wide(drafted.parent)) if tree else None,
        depths=torch.where(rows, order, wide(drafted.depth)) if tree else None,
        levels=max(drafted.deepest, copied.width - 1) if tree else None,
        verify=None if drafted.verify is None else rows | wide(drafted.verify),
        is_point_mass=None if drafted.is_point_mass is None else ~rows & wide(drafted.is_point_mass),
        q=q,
        ignores_length_controller=used,
    )


def _position_cost(model: LanguageModel) -> float:
    """The cost of a position fed to `model`, in forwards of one: packed weights take less time to read."""
    weights = pace.stack_of(model).parameters()
    return 0.1 if any(isinstance(weight, (BlockWeight, Int8Weight)) for weight in weights) else 0.03


_ACCEPTANCE = 0.4  # prior acceptance of the model's tokens, counted as two rounds
_COST = 0.1  # cost of a drafting forward, if the drafter cannot estimate it
_EXAMPLE = 'auto:model="model:name=...",copy="lookup:k=7"; add shape, length and acceptance with +'


@register("auto", paper="arXiv:2510.20064", exact="greedy", checked="joint")
class Auto(Nesting):
    example: ClassVar[str] = _EXAMPLE
    _copy: ClassVar[Any]
    _provides: ClassVar[frozenset[Trait]]

    model: Annotated[str | None, 'spec of a drafting model, quoted: "eagle:name=...,k=4"'] = None
    copy: Annotated[str, 'spec of a drafter that copies: lookup, copyspec, aggressive or suffix, as "lookup:k=7"'] = (
        "lookup"
    )
    token: Annotated[
        float | None,
        "cost of each position fed to the target, in forwards of one position; 0.03, 0.1 if weights are packed",
    ] = None
    measured: Annotated[bool, "leave drafts out where the clock says that they cost more than they gain"] = True

    def __post_init__(self) -> None:
        self.require("token", least=0)
        super().__post_init__()
        object.__setattr__(self, "_copy", self._build(self.copy))  # no fields: they follow from the spec
        object.__setattr__(self, "_provides", self._traits())

    def _build(self, text: str) -> Drafter:
        drafter = nested("auto", "copy", text, "one drafter that copies", _EXAMPLE)
        if Trait.TAKES_SHAPE in drafter.provides:
            raise not_the_spec_of("auto", "copy", text, "one drafter that copies", _EXAMPLE)
        if Trait.COPIES not in drafter.provides:
            raise SpecError(
                f"auto: {text!r} does not copy known tokens", hint="copy=lookup, copyspec, aggressive or suffix"
            )
        return drafter

    def check(self, sampler: SpeculativeSampler) -> None:
        if self._model is not None:
            super().check(sampler)
        self._copy.check(replace(sampler, draft=self._copy))

    @property
    def provides(self) -> frozenset[Trait]:
        return self._provides

    def _traits(self) -> frozenset[Trait]:
        own = frozenset({Trait.TIMES_ROUNDS}) if self.measured else NONE
        if all(Trait.OBSERVES_TOKENS in drafter.provides for drafter in self.held):
            own |= {Trait.OBSERVES_TOKENS}
        return own | (frozenset({Trait.DRAFTS_ONE_CHAIN}) if self._model is None else super().provides)

    @property
    def held(self) -> tuple[Drafter, ...]:
        return (*super().held, self._copy)

    def target_states(self, request: Request) -> Any:
        return None if self._model is None else super().target_states(request)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> Any:
        return None if self._model is None else super().cost_ratio(target, draft_model)

    def width(self, model: LanguageModel) -> int:
        widths = (drafter.width(model) for drafter in (self._model, self._copy) if drafter is not None)
        return int(max(widths))

    def start(self, context: DecodeContext) -> BanditState | CopyState:
        timer = None
        if self.measured:
            request = context.request
            clock, network = pace.clock_of(context.model, self, *self.held), pace.stack_of(context.model)
            timer = RoundTimer(network, clock, str(context.sampler.spec), request.temperature > 0, request.cfg)
        if self._model is None:
            return CopyState(self._copy.start(context), timer)
        ratio = self.cost_ratio(context.model, context.request.draft_model)
        token = _position_cost(context.model) if self.token is None else self.token
        arms = BanditState.start(self._model.start(context), self._copy.start(context), len(context.text), token)
        arms.forward = _COST if ratio is None else ratio
        arms.one_forward = Trait.ONE_FORWARD_DRAFTS in self._model.provides
        arms.gained += 2 * (1 + min(self.k, 4) * _ACCEPTANCE)
        arms.cost += 2 * self._price(arms.count + self.k + 1, arms)
        arms.timer = timer
        return arms

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: BanditState) -> None:
        self._model.read_prompt(rows, hidden, context, state.model)

    def propose(
        self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: BanditState | CopyState
    ) -> Draft:
        drafts = state.timer is None or state.timer.begin(len(context.text))
        if isinstance(state, CopyState):
            return self._copy.propose(context, remaining, uniforms, state.copy) if drafts else Draft.none(context.text)
        if not drafts:
            if not state.idle:  # the first round without drafts tells the model so
                state.rest()
                self._model.propose(context, np.zeros_like(remaining), uniforms, state.model)
            return Draft.none(context.text)
        state.idle = False
        copied = self._copy.propose(context, remaining, uniforms, state.copy)
        state.choose(copied, context.text)
        # `propose` is called even where the model drafts nothing: it then knows that the round is not its own.
        drafted = self._model.propose(context, np.where(state.used, 0, remaining), uniforms, state.model)
        return joined(drafted, copied, state.used) if state.used.any() else drafted

    def observe(self, outcome: RoundResult, context: DecodeContext, state: BanditState | CopyState) -> None:
        self._copy.observe(outcome, context, state.copy)
        if isinstance(state, BanditState):
            self._model.observe(outcome, context, state.model)
            if state.copies is not None:  # a round with drafts
                state.guess = outcome.read("guess", lambda: self.to_observe(outcome, state))["guess"]
            if not state.idle:
                state.learn(outcome, context.text, self._price(outcome.draft.sizes, state))
        if state.timer is not None:
            state.timer.end(outcome.gained)

    def to_observe(self, outcome: RoundResult, state: BanditState | CopyState) -> Mapping[str, Tensor]:
        if isinstance(state, CopyState):
            copied: Mapping[str, Tensor] = self._copy.to_observe(outcome, state.copy)
            return copied
        own = {} if state.copies is None else {"guess": state.copies}
        return {**own, **self._model.to_observe(outcome, state.model)}

    def finish(self, rows: np.ndarray, context: DecodeContext, state: BanditState | CopyState) -> None:
        if isinstance(state, BanditState):
            super().finish(rows, context, state)
        self._copy.finish(rows, context, state.copy)

    def _price(self, sizes: np.ndarray, state: BanditState) -> np.ndarray:
        """[B]: the cost of rounds in which the model drafts `sizes` nodes, in target forwards."""
        forwards = 1 if state.one_forward else np.minimum(sizes - 1, self.k)
        price: np.ndarray = 1 + state.token * (sizes - 1) + state.forward * forwards
        return price
