"""Seeded Jacobi over vectors: the image that `mar` samples with the same noise, in at most as many calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.samplers.continuous.methods import seeded_jacobi
from pardec.samplers.registry import resolve
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, latents_of, mar, toy

ROWS: dict[str, Any] = {"seeds": (5, 6, 7), "labels": (3, 0, -1)}
SETTINGS = ("last=map", "last=x1", "last=noise,guidance=constant")


def causal(weight: float = 0.1, tokens: int = 14) -> ContinuousModel:
    """A model in which each token depends a little on the sum of all earlier ones, so that iterations converge fast."""
    return toy("causal", ToyHead(2, 5, bend=0.2), ToyBackbone(tokens, 2, weight=weight, curved=True, causal=True))


def modest() -> ContinuousModel:
    """MAR's backbone with a head whose values are of size 1."""
    return replace(mar(), head=ToyHead(4, 5, bend=0.2))


@pytest.mark.parametrize("cfg", [None, 1.5])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("tol", "window"), [(0, 5), (1e-3, 5), (1e-3, 1), (1e-3, 100)])
def test_the_picture_is_that_of_mar_on_a_causal_backbone(
    tol: float, window: int, settings: str, cfg: float | None
) -> None:
    model = causal()
    plain = generate(model, f"mar:{settings}", cfg=cfg, **ROWS)
    end = generate(model, f"seeded_jacobi:window={window},tol={tol},{settings}", cfg=cfg, **ROWS)
    np.testing.assert_allclose(latents_of(end), latents_of(plain), atol=tol + 2e-6)
    assert end.forward_rows == tuple(calls * (2 if cfg else 1) for calls in end.nfe)  # one row asks for all
    if window == 1:
        assert end.nfe == plain.nfe
    elif tol:
        assert max(end.nfe) < plain.nfe[0]


@pytest.mark.parametrize("cfg", [None, 1.5])
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize(("tol", "steps"), [(0, 8), (1e-3, 8), (1e-3, 16)])
def test_the_picture_is_that_of_mar_on_mar(tol: float, steps: int, settings: str, cfg: float | None) -> None:
    model = modest()
    plain = generate(model, f"mar:steps={steps},{settings}", cfg=cfg, **ROWS)
    end = generate(model, f"seeded_jacobi:window=4,steps={steps},tol={tol},{settings}", cfg=cfg, **ROWS)
    np.testing.assert_allclose(latents_of(end), latents_of(plain), atol=3 * tol + 2e-6)
    assert all(calls <= steps for calls in end.nfe)
    # A row for each group of the window.
    assert all(calls < rows for calls, rows in zip(end.nfe, end.forward_rows, strict=True))


def test_nothing_of_a_group_is_committed_before_what_it_depends_on_is_settled() -> None:
    """With tol=0 and strong dependence almost nothing settles early, and the image is still right."""
    model = causal(weight=0.9)
    end = generate(model, "seeded_jacobi:window=6,tol=0", **ROWS)
    np.testing.assert_allclose(latents_of(end), latents_of(generate(model, "mar", **ROWS)), atol=1e-5)
    loose = generate(model, "seeded_jacobi:window=6,tol=5", **ROWS)
    assert np.abs(latents_of(loose) - latents_of(generate(model, "mar", **ROWS))).max() > 0.05  # a tolerance is one
    assert max(loose.nfe) < min(end.nfe)


def test_tokens_that_depend_on_nothing_settle_at_once() -> None:
    """A round commits the first group of its window; the next finds the other three unchanged and commits four."""
    end = generate(causal(weight=0.0, tokens=12), "seeded_jacobi:window=4,tol=0")
    assert end.nfe == (6,)
    assert [len(step.positions) for step in end.trace.steps[0]] == [1, 4, 1, 4, 1, 1]
    assert end.trace.drafted == ((3, 3, 3, 3, 1, 0),)
    assert end.trace.accepted == ((0, 3, 0, 3, 0, 0),)
    loose = generate(causal(weight=0.9, tokens=12), "seeded_jacobi:window=4,tol=1000")
    assert loose.trace.accepted == end.trace.accepted, "what was never sampled before has not settled, whatever tol is"


def test_a_row_alone_is_the_row_in_any_batch() -> None:
    for model in (causal(weight=0.3), modest()):
        for spec in ("seeded_jacobi:window=4,steps=10", "seeded_jacobi:window=3,tol=0.05,steps=7"):
            together = generate(model, spec, cfg=1.5, **ROWS)
            for row in range(3):
                own = {name: values[row : row + 1] for name, values in ROWS.items()}
                alone = generate(model, spec, cfg=1.5, **own)
                np.testing.assert_allclose(latents_of(together)[row], latents_of(alone)[0], atol=1e-5)
                assert (together.nfe[row], together.trace.accepted[row]) == (alone.nfe[0], alone.trace.accepted[0])


def test_a_group_of_several_tokens_has_a_row_of_its_own_on_a_causal_backbone() -> None:
    """A token must not attend to the other tokens of its group, as in `mar`."""
    model = causal(weight=0.3)
    end = generate(model, "seeded_jacobi:window=3,steps=5,tol=0", **ROWS)
    np.testing.assert_allclose(latents_of(end), latents_of(generate(model, "mar:steps=5", **ROWS)), atol=2e-6)
    assert all(rows > calls for calls, rows in zip(end.nfe, end.forward_rows, strict=True))


def test_tokens_that_were_never_sampled_are_not_attended_to() -> None:
    states, usable = seeded_jacobi.group_states, list[int]()

    def watched(context: Any, groups: Any, latents: Any, seen: Any) -> Any:
        usable.append(int(seen.sum()))
        return states(context, groups, latents, seen)

    with patch.object(seeded_jacobi, "group_states", watched):
        generate(causal(tokens=6), "seeded_jacobi:window=3,tol=0")
    assert usable[:2] == [0, 3]


def test_a_token_is_settled_by_its_largest_change() -> None:
    """Of the tokens that a round commits all but the last were found again, each value within `tol`."""
    again, settled = seeded_jacobi.SeededJacobi.round, [0]

    def watched(self: Any, context: Any, state: Any) -> Any:
        images, before = context.images, state.latents.clone()
        known = images.known()
        done = again(self, context, state)
        for row, new in enumerate(images.known() & ~known):
            early = new.nonzero()[:-1, 0]
            assert ((images.latents[row, early] - before[row, early]).abs() <= 0.05).all()
            settled[0] += len(early)
        return done

    with patch.object(seeded_jacobi.SeededJacobi, "round", watched):
        for weight in (0.2, 0.3, 0.4):
            generate(causal(weight=weight), "seeded_jacobi:window=6,tol=0.05", **ROWS)
    assert settled[0] > 20


def test_its_fixed_point_takes_the_noise_of_each_token() -> None:
    """Injected fault: with other noise in each round nothing settles, and the image differs."""
    from pardec.samplers.continuous.state import ImageState

    model, rounds = causal(), iter(range(1000))
    noise = ImageState.noise

    def fresh(images: ImageState, wanted: Any, purpose: str, width: int) -> Any:
        return noise(images, wanted, purpose, width, again=next(rounds))

    with patch.object(ImageState, "noise", fresh):
        end = generate(model, "seeded_jacobi:window=5")
    assert not np.allclose(latents_of(end), latents_of(generate(model, "mar")), atol=0.05)
    assert end.nfe == (14,)


def test_specs() -> None:
    with pytest.raises(SpecError, match="map, x1, noise"):
        resolve("seeded_jacobi:last=x2", "continuous")
    assert resolve("seeded_jacobi", "continuous").exact == "relaxed"
    assert resolve("seeded_jacobi:tol=0", "continuous").exact == "distribution"


def test_a_name_of_two_families_is_read_by_its_parameters() -> None:
    from pardec.samplers.continuous.contracts import ContinuousSampler
    from pardec.samplers.speculative.contracts import SpeculativeSampler

    assert isinstance(resolve("seeded_jacobi:window=4", None), SpeculativeSampler)
    assert isinstance(resolve("seeded_jacobi:init=left", None), SpeculativeSampler)
    assert isinstance(resolve("seeded_jacobi:tol=0", None), ContinuousSampler)
    assert isinstance(resolve("sequential:last=x1", None), ContinuousSampler)
    with pytest.raises(SpecError, match="unknown parameter 'tolerance'"):
        resolve("seeded_jacobi:tolerance=0", None)
