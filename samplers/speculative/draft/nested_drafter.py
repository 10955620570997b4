"""Drafters whose parameter `model` is the spec of another drafter."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...request import Request
from ...spec import parse
from ...spec_values import build_method
from ...traits import NONE, Trait
from ..contracts import DecodeContext, Drafter, SpeculativeSampler


@dataclass(frozen=True)
class Nesting(Drafter):
    """A drafter that contains a drafting model, to which shapes and length controllers apply."""

    example: ClassVar[str]
    _model: ClassVar[Any]

    model: Annotated[str | None, 'spec of a drafting model, quoted: "eagle:name=...,k=4"'] = None

    def __post_init__(self) -> None:
        inner = None if self.model is None else self._drafting_model(self.model)
        object.__setattr__(self, "_model", inner)  # no field: it follows from the spec

    def _drafting_model(self, text: str) -> Drafter:
        name = self.registered[0]
        drafter = nested(name, "model", text, "one drafting model", self.example)
        if Trait.TAKES_SHAPE not in drafter.provides or isinstance(drafter, Nesting):
            raise not_the_spec_of(name, "model", text, "one drafting model", self.example)
        if Trait.DRAFTS_DURING_VERIFY in drafter.provides:
            raise SpecError(
                f"{name}: {drafter.registered[0]} drafts within every verify forward and cannot be combined",
                hint="use model, eagle, medusa, hydra, dflash or layerskip",
            )
        return drafter

    @property
    def k(self) -> int:
        """The number of tokens that the model drafts."""
        return 1 if self._model is None else int(self._model.k)

    def check(self, sampler: SpeculativeSampler) -> None:
        if self._model is None:
            name = self.registered[0]
            raise SpecError(
                f"{name}: model is missing; it is the spec of a drafting model", f'write {name}:model="model:name=..."'
            )
        self._model.check(replace(sampler, draft=self._model))

    @property
    def provides(self) -> frozenset[Trait]:
        prompt = NONE if self._model is None else self._model.provides & {Trait.READS_PROMPT}
        return prompt | {Trait.TAKES_SHAPE, Trait.TAKES_LENGTH}

    @property
    def held(self) -> tuple[Drafter, ...]:
        return () if self._model is None else (self._model,)

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

    def finish(self, rows: np.ndarray, context: DecodeContext, state: Any) -> None:
        self._model.finish(rows, context, state.model)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> Any:
        return self._model.cost_ratio(target, draft_model)


def nested(owner: str, key: str, text: str, wanted: str, example: str) -> Drafter:
    """The drafter of the spec `text`, a parameter `key` of `owner`. Raises SpecError for anything but one drafter."""
    methods = [build_method(part, "ar") for part in parse(text).every]
    if len(methods) == 1 and isinstance(methods[0], Drafter):
        return methods[0]
    raise not_the_spec_of(owner, key, text, wanted, example)


def not_the_spec_of(owner: str, key: str, text: str, wanted: str, example: str) -> SpecError:
    """The error for a spec that does not name a `wanted`."""
    return SpecError(f"{owner}: {key} must be the spec of {wanted}, got {text!r}", hint=example)
