"""What a model can take, asked without a forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import ModelError, SpecError
from pardec.samplers.cards import Family
from pardec.samplers.registry import resolve
from pardec.samplers.speculative.contracts import SpeculativeSampler

from ...requests.settings import Settings
from ..plan import Loading, family_of
from .space import Candidate, Space

if TYPE_CHECKING:
    from ...api import Model


@dataclass(frozen=True)
class Fit:
    """A model with the arguments of `generate` that hold for every candidate."""

    model: Model | None  # None before its weights are read
    name: str  # as it is asked for again
    family: Family
    arguments: Mapping[str, Any]
    _known: dict[Candidate, tuple[str, str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model | str | Path, loading: Mapping[str, Any], arguments: Mapping[str, Any]) -> Fit:
        """Loads a model that is named."""
        from ...api import load

        held = load(model, **loading) if isinstance(model, str | Path) else model
        _refuse_vectors(held.name, held.family)
        name = str(model) if isinstance(model, str | Path) else held.name
        return cls(held, name, held.family, dict(arguments))

    @classmethod
    def unread(cls, model: Model | str | Path, loading: Mapping[str, Any], arguments: Mapping[str, Any]) -> Fit:
        """What a model's family can take, by its configuration: the model itself may refuse some of it yet."""
        if not isinstance(model, str | Path):
            return cls.of(model, loading, arguments)
        family = family_of(str(model), Loading(**loading))
        _refuse_vectors(str(model), family)
        return cls(None, str(model), family, dict(arguments))

    @property
    def loaded(self) -> Model:
        """The model, once its weights are read."""
        assert self.model is not None, "asked for by who loaded it"
        return self.model

    def space(self, baseline: str, caches: Sequence[str] | None, block_lengths: Sequence[int], *, mix: bool) -> Space:
        """Everything there is to try. Raises SpecError for an argument or a cache that the model cannot take."""
        default = self._prepared(self.arguments)
        for block in block_lengths:
            self._prepared({**self.arguments, "block_length": block})
        for cache in caches or ():
            if cache != "none":
                self._prepared({**self.arguments, "sampler": f"{baseline}@{cache}"})
        blocks = tuple(block_lengths) or (None,)
        return Space(self.spec, self.family, str(default.spec), baseline, caches, mix, blocks)

    def spec(self, candidate: Candidate) -> str | None:
        """The candidate's spec as this model resolves it; None where it cannot take it."""
        known = self._resolved(candidate)
        return None if known is None else known[0]

    def exact(self, candidate: Candidate, otherwise: Candidate) -> Candidate:
        """The candidate, if its tokens are the baseline's."""
        known = self._resolved(candidate)
        return candidate if known is not None and known[1] == "greedy" else otherwise

    def _resolved(self, candidate: Candidate) -> tuple[str, str] | None:
        if candidate not in self._known:
            block = {} if candidate.block_length is None else {"block_length": candidate.block_length}
            try:
                sampler = self._prepared({**self.arguments, **block, "sampler": candidate.spec})
                self._known[candidate] = str(sampler.spec), sampler.exact
            except (SpecError, ModelError):  # a draft model that cannot be had among them
                self._known[candidate] = None
        return self._known[candidate]

    def _prepared(self, arguments: Mapping[str, Any]) -> Any:
        if self.model is None:
            settings = Settings.of(arguments)
            return resolve(settings.sampler, self.family, sampling=settings.temperature > 0)
        sampler: Any = self.model.prepare("a", **arguments).sampler
        if isinstance(sampler, SpeculativeSampler):
            sampler.width(self.model.language_model)  # drafters refuse a model there
        return sampler


def _refuse_vectors(name: str, family: Family) -> None:
    if family == "continuous":
        raise SpecError(
            f"{name} draws vectors, and tune searches samplers of tokens that have ids",
            hint="compare its samplers: pardec compare MODEL --task classes -s mar:steps=16 -s mar:steps=64",
        )
