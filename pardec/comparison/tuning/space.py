"""What `tune` tries: every method of the model's family in the settings it names, presets, caches, and mixtures."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import chain, islice, product, zip_longest
from typing import TYPE_CHECKING, Any

from pardec.samplers import registry
from pardec.samplers.spec import Part, Spec, parse

if TYPE_CHECKING:
    from pardec.samplers.registry import Card

MAIN = {"masked": "select", "ar": "draft"}  # the stage that every sampler of a family is built around
# A proposer decides what a score means, and with it what every threshold means; it comes in with presets only.
_LEFT_OUT = {"propose"}
_MIXED = 1 / 3  # how often a stage joins a mixture
_PATIENCE = 200  # mixtures in a row that bring nothing new, after which the space counts as exhausted


@dataclass(frozen=True, slots=True)
class Candidate:
    """One setting that may be advised."""

    spec: str
    block_length: int | None = None

    @property
    def size(self) -> tuple[int, int, int]:
        """Smaller is simpler: parts, parameters, an argument beside the spec."""
        spec = parse(self.spec)
        parts = spec.every
        return len(parts), sum(len(part.params) for part in parts), self.block_length is not None

    def __str__(self) -> str:
        return self.spec if self.block_length is None else f"{self.spec} in blocks of {self.block_length}"


Resolve = Callable[[Candidate], str | None]  # the resolved spec, or None where the model cannot take it


@dataclass(frozen=True)
class Space:
    """The settings for one model.

    A method says in its class attribute `tried` which values of its parameters are worth trying, `{"tau": (0.9, 0.8)}`;
    the default is among them only if it is named. A method without it is tried as it stands.
    """

    resolve: Resolve
    family: str
    default: str  # the family's default spec; what it has beside its main stage, every candidate has; shortened
    baseline: str  # the exact one, which is not searched
    caches: Sequence[str] | None = None  # specs of caches, "none" among them; None: whatever the family has
    mix_caches: bool = True  # False: each cache is tried once, with the default, since the cost does not feel them
    blocks: Sequence[int | None] = (None,)
    cards: Mapping[str, Card] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "cards", {card.name: card for card in registry.cards() if card.family == self.family})
        full = self.resolve(Candidate(self.default))
        if full is not None:
            object.__setattr__(self, "default", self._shortest(parse(self.default), full, None))

    def candidates(self, count: int, seed: int) -> list[Candidate]:
        """The first `count`: the default and its method's other settings, each method once, presets, caches; then the
        others' settings, the first of each method before the second of any, and mixtures by seed.

        No two resolve to the same, each is written as shortly as it can be, and all are fit for the model.
        """
        return list(islice(self._distinct(self._every(random.Random(f"tune/{seed}"))), count))

    def of(self, specs: Sequence[str]) -> list[Candidate]:
        """Only these, with every cache asked for where they name none; a part without parameters stands for all its
        settings."""
        found = []
        for text in specs:
            for spec in self._expanded(parse(registry.preset(text).spec if text.startswith("preset:") else text)):
                bare = spec.cache is None
                found += [replace(spec, cache=cache) for cache in self._caches()] if bare and self.caches else [spec]
        return list(self._distinct(iter(found)))

    def settings(self, name: str) -> list[Part]:
        """A method in every setting that it names, what is its default left out."""
        card = self.cards[name]
        tried, default = card.make.tuning_grid, _defaults(card)
        return [
            Part(name, tuple((k, v) for k, v in zip(tried, values, strict=True) if v != default[k]))
            for values in product(*([_text(value) for value in values] for values in tried.values()))
        ]

    @property
    def base(self) -> tuple[Part, ...]:
        """What the default has beside its main stage: ends a row early, say."""
        parts = parse(self.default).parts
        return tuple(part for part in parts if self.cards[part.name].stage != MAIN[self.family])

    @property
    def exact(self) -> Candidate:
        """The baseline with the same beside it: its tokens, where that changes none."""
        return Candidate(str(Spec((Part(self.baseline), *self.base))))

    # --- in the order of what is tried first ---

    def _every(self, rng: random.Random) -> Iterator[Spec]:
        default, caches = parse(self.default), self._caches()
        methods = [self.settings(name) for name, card in self.cards.items() if self._searched(card)]
        main = next(part.name for part in default.parts if self.cards[part.name].stage == MAIN[self.family])
        yield from (replace(default, cache=cache) for cache in caches[:1])
        # From the default's own method a user expects the setting that keeps the quality, however strict it is.
        yield from (self._with_base(setting, cache=caches[0]) for setting in self.settings(main))
        yield from (self._with_base(*settings[:1], cache=caches[0]) for settings in methods)
        interleaved = chain.from_iterable(zip_longest(*(settings[1:] for settings in methods)))
        rest = [self._with_base(setting, cache=caches[0]) for setting in interleaved if setting is not None]
        if self.caches is None:
            named = [self._filled(parse(preset.spec)) for preset in registry.presets() if self._knows(preset.spec)]
            if not self.mix_caches:
                named = [spec for spec in named if spec.cache is None]
            composed = [spec for spec in named if len(spec.parts) > 1 + len(self.base) or spec.cache is not None]
            yield from composed  # a single method with other values waits with the other settings
            rest += [spec for spec in named if spec not in composed]
        yield from (replace(default, cache=cache) for cache in caches[1:])
        mixtures = self._mixtures(rng)
        for at, spec in enumerate(rest):
            yield spec
            if at % 2:
                yield next(mixtures)
        yield from mixtures

    def _mixtures(self, rng: random.Random) -> Iterator[Spec]:
        """Methods of several stages together, without end."""
        stages: dict[str, list[list[Part]]] = {}
        for name, card in self.cards.items():
            if self._searched(card):
                stages.setdefault(card.stage, []).append(self.settings(name))
        main, caches = MAIN[self.family], self._caches()
        while True:
            chosen = [s for s in stages if s == main or rng.random() < _MIXED]
            parts = [rng.choice(rng.choice(stages[stage])) for stage in chosen]
            yield self._with_base(*parts, cache=rng.choice(caches) if self.mix_caches else caches[0])

    def _distinct(self, specs: Iterator[Spec]) -> Iterator[Candidate]:
        seen: set[tuple[str, int | None]] = set()
        idle = 0
        for spec in specs:
            idle += 1
            for block in self.blocks:
                full = self.resolve(Candidate(str(spec), block))
                if full is not None and (full, block) not in seen:
                    seen.add((full, block))
                    yield Candidate(self._shortest(spec, full, block), block)
                    idle = 0
            if idle > _PATIENCE:
                return

    def _shortest(self, spec: Spec, full: str, block: int | None) -> str:
        """`spec` without what it would have anyway; the method it is built around stays."""

        def same(less: Spec) -> bool:
            return bool(less.parts) and self.resolve(Candidate(str(less), block)) == full

        if same(bare := replace(spec, cache=None)):
            spec = bare
        for part in spec.parts:
            others = tuple(other for other in spec.parts if other != part)
            if self.cards[part.name].stage != MAIN[self.family] and same(replace(spec, parts=others)):
                spec = replace(spec, parts=others)
        for part in spec.every:
            for key, _ in part.params:
                if same(less := _without(spec, part.name, key)):
                    spec = less
        return str(spec)

    # --- parts ---

    def _searched(self, card: Card) -> bool:
        plain = card.name in {part.name for part in (*self.base, *parse(self.baseline).parts)}
        return not (card.stage == "cache" or card.stage in _LEFT_OUT or card.make.yardstick or plain)

    def _with_base(self, *parts: Part, cache: Part | None) -> Spec:
        names = {part.name for part in parts}
        return Spec((*parts, *(part for part in self.base if part.name not in names)), cache)

    def _caches(self) -> list[Part | None]:
        """The caches tried, none first; every setting of those that are not written with parameters."""
        if self.caches is None:
            named = [name for name, card in self.cards.items() if card.stage == "cache" and name != "none"]
            some = [self.settings(name) if self.mix_caches else self.settings(name)[:1] for name in named]
            return [None, *(setting for settings in some for setting in settings)]
        parts = [parse(text).parts[0] for text in self.caches]
        return [setting for part in parts for setting in self._settings_of(part)] or [None]

    def _settings_of(self, part: Part) -> list[Part]:
        return [part] if part.params or part.name not in self.cards else self.settings(part.name)

    def _expanded(self, spec: Spec) -> list[Spec]:
        return [Spec(tuple(parts), spec.cache) for parts in product(*map(self._settings_of, spec.parts))]

    def _filled(self, spec: Spec) -> Spec:
        """A preset as it is searched: with the base, and never in a default that its method does not name as tried."""

        def fill(part: Part) -> Part:
            tried, default = self.cards[part.name].make.tuning_grid, _defaults(self.cards[part.name])
            given = dict(part.params)
            added = {k: _text(v[0]) for k, v in tried.items() if k not in given and default[k] not in map(_text, v)}
            return Part(part.name, (*part.params, *added.items()))

        return self._with_base(*map(fill, spec.parts), cache=spec.cache)

    def _knows(self, text: str) -> bool:
        spec = parse(text)
        baseline = {part.name for part in parse(self.baseline).parts}
        names = {part.name for part in spec.every}
        return names <= self.cards.keys() and not names & baseline


def _without(spec: Spec, name: str, key: str) -> Spec:
    """`spec` with one parameter left open."""

    def cut(part: Part) -> Part:
        return Part(name, tuple(p for p in part.params if p[0] != key)) if part.name == name else part

    return Spec(tuple(map(cut, spec.parts)), None if spec.cache is None else cut(spec.cache))


def _defaults(card: Card) -> dict[str, str]:
    return {f.name: _text(f.default) for f in fields(card.make)}


def _text(value: Any) -> str:
    """A value as specs write it."""
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
