"""`auto` for vectors: the choice by a scripted clock, images of `mar` where nothing drafts, and the distribution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.samplers import pace
from pardec.samplers.continuous.methods import auto
from pardec.samplers.continuous.methods.cspd import CSpD
from pardec.samplers.registry import resolve
from tests.samplers.continuous.test_cspd_exact import LEAST, TOKENS, against_density, by_rank
from tests.samplers.spec_checks import refused_specs
from tests.samplers.vector_toys import generate, latents_of, pair

test_what_would_not_be_exact_is_refused = refused_specs(
    [
        ("auto:draft=d,last=map", "last=map with k=8 is not exact"),
        ("auto:mode=reference", "unknown parameter 'mode'"),
    ],
    family="continuous",
)


@contextmanager
def costs(drafted: float) -> Iterator[list[bool]]:
    """A clock that only rounds advance: by 1 without drafts, by `drafted` with them. Gives which ones drafted."""
    now, ways = [0.0], list[bool]()
    plain, exact = auto.Auto.sample_group, CSpD.round

    def advance(method: Any, *arguments: Any) -> Any:
        drafts = isinstance(method, CSpD)
        ways.append(drafts)
        now[0] += drafted if drafts else 1.0
        return (exact if drafts else plain)(method, *arguments)

    with (
        patch.object(auto, "clock_on", lambda _: lambda: now[0]),
        patch.object(pace, "_PACES", WeakKeyDictionary()),
        patch.object(auto.Auto, "sample_group", advance),
        patch.object(CSpD, "round", advance),
    ):
        yield ways


def images(target: ContinuousModel, draft: ContinuousModel, count: int) -> list[Any]:
    """The ends of so many requests of one image."""
    return [generate(target, "auto:draft=d,k=4", draft=draft, seed=seed) for seed in range(count)]


def test_dear_drafts_are_left_out_and_cheap_ones_used_also_in_later_requests() -> None:
    target, draft = pair(40, 1, 3, far=0.0)  # every draft is accepted
    for dear, share in ((2.0, 0.9), (30.0, 0.0)):
        with costs(dear) as ways:
            images(target, draft, 1)
            assert set(ways) == {False, True}  # it measures both
            ways.clear()
            images(target, draft, 8)
            assert abs(np.mean(ways) - share) < 0.1, (dear, np.mean(ways))


def test_a_trial_of_dear_drafts_ends_after_a_few_rounds() -> None:
    target, draft = pair(40, 1, 3, far=0.0)
    with costs(30.0) as ways:
        images(target, draft, 1)
    assert sum(ways) <= 3


@pytest.mark.parametrize(("spec", "temperature"), [("auto", 1.0), ("auto:draft=d,last=map,k=1", 0.0)])
def test_images_are_those_of_mar_where_nothing_can_be_drafted(spec: str, temperature: float) -> None:
    target, draft = pair(TOKENS, 2, 6)
    more = {"labels": (3, 0, -1), "seeds": (5, 6, 7), "temperature": temperature, "cfg": 1.5}
    plain = generate(target, "mar", **more)
    made = generate(target, spec, draft=draft, **more)
    np.testing.assert_array_equal(latents_of(made), latents_of(plain))
    assert sum(made.draft_forwards) == 0


@pytest.mark.parametrize("first", [False, True])
def test_the_distribution_is_the_known_density_whichever_way_rounds_go(first: bool) -> None:
    target, draft = pair(TOKENS, 2, 6)
    ways = cycle((first, not first))
    with patch.object(pace.RoundTimer, "begin", lambda *_: next(ways)):
        end = generate(target, "auto:draft=d,steps=4,k=2", draft=draft, count=6_000, seed=12)
    drafted, accepted = (sum(map(sum, part)) for part in (end.trace.drafted, end.trace.accepted))
    assert 0.5 < accepted / drafted < 0.97
    assert drafted < 6_000 * TOKENS  # some groups were sampled without a draft
    assert against_density(target, by_rank(target, 12, latents_of(end)), "x1") > LEAST


def test_a_spec_is_written_as_it_is_read() -> None:
    for text, last in (("auto", "map"), ("auto:draft=d", "x1"), ("auto:draft=d,k=1,last=map", "map")):
        resolved = resolve(text, "continuous")
        assert f"last={last}" in str(resolved.spec)
        assert resolve(str(resolved.spec), "continuous").spec == resolved.spec
        assert resolved.exact == "distribution"
