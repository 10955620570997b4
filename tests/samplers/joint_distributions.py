"""The pairs of drafters and exact acceptances, and the distance of many draws of each from the true joint."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from unittest.mock import patch

import numpy as np

from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import SpeculativeSampler
from pardec.samplers.traits import Trait
from tests.samplers.ar_toys import counted, floor, g_test, joint, run, spread, toy_ar, variation
from tests.samplers.module_files import random_modules
from tests.samplers.toys import drafter_named, resolved

ROWS = 4000  # of one batch

# Parameters with which a method has an effect on a toy of four or six tokens; other methods run with their defaults.
SMALL = {
    "aded": "aded:k=3,nodes=5,rollouts=4",
    "aggressive": "aggressive:k=4,max_ngram=2",
    "auto": 'auto:model="model:name=draft,k=3",copy="lookup:k=3,max_ngram=2",measured=false',
    "beam": "beam:beams=2,nodes=6",
    "copyspec": "copyspec:k=4,suffix=1",
    "del": "del:k=3",
    "dflash": "dflash:name=draft,k=3",
    "diffusion": "diffusion:name=masked,k=3,step=2,small=2",
    "dyspec": "dyspec:nodes=6,children=3",
    "eagle": "eagle:name=toy,k=3",
    "earlyexit": "earlyexit:layers=1",
    "falcon": "falcon:name=draft,k=3",
    "hydra": "hydra:name=draft,k=3",
    "idlm": "idlm:mask=2,k=2",
    "kangaroo": "kangaroo:name=draft,k=3",
    "linearspec": "linearspec:mask=2,k=3",
    "longspec": "longspec:name=draft,k=3",
    "lookup": "lookup:k=3",
    "medusa": "medusa:name=draft,k=3",
    "model": "model:name=draft,k=3",
    "mtp": "mtp:name=draft,k=3",
    "paths": "paths:tree=0-1-0.0-0.1-1.0-0.0.0-1.0.0",
    "pearl": "pearl:name=draft,k=3",
    "prompts": "prompts:name=draft",
    "rapid": "rapid:name=draft,k=3,chunk=1,chunks=1,query=1,begin=0",
    "rasd": 'rasd:model="model:name=draft,k=2",span=3,branches=2,suffix=2,nodes=5',
    "recycling": "recycling:k=3,tree=3-4-2",
    "sorted": "sorted:name=draft,exits=1-2,k=3",
    "sparsekv": 'sparsekv:read="retrieval:budget=2,chunk=1,refresh=2",k=3',
    "suffix": "suffix:k=3,factor=2",
    "template": "template:widths=3-2-1",
    "transfer": "transfer:name=draft",
    "triforce": 'triforce:name=draft,read="streaming:sink=1,window=1",k=2,gamma=2',
}
VARIANTS = {"match": ("match", "match:noise=seeded"), "rrs": ("rrs", "rrs:replacement=true")}


@dataclass(frozen=True)
class World:
    """A model small enough to enumerate, prompts of unequal lengths that share every batch, and the length of rows."""

    model: LanguageModel = field(repr=False)
    prompts: tuple[tuple[int, ...], ...]
    n: int
    temperature: float = 1.0
    top_k: int | None = None

    @cached_property
    def distributions(self) -> list[np.ndarray]:
        """The true distribution after each prompt."""
        options = {"temperature": self.temperature, "top_k": self.top_k}
        return [joint(self.model, prompt, self.n, **options) for prompt in self.prompts]  # type: ignore[arg-type]


WORLDS = {
    "5 tokens, length 4": World(toy_ar(3, 5), ((1, 3), (0, 2, 4, 0, 1)), 4),
    "3 tokens, length 6": World(toy_ar(8, 3), ((2, 0), (1, 1, 0, 2, 2)), 6),
    "5 tokens, top 3, temperature 0.9": World(toy_ar(3, 5), ((1, 3), (0, 2, 4, 0, 1)), 4, 0.9, 3),
}


@dataclass(frozen=True)
class Reading:
    """The draws of one prompt compared with the true distribution."""

    draws: int
    z: float  # G statistic, in standard deviations above its mean
    distance: float  # total variation
    noise: float  # what it is on average for exact draws
    spread: float  # and its standard deviation then


def fits(readings: list[Reading]) -> None:
    """Asserts that the G statistic and the total variation are within sampling noise."""
    for reading in readings:
        assert reading.z < 4, readings
        assert reading.distance < reading.noise + 4 * reading.spread, readings


@contextmanager
def drafting(vocab: int) -> Iterator[None]:
    """Makes `model` draft with another toy, and replaces all draft modules by random ones."""
    toy = toy_ar(21, vocab, 0.8)
    with patch.object(draft_models, "language_model", lambda name, *_: drafter_named(name, toy)), random_modules():
        yield


def small(name: str) -> str:
    """The spec part of a method, with sizes that fit the toys."""
    return SMALL.get(name, name)


def named(stage: str) -> list[str]:
    return [small(card.name) for card in registry.cards() if card.stage == stage]


def acceptances() -> list[str]:
    """Every acceptance that promises the target's distribution, with each of its modes."""
    cards = (card for card in registry.cards() if card.stage == "accept" and card.exact == "distribution")
    return [form for card in cards for form in VARIANTS.get(card.name, (card.name,))]


def specs() -> list[str]:
    """Every drafter with every compatible exact acceptance; draft models also with every shape and length controller.

    For chains of copied tokens `rrs` equals `speculative` and is left out.
    """
    shapes = [f"{small('model')}+{shape}" for shape in named("shape") if shape != "chain"]
    shapes += [f"{small(name)}+{small(shape)}" for name in ("auto", "dflash") for shape in ("beam", "dyspec")]
    found = [(drafter, accept) for drafter in [*named("draft"), *shapes] for accept in acceptances()]
    found = [(drafter, accept) for drafter, accept in found if "rrs" not in accept or shaped(drafter)]
    pairs = [f"{drafter}+{accept}" for drafter, accept in found]
    pairs += [f"{small('model')}+{length}+speculative" for length in named("length")]
    return [spec for spec in pairs if exact(spec)]


def leading() -> list[str]:
    """The specs of the long run: every drafter, shape and length once, and every acceptance with sibling drafts."""
    siblings = f"{small('model')}+{small('template')}+"
    chosen: dict[str, str] = {}
    for spec in specs():
        drafter = spec if spec.startswith(siblings) else spec.rpartition("+")[0]
        if drafter not in chosen or spec.endswith("+speculative"):
            chosen[drafter] = spec
    return list(chosen.values())


def shaped(drafter: str) -> bool:
    """Whether a shape grows the drafter's drafts, so that siblings are drawn."""
    part = registry.parse(drafter).parts[0]
    return Trait.TAKES_SHAPE in registry.build_method(part, "ar").provides


def exact(spec: str) -> bool:
    """Whether the spec resolves and promises the target's distribution."""
    made = resolved(spec, "ar", sampling=True)
    return made is not None and made.exact != "relaxed"


def measure(spec: str | SpeculativeSampler, world: World, draws: int, *, seed: int = 0) -> list[Reading]:
    """Draws `draws` rows in batches of alternating prompts; returns one `Reading` per prompt."""
    share = len(world.prompts)
    seen = [np.zeros((world.model.vocab_size,) * world.n, dtype=np.int64) for _ in world.prompts]
    with drafting(world.model.vocab_size):
        for start in range(0, draws, ROWS):
            count = min(ROWS, draws - start) // share
            options = {"temperature": world.temperature, "top_k": world.top_k}
            seeds = range(seed * 10**9 + start, seed * 10**9 + start + count * share)
            done = run(world.model, spec, world.prompts * count, world.n, seeds=seeds, **options)  # type: ignore[arg-type]
            for at, prompt in enumerate(world.prompts):
                seen[at] += counted(done, len(prompt), world.n, world.model.vocab_size, slice(at, None, share))
    return [_read(counts, distribution) for counts, distribution in zip(seen, world.distributions, strict=True)]


def _read(counts: np.ndarray, distribution: np.ndarray) -> Reading:
    draws = int(counts.sum())
    return Reading(
        draws,
        g_test(counts, distribution),
        variation(counts, distribution),
        floor(distribution, draws),
        spread(distribution, draws),
    )


def worst(readings: Sequence[Reading]) -> float:
    """The largest z."""
    return max(reading.z for reading in readings)
