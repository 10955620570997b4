"""Images of small guided models: the joint distribution of every mode and init of `sjd`, and injected faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.model import LanguageModel
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import (
    Acceptance,
    DecodeContext,
    Draft,
    RoundResult,
    SpeculativeSampler,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from pardec.samplers.speculative.draft.sjd import Sjd, WindowState
from tests.samplers.ar_toys import floor, g_test, speculation, spread, variation
from tests.samplers.joint_distributions import Reading, fits, worst
from tests.samplers.loop_drafters import Literal
from tests.samplers.picture_toys import codes, draw, features, joint, toy_pictures

MODES, INITS = ("coupled", "independent", "gumbel"), ("random", "left", "up", "repeat")
ROWS = 4000  # of one batch
GROUP = 8  # rows that go in lockstep under the published truncation


@dataclass(frozen=True)
class Imaging:
    """A model with enumerable images; two captions of unequal length alternate in every batch."""

    model: LanguageModel = field(repr=False)
    cfg: float
    top_k: int | None = None
    captions: tuple[torch.Tensor, ...] = field(default_factory=lambda: tuple(features((3, 1))), repr=False)

    @property
    def options(self) -> dict[str, Any]:
        return {"cfg": self.cfg, "top_k": self.top_k}

    @cached_property
    def distributions(self) -> list[np.ndarray]:
        return [joint(self.model, caption, **self.options) for caption in self.captions]


SMALL = Imaging(toy_pictures(1, 2, 4, 0.5), 3.0, 3)  # 2x2 cells of 4 codes, of which 3 are left
LARGE = Imaging(toy_pictures(2, 3, 2, 0.6), 3.0)  # 3x3 cells of 2 codes: places are drawn anew again and again


def measure(
    spec: str | Callable[[], SpeculativeSampler], world: Imaging, draws: int, *, seed: int = 0, rows: int = ROWS
) -> list[Reading]:
    """`draws` images in batches of alternating captions; one reading per caption."""
    share, vocab = len(world.captions), world.model.vocab_size
    seen = [np.zeros_like(distribution, dtype=np.int64) for distribution in world.distributions]
    for start in range(0, draws, rows):
        captions = world.captions * (min(rows, draws - start) // share)
        seeds = range(seed * 10**9 + start, seed * 10**9 + start + len(captions))
        made = spec if isinstance(spec, str) else spec()
        done = draw(world.model, made, captions, seeds=seeds, temperature=1.0, **world.options)
        drawn = codes(done, captions)
        index = (drawn * vocab ** np.arange(drawn.shape[1])[::-1]).sum(1)
        for at, counts in enumerate(seen):
            counts += np.bincount(index[at::share], minlength=counts.size).reshape(counts.shape)
    return [
        Reading(
            int(n.sum()),
            g_test(n, distribution),
            variation(n, distribution),
            floor(distribution, int(n.sum())),
            spread(distribution, int(n.sum())),
        )
        for n, distribution in zip(seen, world.distributions, strict=True)
    ]


@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.covers(1)
def test_pictures_have_the_joint_distribution_of_the_target(mode: str, init: str) -> None:
    fits(measure(f"sjd:window=4,refresh={mode},init={init}", SMALL, 1600, seed=1))


@pytest.mark.parametrize("spec", [*(f"sjd:refresh={mode}" for mode in MODES), "sjd:init=up", "sequential"])
def test_pictures_of_more_cells_too(spec: str) -> None:
    fits(measure(spec, LARGE, 2000, seed=2))


@pytest.mark.slow
@pytest.mark.parametrize("world", [SMALL, LARGE], ids=["2x2", "3x3"])
@pytest.mark.parametrize("init", INITS)
@pytest.mark.parametrize("mode", MODES)
def test_a_hundred_thousand_pictures(mode: str, init: str, world: Imaging) -> None:
    fits(measure(f"sjd:window=8,refresh={mode},init={init}", world, 100_000, seed=3))


def test_cells_of_the_toys_depend_on_each_other_and_on_the_caption() -> None:
    for world in (SMALL, LARGE):
        assert np.abs(world.distributions[0] - world.distributions[1]).sum() / 2 > 0.3
        for distribution in world.distributions:
            apart = np.ones_like(distribution)
            for axis in range(distribution.ndim):
                alone = distribution.sum(axis=tuple(a for a in range(distribution.ndim) if a != axis))
                apart = apart * alone.reshape([-1 if a == axis else 1 for a in range(distribution.ndim)])
            assert np.abs(apart - distribution).sum() / 2 > 0.1


# --- mutations ---


@dataclass(frozen=True)
class Lockstep(Acceptance):
    """Rows of a group commit as many tokens as the slowest one; `over` records what others have resolved beyond."""

    over: dict[str, Any]

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        made = Speculative().accept(draft, distributions, uniforms, None)
        least = made.count.view(-1, GROUP).amin(1).repeat_interleave(GROUP)
        after = draft.tokens.gather(1, (least + 1).clamp(max=draft.width - 1)[:, None])[:, 0]
        self.over.update(ahead=made.count - least, next=made.next)
        return replace(made, count=least, next=torch.where(made.count > least, after, made.next))


@dataclass(frozen=True)
class Truncated(Sjd):
    """Keeps resolved, uncommitted tokens as drafts, with the q they were sampled from or, `relabelled`, a new q."""

    over: dict[str, Any] = field(default_factory=dict)
    relabelled: bool = False

    def observe(self, outcome: RoundResult, context: DecodeContext, state: WindowState) -> None:
        super().observe(outcome, context, state)
        count, draft, gained = self.over["ahead"], outcome.draft, outcome.gained
        place = torch.arange(state.distribution.shape[1])
        kept = torch.where(place == count[:, None] - 1, self.over["next"][:, None], state.old)
        whole = torch.from_numpy(gained)[:, None] + 1 + place >= torch.from_numpy(draft.sizes)[:, None]
        had = state.q.clone(), state.point.clone()
        self.over["rows"] = context.text.rows
        self.over["held"] = (place < count[:, None], kept, had[0], had[1], whole)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: WindowState) -> Draft:
        draft = super().propose(context, room, uniforms, state)
        if draft.q is None or draft.is_point_mass is None or "held" not in self.over:
            return draft
        live = torch.from_numpy(np.searchsorted(self.over["rows"], context.text.rows))
        here, kept, was, mass, whole = (values[live][:, : draft.width - 1] for values in self.over["held"])
        part = slice(1, 1 + here.shape[1])
        tokens, q, point = draft.tokens.clone(), draft.q.clone(), draft.is_point_mass.clone()
        tokens[:, part] = torch.where(here, kept, tokens[:, part])
        if not self.relabelled:
            old = here & ~whole
            q[:, part] = torch.where(old[..., None], was, q[:, part])
            point[:, part] = torch.where(old, mass, point[:, part])
        return replace(draft, tokens=tokens, q=q, is_point_mass=point)


def lockstep(relabelled: bool) -> Callable[[], SpeculativeSampler]:
    def made() -> SpeculativeSampler:
        over: dict[str, Any] = {}
        return speculation(Truncated(8, "independent", "random", over=over, relabelled=relabelled), Lockstep(over))

    return made


def test_mutation_the_published_truncation_to_the_slowest_row_shows() -> None:
    assert worst(measure(lockstep(relabelled=False), LARGE, 4000)) > 6


def test_truncation_with_the_right_labels_is_exact() -> None:
    fits(measure(lockstep(relabelled=True), LARGE, 4000))


def test_mutation_coupling_one_place_off_shows() -> None:
    assert worst(measure(lambda: speculation(Literal(8, init="left")), LARGE, 8000)) > 6
