"""Finds out which samplers a model supports, without a forward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import ModelError, SpecError, UnknownNameError, did_you_mean
from pardec.samplers.cards import Family
from pardec.samplers.registry import cards, resolve
from pardec.samplers.spec import parse

from ...drivers import DRIVERS
from ...requests.settings import Settings
from ..plan import Loading, family_of
from .space import Candidate, Space

if TYPE_CHECKING:
    from ...api import Model


@dataclass(frozen=True)
class Fit:
    """A model with the arguments of `generate` that all candidates share."""

    model: Model | None  # None before its weights are read
    name: str  # to load it again
    family: Family
    arguments: Mapping[str, Any]
    _resolutions: dict[Candidate, tuple[str, str] | None] = field(default_factory=dict)

    @classmethod
    def of(cls, model: Model | str | Path, loading: Mapping[str, Any], arguments: Mapping[str, Any]) -> Fit:
        """Loads a model given by name."""
        from ...api import load

        loaded = load(model, **loading) if isinstance(model, str | Path) else model
        _refuse_class_images(loaded.name, loaded.family)
        name = str(model) if isinstance(model, str | Path) else loaded.name
        return cls(loaded, name, loaded.family, dict(arguments))

    @classmethod
    def without_weights(
        cls, model: Model | str | Path, loading: Mapping[str, Any], arguments: Mapping[str, Any]
    ) -> Fit:
        """Reads a model's family from its configuration only; the model itself may support less."""
        if not isinstance(model, str | Path):
            return cls.of(model, loading, arguments)
        family = family_of(str(model), Loading(**loading))
        _refuse_class_images(str(model), family)
        return cls(None, str(model), family, dict(arguments))

    @property
    def loaded(self) -> Model:
        """The model with its weights."""
        assert self.model is not None, "created by `of`"
        return self.model

    def space(self, baseline: str, caches: Sequence[str] | None, block_lengths: Sequence[int], *, mix: bool) -> Space:
        """The search space. Raises SpecError for an argument or a cache that the model does not support."""
        default = self._sampler(self.arguments)
        for block in block_lengths:
            self._sampler({**self.arguments, "block_length": block})
        for cache in caches or ():
            if cache != "none":
                _check_cache(cache, self.family)
                self._sampler({**self.arguments, "sampler": f"{baseline}@{cache}"})
        blocks = tuple(block_lengths) or (None,)
        return Space(self.spec, self.family, str(default.spec), baseline, caches, mix, blocks)

    def spec(self, candidate: Candidate) -> str | None:
        """The candidate's resolved spec; None if the model does not support it."""
        resolution = self._resolve(candidate)
        return None if resolution is None else resolution[0]

    def exact(self, candidate: Candidate, fallback: Candidate) -> Candidate:
        """The candidate if it gives the baseline's tokens, else `fallback`."""
        resolution = self._resolve(candidate)
        return candidate if resolution is not None and resolution[1] == "greedy" else fallback

    def _resolve(self, candidate: Candidate) -> tuple[str, str] | None:
        if candidate not in self._resolutions:
            block = {} if candidate.block_length is None else {"block_length": candidate.block_length}
            try:
                sampler = self._sampler({**self.arguments, **block, "sampler": candidate.spec})
                self._resolutions[candidate] = str(sampler.spec), sampler.exact
            except (SpecError, ModelError):  # including a draft model that cannot be loaded
                self._resolutions[candidate] = None
        return self._resolutions[candidate]

    def _sampler(self, arguments: Mapping[str, Any]) -> Any:
        if self.model is None:
            settings = Settings.of(arguments)
            return resolve(settings.sampler, self.family, sampling=settings.temperature > 0)
        sampler = self.model.prepare("a", **arguments).sampler
        self.model.driver.check_drafts(sampler)
        return sampler


def _check_cache(spec: str, family: Family) -> None:
    """Refuses the spec of a cache whose name no cache of the family has."""
    known = [card.name for card in cards() if card.stage == "cache" and card.family == family]
    name = parse(f"sequential@{spec}").cache
    if name is not None and name.name not in known:
        raise UnknownNameError(
            f"there is no cache {name.name!r}{did_you_mean(name.name, known)}", f"one of {', '.join(known)}"
        )


def _refuse_class_images(name: str, family: Family) -> None:
    driver = DRIVERS[family]
    if driver.main_stage is None:
        raise SpecError(
            f"{name} draws {driver.drawn}, and tune searches samplers of token sequences",
            hint=f"compare its samplers: pardec compare MODEL --task classes {driver.compared}",
        )
