"""The candidates of `tune`: every method of the model's family over its tuning grid, presets, caches, combinations."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice, product, zip_longest
from typing import TYPE_CHECKING

from pardec.samplers import registry
from pardec.samplers.spec import Part, Spec, format_value, parse

from ...drivers import DRIVERS

if TYPE_CHECKING:
    from pardec.samplers.cards import Card, Family

# A proposer changes the meaning of scores and thus of every threshold; it is tried in presets only. Samplers
# that write several texts are left out: those cannot be compared with one answer.
_EXCLUDED = {"propose", "texts"}
_MIX_PROBABILITY = 1 / 3  # probability that a stage is part of a combination
_MAX_REPEATS = 200  # after this many specs in a row without a new one, the space counts as exhausted


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sampler spec with an optional block length."""

    spec: str
    block_length: int | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """Complexity: number of parts, number of parameters, whether a block length is set."""
        spec = parse(self.spec)
        parts = spec.every
        return len(parts), sum(len(part.params) for part in parts), self.block_length is not None

    def __str__(self) -> str:
        return self.spec if self.block_length is None else f"{self.spec} in blocks of {self.block_length}"


Resolve = Callable[[Candidate], str | None]  # the resolved spec, or None if the model does not support it


@dataclass(frozen=True)
class Space:
    """The search space of one model.

    A method's class attribute `tuning_grid` lists the parameter values to try, `{"tau": (0.9, 0.8)}`; the default is
    tried only if it is listed. A method without a grid is tried with its defaults.
    """

    resolve: Resolve
    family: Family
    default: str  # the family's default spec, shortened; every candidate has its parts of other than the main stage
    baseline: str  # the exact spec, which is not a candidate
    # Specs of caches, may include "none". None: all of masked models; those of autoregressive ones change what a model
    # predicts, and are tried where they are named.
    caches: Sequence[str] | None = None
    mix_caches: bool = True  # False: try each cache once, with the default, since it cannot change the cost
    blocks: Sequence[int | None] = (None,)
    cards: Mapping[str, Card] = field(init=False)

    @property
    def main_stage(self) -> str | None:
        return DRIVERS[self.family].main_stage

    def __post_init__(self) -> None:
        own = (card for card in registry.cards() if card.family == self.family)
        object.__setattr__(self, "cards", {card.name: card for card in own if card.usable})
        full = self.resolve(Candidate(self.default))
        if full is not None:
            object.__setattr__(self, "default", self._shortest(parse(self.default), full, None))

    def candidates(self, count: int, seed: int) -> list[Candidate]:
        """The first `count` candidates, in the order in which they are tried.

        The default and other settings of its method, each method once, presets, caches; then further settings of all
        methods, interleaved, and random combinations by seed.

        The model supports all of them, no two resolve to the same spec, and each is written as briefly as possible.
        """
        return list(islice(self._distinct(self._all_specs(random.Random(f"tune/{seed}"))), count))

    def of(self, specs: Sequence[str]) -> list[Candidate]:
        """Candidates of these specs; a method without parameters expands to its grid, a missing cache to `caches`."""
        candidates = []
        for text in specs:
            for spec in self._expand(parse(registry.preset(text).spec if text.startswith("preset:") else text)):
                bare = spec.cache is None
                candidates += (
                    [replace(spec, cache=cache) for cache in self._caches()] if bare and self.caches else [spec]
                )
        return list(self._distinct(iter(candidates)))

    def settings(self, name: str) -> list[Part]:
        """A method in every setting of its grid; parameters with their default value are omitted."""
        card = self.cards[name]
        grid, default = card.make.tuning_grid, _defaults(card)
        return [
            Part(name, tuple((k, v) for k, v in zip(grid, values, strict=True) if v != default[k]))
            for values in product(*([format_value(value) for value in values] for values in grid.values()))
        ]

    @property
    def base(self) -> tuple[Part, ...]:
        """The parts of the default outside its main stage, such as `eos`."""
        parts = parse(self.default).parts
        return tuple(part for part in parts if self.cards[part.name].stage != self.main_stage)

    @property
    def exact(self) -> Candidate:
        """The baseline with the base parts, which usually do not change its tokens."""
        return Candidate(str(Spec((Part(self.baseline), *self.base))))

    # --- candidates, in the order in which they are tried ---

    def _all_specs(self, rng: random.Random) -> Iterator[Spec]:
        default, caches = parse(self.default), self._caches()
        methods = [self.settings(name) for name, card in self.cards.items() if self._is_searched(card)]
        main = next(part.name for part in default.parts if self.cards[part.name].stage == self.main_stage)
        yield from (replace(default, cache=cache) for cache in caches[:1])
        # Strict settings of the default's own method come first, since they are the most likely to keep the quality.
        yield from (self._with_base(setting, cache=caches[0]) for setting in self.settings(main))
        yield from (self._with_base(*settings[:1], cache=caches[0]) for settings in methods)
        interleaved = chain.from_iterable(zip_longest(*(settings[1:] for settings in methods)))
        later = [self._with_base(setting, cache=caches[0]) for setting in interleaved if setting is not None]
        if self.caches is None:
            presets = [
                self._fill_grid(parse(preset.spec)) for preset in registry.presets() if self._is_known(preset.spec)
            ]
            if not self.mix_caches:
                presets = [spec for spec in presets if spec.cache is None]
            composed = [spec for spec in presets if len(spec.parts) > 1 + len(self.base) or spec.cache is not None]
            yield from composed  # presets of a single method come later, with the other settings
            later += [spec for spec in presets if spec not in composed]
        yield from (replace(default, cache=cache) for cache in caches[1:])
        mixtures = self._mixtures(rng)
        for index, spec in enumerate(later):
            yield spec
            if index % 2:
                yield next(mixtures)
        yield from mixtures

    def _mixtures(self, rng: random.Random) -> Iterator[Spec]:
        """Random combinations of methods of several stages, endlessly."""
        stages: dict[str, list[list[Part]]] = {}
        for name, card in self.cards.items():
            if self._is_searched(card):
                stages.setdefault(card.stage, []).append(self.settings(name))
        main, caches = self.main_stage, self._caches()
        while True:
            mix = [s for s in stages if s == main or rng.random() < _MIX_PROBABILITY]
            parts = [rng.choice(rng.choice(stages[stage])) for stage in mix]
            yield self._with_base(*parts, cache=rng.choice(caches) if self.mix_caches else caches[0])

    def _distinct(self, specs: Iterator[Spec]) -> Iterator[Candidate]:
        known: set[tuple[str, int | None]] = set()
        repeats = 0
        for spec in specs:
            repeats += 1
            for block in self.blocks:
                full = self.resolve(Candidate(str(spec), block))
                if full is not None and (full, block) not in known:
                    known.add((full, block))
                    yield Candidate(self._shortest(spec, full, block), block)
                    repeats = 0
            if repeats > _MAX_REPEATS:
                return

    def _shortest(self, spec: Spec, full: str, block: int | None) -> str:
        """`spec` without default parts and default parameters; the method of the main stage remains."""

        def is_same(shorter: Spec) -> bool:
            return bool(shorter.parts) and self.resolve(Candidate(str(shorter), block)) == full

        if is_same(shorter := replace(spec, cache=None)):
            spec = shorter
        for part in spec.parts:
            others = tuple(other for other in spec.parts if other != part)
            if self.cards[part.name].stage != self.main_stage and is_same(replace(spec, parts=others)):
                spec = replace(spec, parts=others)
        for part in spec.every:
            for key, _ in part.params:
                if is_same(shorter := _without(spec, part.name, key)):
                    spec = shorter
        return str(spec)

    # --- parts ---

    def _is_searched(self, card: Card) -> bool:
        fixed = card.name in {part.name for part in (*self.base, *parse(self.baseline).parts)}
        return not (card.stage == "cache" or card.stage in _EXCLUDED or card.make.uses_answer or fixed)

    def _with_base(self, *parts: Part, cache: Part | None) -> Spec:
        names = {part.name for part in parts}
        return Spec((*parts, *(part for part in self.base if part.name not in names)), cache)

    def _caches(self) -> list[Part | None]:
        """The caches to try, None first; those without parameters are expanded to their grid."""
        if self.caches is None and not DRIVERS[self.family].tunes_caches:
            return [None]
        if self.caches is None:
            names = [name for name, card in self.cards.items() if card.stage == "cache" and name != "none"]
            grids = [self.settings(name) if self.mix_caches else self.settings(name)[:1] for name in names]
            return [None, *(setting for grid in grids for setting in grid)]
        parts = [parse(text).parts[0] for text in self.caches]
        return [setting for part in parts for setting in self._settings_of(part)] or [None]

    def _settings_of(self, part: Part) -> list[Part]:
        return [part] if part.params or part.name not in self.cards else self.settings(part.name)

    def _expand(self, spec: Spec) -> list[Spec]:
        return [Spec(tuple(parts), spec.cache) for parts in product(*map(self._settings_of, spec.parts))]

    def _fill_grid(self, spec: Spec) -> Spec:
        """A preset with the base parts, where defaults outside a method's grid are replaced by its first value."""

        def fill(part: Part) -> Part:
            grid, default = self.cards[part.name].make.tuning_grid, _defaults(self.cards[part.name])
            params = dict(part.params)
            values = {k: [format_value(each) for each in v] for k, v in grid.items() if k not in params}
            added = {k: texts[0] for k, texts in values.items() if default[k] not in texts}
            return Part(part.name, (*part.params, *added.items()))

        return self._with_base(*map(fill, spec.parts), cache=spec.cache)

    def _is_known(self, text: str) -> bool:
        spec = parse(text)
        baseline = {part.name for part in parse(self.baseline).parts}
        names = {part.name for part in spec.every}
        return names <= self.cards.keys() and not names & baseline


def _without(spec: Spec, name: str, key: str) -> Spec:
    """`spec` without one parameter."""

    def cut(part: Part) -> Part:
        return Part(name, tuple(p for p in part.params if p[0] != key)) if part.name == name else part

    return Spec(tuple(map(cut, spec.parts)), None if spec.cache is None else cut(spec.cache))


def _defaults(card: Card) -> dict[str, str]:
    return {f.name: format_value(f.default) for f in fields(card.make)}
