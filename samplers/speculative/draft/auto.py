"""Drafts each round with one of two drafters: a model, or copied tokens where those have lately been worth more.

BanditSpec: Adaptive Speculative Decoding via Bandit Algorithms, https://arxiv.org/abs/2505.15141
Not-a-Bandit: Provably No-Regret Drafter Selection in Speculative Decoding for LLMs, https://arxiv.org/abs/2510.20064

    model:  r_M = sum gained / sum cost of its recent rounds,     cost = 1 + token * tokens fed + c * drafting forwards
    copy:   r_C = g(n) / (1 + token * tokens copied),  g(n) = mean of what recent copies behind n equal tokens gave
    copy  iff  there is something to copy and r_C > r_M

The copy's guess costs nothing, so it is made every round; one that is not used is compared with what the round commits,
and counts like one that was. Hence no round is spent on trying, and a switch takes a round or two. Where all that was
committed agrees with the guess, the tokens behind it are put at g(n). Sums fade by a factor a round, from a start that
favours long matches.

Deviates from the papers: only the copy is judged in rounds in which it was not played, since its guess is free; recent
rounds count more than older ones; no bounds of confidence. Every row decides by its own past alone. Costs are not
measured, so that the same text is drafted the same way on every machine.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.hidden import Hidden
from pardec.models.model import LanguageModel

from ...registry import register
from ...request import Request
from ...spec import parse
from ...spec_values import build_method
from ..contracts import DecodeContext, Draft, Drafter, RoundResult, SpeculativeSampler, Uniforms
from ._arms import Arms, joined
from ._behind import QueryDrafter
from .dynamic_exit import DynamicExit
from .earlyexit import EarlyExit
from .kangaroo import Kangaroo

_ACCEPTANCE = 0.4  # of the model's first tokens at first, as two rounds
_COST = 0.1  # of a drafting forward where the drafter cannot tell


@register("auto", stage="draft", paper="arXiv:2510.20064", exact="greedy", checked="joint")
@dataclass(frozen=True)
class Auto(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    _model: ClassVar[Any]
    _copy: ClassVar[Any]

    model: Annotated[str | None, 'spec of a drafting model, quoted: "eagle:name=...,k=4"'] = None
    copy: Annotated[str, 'spec of a drafter that copies: lookup, copyspec or aggressive, as "lookup:k=7"'] = "lookup"
    token: Annotated[float, "cost of each position fed to the target, in forwards of one"] = 0.03

    def __post_init__(self) -> None:
        self.require("token", least=0)
        for name in ("model", "copy"):  # no fields: they follow from the specs
            object.__setattr__(self, f"_{name}", self._build(name))

    def _build(self, name: str) -> Drafter | None:
        text = getattr(self, name)
        if text is None:
            return None
        spec = parse(text)
        built = [build_method(part, "ar") for part in spec.every]
        if len(built) != 1 or not isinstance(built[0], Drafter) or built[0].takes_shape != (name == "model"):
            wanted = "one drafting model" if name == "model" else "one drafter that copies"
            raise SpecError(
                f"auto: {name} is the spec of {wanted}, got {text!r}",
                hint='auto:model="model:name=...",copy="lookup:k=7"; shape, length and acceptance stand beside auto',
            )
        if name == "copy" and not built[0].copies:
            raise SpecError(f"auto: {text!r} does not copy known tokens", hint="copy=lookup, copyspec or aggressive")
        if isinstance(built[0], DynamicExit | EarlyExit | Kangaroo | QueryDrafter):
            raise SpecError(
                f"auto: {built[0].registered[0]} drafts within the forward that verifies, in all rows and every round",
                hint="it cannot take turns: model, eagle, medusa, hydra, dflash and layerskip can",
            )
        return built[0]

    @property
    def k(self) -> int:
        """Tokens that the model drafts."""
        return 1 if self._model is None else int(self._model.k)

    def check(self, sampler: SpeculativeSampler) -> None:
        if self._model is None:
            raise SpecError(
                "auto: model is not given: the spec of a drafting model", 'write auto:model="model:name=..."'
            )
        for drafter in (self._model, self._copy):
            drafter.check(replace(sampler, draft=drafter))

    def width(self, model: LanguageModel) -> int:
        return int(max(self._model.width(model), self._copy.width(model)))

    @property
    def reads_prompt(self) -> bool:
        return bool(self._model.reads_prompt)

    @property
    def needed_model(self) -> Any:
        return self._model and self._model.needed_model

    @property
    def needed_module(self) -> Any:
        return self._model and self._model.needed_module

    @property
    def needed_vocabulary(self) -> Any:
        return self._model and self._model.needed_vocabulary

    def target_states(self, request: Request) -> Any:
        return self._model.target_states(request)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> Any:
        return self._model.cost_ratio(target, draft_model)

    def start(self, context: DecodeContext) -> Arms:
        ratio = self.cost_ratio(context.model, context.request.draft_model)
        arms = Arms.start(self._model.start(context), self._copy.start(context), len(context.text), self.token)
        arms.forward = _COST if ratio is None else ratio
        arms.gained += 2 * (1 + min(self.k, 4) * _ACCEPTANCE)
        arms.cost += 2 * self._price(arms.count + self.k + 1, arms)
        return arms

    def read_prompt(self, rows: np.ndarray, hidden: Hidden, context: DecodeContext, state: Arms) -> None:
        self._model.read_prompt(rows, hidden, context, state.model)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Arms) -> Draft:
        copied = self._copy.propose(context, room, uniforms, state.copy)
        state.choose(copied, context.text)
        # The model is asked even if it has nothing to draft: it then knows that this round is not its own.
        drafted = self._model.propose(context, np.where(state.used, 0, room), uniforms, state.model)
        return joined(drafted, copied, state.used) if state.used.any() else drafted

    def observe(self, outcome: RoundResult, context: DecodeContext, state: Arms) -> None:
        self._model.observe(outcome, context, state.model)
        self._copy.observe(outcome, context, state.copy)
        state.learn(outcome, context.text, self._price(outcome.draft.sizes, state))

    def _price(self, sizes: np.ndarray, state: Arms) -> np.ndarray:
        """[B] cost of rounds in which the model drafts `sizes` nodes, in forwards of the target."""
        forwards = 1 if self._model.one_pass else np.minimum(sizes - 1, self.k)
        price: np.ndarray = 1 + self.token * (sizes - 1) + state.forward * forwards
        return price
