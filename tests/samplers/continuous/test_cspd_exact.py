"""`cspd` on denoising paths keeps the distribution of `mar`: known densities, samples of `mar`, and injected faults.

Samples pass through the loop: several groups of several tokens, each depending on all before it, so that contexts, the
groups that are dropped and the noise of those drawn again matter. Draft and target differ in means and deviations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.continuous.contracts import ContinuousModel, Head, States
from pardec.models.errors import ModelError
from pardec.samplers.continuous.contracts import ContinuousContext, ImageRequest
from pardec.samplers.continuous.methods import cspd as _cspd_exact
from pardec.samplers.continuous.methods.cspd import CSpD
from pardec.samplers.continuous.methods.drafting_ahead import Group, group_states
from pardec.samplers.continuous.state import ImageState
from pardec.samplers.ops.denoising_paths import DenoisingPath, Last, log_density, rescore, trace, width
from pardec.samplers.ops.unmasking import unmasking
from pardec.samplers.rng import Keyed, row_seeds
from tests.samplers.continuous import test_cspd_published as published
from tests.samplers.vector_toys import ToyHead, energy, generate, kolmogorov, latents_of, pair

TOKENS, STEPS, K = 6, 4, 3
MANY, SOME = 50_000, 6_000
LEAST, FAR = 1e-4, 4.0  # of p, and of standard errors: what chance alone does not do in so many tests
SPEC = f"cspd:draft=d,mode=exact,steps={STEPS},prefill=0,k={K}"


def by_rank(model: ContinuousModel, seed: int, made: np.ndarray) -> np.ndarray:
    """Images [B, S, d] with their tokens in the order of sampling."""
    count = len(made)
    rank = ImageState(model, ImageRequest((1,) * count, Keyed(row_seeds(seed, count)))).rank.numpy()
    return np.take_along_axis(made, rank.argsort(1)[..., None], 1)


def known_law(model: ContinuousModel, steps: int, last: Last) -> tuple[np.ndarray, np.ndarray]:
    """Mean [S] and covariance [S, S] of the linear toy's tokens by rank; the values of a token are independent.

    Each token is a + b * (sum of the tokens of earlier groups) + noise, worked out transition by transition.
    """
    head, backbone = model.head, model.backbone
    assert isinstance(head, ToyHead)
    gain, variance = 0.0, 1.0  # of z, and of what does not come from it
    for index in reversed(range(0 if last == "noise" else 1, head.steps)):
        gain = head.keep * gain + head.pull
        variance = head.keep**2 * variance + math.exp(2 * (head.spread + head.growth * index))
    unit = 1.0 if last == "noise" else float(head.signal[0])
    gain, variance = gain / unit, variance / unit**2
    bounds = unmasking(TOKENS, steps).bounds
    depends = np.zeros((TOKENS, TOKENS))
    for start, stop in pairwise(bounds):
        depends[start:stop, :start] = gain * backbone.weight  # type: ignore[attr-defined]
    spread = np.linalg.inv(np.eye(TOKENS) - depends)
    shift = np.full(TOKENS, gain * backbone.shift)  # type: ignore[attr-defined]
    return spread @ shift, variance * spread @ spread.T


def against_density(model: ContinuousModel, made: np.ndarray, last: Last) -> float:
    """The smallest p of the marginals and of projections of the joint, each against its known normal distribution."""
    mean, covariance = known_law(model, STEPS, last)
    generator = np.random.RandomState(7)
    projections = [*np.eye(TOKENS), np.ones(TOKENS), *generator.standard_normal((6, TOKENS))]
    found = []
    for along_ in projections:
        deviation = math.sqrt(along_ @ covariance @ along_)
        for number in range(made.shape[2]):
            found.append(kolmogorov(made[..., number] @ along_, mean=float(along_ @ mean), deviation=deviation))
    return min(found)


def against_mar(made: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """The smallest p of the marginals' Kolmogorov-Smirnov tests, and the joint's energy distance in standard errors."""
    tokens, size = made.shape[1:]
    least = min(kolmogorov(made[:, at, of], other[:, at, of]) for at in range(tokens) for of in range(size))
    return least, energy(made.reshape(len(made), -1), other.reshape(len(other), -1))[1]


def rate(end: Any) -> float:
    return sum(map(sum, end.trace.accepted)) / sum(map(sum, end.trace.drafted))


def check_density(size: int, steps: int, last: Last, count: int, **apart: float) -> None:
    target, draft = pair(TOKENS, size, steps, **apart)
    plain = by_rank(target, 11, latents_of(generate(target, f"mar:steps={STEPS},last={last}", count=count, seed=11)))
    assert against_density(target, plain, last) > LEAST  # the computed density is the toy's
    end = generate(target, f"{SPEC},last={last}", draft=draft, count=count, seed=12)
    assert 0.3 < rate(end) < 0.97
    assert against_density(target, by_rank(target, 12, latents_of(end)), last) > LEAST
    drafted = by_rank(draft, 13, latents_of(generate(draft, f"mar:steps={STEPS},last={last}", count=count, seed=13)))
    assert against_density(target, drafted, last) < 1e-12  # and the test tells the draft from the target


@pytest.mark.parametrize(("size", "steps", "last"), [(1, 1, "noise"), (1, 2, "x1"), (2, 6, "x1")])
def test_the_distribution_is_the_known_density(size: int, steps: int, last: Last) -> None:
    check_density(size, steps, last, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize(
    ("steps", "last"), [(1, "noise"), (2, "x1"), (2, "noise"), (6, "x1"), (6, "noise"), (20, "x1"), (20, "noise")]
)
def test_the_distribution_is_the_known_density_at_50_000_samples(size: int, steps: int, last: Last) -> None:
    check_density(size, steps, last, MANY)


def check_mar(steps: int, spec: str, last: Last, count: int, cfg: float | None = None) -> None:
    target, draft = pair(TOKENS, 2, steps, curved=True)
    plain = latents_of(generate(target, f"mar:steps={STEPS},last={last}", count=count, seed=21, cfg=cfg))
    end = generate(target, f"{spec},last={last}", draft=draft, count=count, seed=22, cfg=cfg)
    assert 0.3 < rate(end) < 0.97
    least, distance = against_mar(latents_of(end), plain)
    assert least > LEAST
    assert distance < FAR


def test_the_distribution_is_that_of_mar_where_no_density_is_known() -> None:
    check_mar(6, SPEC, "x1", SOME, cfg=1.5)


@pytest.mark.slow
@pytest.mark.parametrize("cfg", [None, 1.5])
@pytest.mark.parametrize(
    ("steps", "k", "last"), [(2, 3, "x1"), (6, 2, "x1"), (6, 4, "noise"), (20, 3, "x1"), (6, 1, "map")]
)
def test_the_distribution_is_that_of_mar_at_50_000_samples(steps: int, k: int, last: Last, cfg: float | None) -> None:
    check_mar(steps, f"cspd:draft=d,mode=exact,steps={STEPS},prefill=0,k={k}", last, MANY, cfg)


# --- faults, each of which the same tests notice ---


def narrow(path: DenoisingPath, last: Last) -> Tensor:
    """Injected fault: `log_density` without its normalizers."""
    count = path.transitions(last)
    spread = path.log_deviations[:count].double().sum((0, 2))
    return log_density(path, last) + spread


def all_kept(accepted: Tensor, number: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Injected fault: `settled` that keeps later drafts after a rejection."""
    return accepted, (number < count) & ~accepted, torch.zeros_like(accepted)


def first_try(*given: Any) -> Tensor:
    """Injected fault: `_residual` that takes the target's own first path."""
    context, _, again, target, _, last = given
    noise = context.images.noise(again, "residual", width(context.head))
    path = trace(context.head, target, noise)
    return _cspd_exact.token(path, context.head, last)


def blind(context: ContinuousContext, groups: list[Group], latents: Tensor) -> Any:
    """Injected fault: `contexts` of a target that ignores the drafts before a group."""
    return group_states(context, groups, latents, context.images.known())


FAULTS: dict[str, Callable[[], Any]] = {
    "none": lambda: patch.object(_cspd_exact, "log_density", log_density),
    "no normalisers": lambda: patch.object(_cspd_exact, "log_density", narrow),
    "groups after a rejection kept": lambda: patch.object(_cspd_exact, "split_drafts", all_kept),
    "the target's path for the residual": lambda: patch.object(_cspd_exact, "_residual", first_try),
    "drafts not seen by the test of the next": lambda: patch.object(_cspd_exact, "group_states", blind),
}


@contextmanager
def _unchecked_map() -> Iterator[None]:
    """Bypasses the check that refuses last=map with k above 1, where later drafts depend on the draft's mean."""

    def settle(self: CSpD) -> None:
        object.__setattr__(self, "last", "map")

    with patch.object(CSpD, "__post_init__", settle):
        yield


def noticed(last: Last, fault: Callable[[], Any], steps: int) -> bool:
    target, draft = pair(TOKENS, 1, steps, far=2.5, wider=-0.2)
    with fault():
        end = generate(target, SPEC, draft=draft, count=SOME, seed=32)
    made = by_rank(target, 32, latents_of(end))
    if last == "map":
        plain = by_rank(target, 31, latents_of(generate(target, f"mar:steps={STEPS}", count=SOME, seed=31)))
        least, distance = against_mar(made, plain)
        return least < LEAST or distance > FAR
    return against_density(target, made, last) < LEAST


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_noticed(name: str) -> None:
    assert noticed("x1", FAULTS[name], 6) == (name != "none")


def test_the_targets_last_mean_with_drafts_kept_after_it_is_noticed() -> None:
    assert noticed("map", _unchecked_map, 2)


# --- how often drafts stand ---


@pytest.mark.parametrize("steps", [3, 10, 20])
def test_drafts_stand_as_often_as_the_divergence_of_paths_says(steps: int) -> None:
    """erfc(sqrt(KL) / 2), KL the mean of -L over the draft's paths: L is near normal over many transitions."""
    head = ToyHead(4, steps)
    other: Head = replace(head, pull=0.42, spread=-0.57)
    states = States(torch.linspace(-1, 1, 4).expand(4000, 4))
    uniforms = Keyed((3,)).uniform(np.array([0]), np.array([0]), torch.arange(4000)[None], "any", width(head))[0]
    path = trace(other, states, torch.special.ndtri(uniforms).float())
    ratio = log_density(rescore(head, states, path), "x1") - log_density(path, "x1")
    stands = float(ratio.exp().clamp(max=1).mean())
    assert stands == pytest.approx(math.erfc(math.sqrt(-float(ratio.mean())) / 2), abs=0.03)
    assert 0.3 < stands < 0.95


def test_one_transition_is_speculative_sampling_of_numbers() -> None:
    """T = 1: the accepted share is the overlap of two normal distributions, computed by integration."""
    target, draft = pair(1, 1, 1)
    end = generate(target, "cspd:draft=d,mode=exact,k=1,steps=1,prefill=0,last=noise", draft=draft, count=MANY, seed=5)
    grid = np.linspace(-12, 12, 200_001)
    distributions = []
    for model in (target, draft):
        head, z = model.head, model.backbone.shift  # type: ignore[attr-defined]
        assert isinstance(head, ToyHead)
        # The first point is the same in both, so that the overlap is averaged over it.
        distributions.append((head.keep, head.pull * z, math.exp(head.spread)))
    first = np.linspace(-5, 5, 201)
    weight = np.exp(-(first**2) / 2)
    overlap = []
    for x in first:
        p, q = (np.exp(-0.5 * ((grid - k * x - b) / s) ** 2) / s for k, b, s in distributions)
        overlap.append(np.minimum(p, q).sum() * (grid[1] - grid[0]) / math.sqrt(2 * math.pi))
    expected = float((weight * overlap).sum() / weight.sum())
    assert rate(end) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / MANY))


def dropped_drafts_have_other_noise_when_they_are_drafted_again() -> None:
    """A group is dropped because of how the one before it was rejected, which may have gone by the same noise."""
    (target, draft), noise, seen = pair(TOKENS, 1, 2, far=2.5, wider=-0.2), ImageState.noise, list[tuple[float, ...]]()

    def watched(self: ImageState, wanted: Tensor, purpose: str, *more: Any, **named: Any) -> Tensor:
        made = noise(self, wanted, purpose, *more, **named)
        seen.extend(map(tuple, made.tolist() if purpose == "token" else ()))
        return made

    with patch.object(ImageState, "noise", watched):
        generate(target, SPEC, draft=draft, count=10, seed=12)
    assert len(seen) == len(set(seen)) > 10 * TOKENS


def as_published_the_target_takes_the_step_at_the_border_too() -> None:
    """.15 of 20 steps are 3, and of 30 steps 4.5."""
    for mode, steps, alone in (("reference", 20, 4), ("exact", 20, 3), ("reference", 30, 5), ("exact", 30, 5)):
        context: Any = SimpleNamespace(images=SimpleNamespace(tokens=400), model=pair(1, 1, 1)[0])
        assert CSpD(draft="d", mode=mode, steps=steps).prefill_steps(context) == alone  # type: ignore[arg-type]


@pytest.mark.seeds("arXiv:2411.11925")
def test_accepted_and_redrawn_vectors_pass_a_kolmogorov_test_and_a_smaller_mar_drafts_for_a_larger() -> None:
    published.test_the_ratio_by_hand()
    accepted = torch.tensor([[True, False, True, True], [True, True, True, False]])
    number = torch.tensor([[0, 1, 1, 2], [0, 1, 2, 2]])  # row 0 rejects in group 1, and row 1 in the last
    parts = [each.int().tolist() for each in _cspd_exact.split_drafts(accepted, number, 3)]
    assert parts == [[[1, 0, 1, 0], [1, 1, 1, 0]], [[0, 1, 0, 0], [0, 0, 0, 1]], [[0, 0, 0, 1], [0] * 4]]
    dropped_drafts_have_other_noise_when_they_are_drafted_again()
    as_published_the_target_takes_the_step_at_the_border_too()
    published.test_tries_for_the_rejected(0.2)
    published.test_rounds_go_as_the_authors_runner_goes(2, 0.3, 7, False, 2.0)
    test_drafts_stand_as_often_as_the_divergence_of_paths_says(10)
    for size, steps, last in ((1, 1, "noise"), (2, 2, "x1")):
        check_density(size, steps, last, 3000, far=2.5, wider=-0.2)  # type: ignore[arg-type]
    model = pardec.load("tiny-mar", device="cpu")
    end = model.generate(label=[1], sampler="cspd:draft=tiny-mar-draft,steps=4,k=4", seed=0)
    assert sum(map(sum, end.trace.accepted)) > 0  # drafted by one layer for four
    assert end.images is not None


def test_the_residual_of_a_wrong_density_ends_in_an_error() -> None:
    """If the draft's density exceeds the target's at every sample, no sample of the residual is ever accepted."""
    target, draft = pair(TOKENS, 1, 2)
    wrong = patch.object(_cspd_exact, "share", lambda ratio: torch.zeros_like(ratio).double())
    with wrong, patch.object(_cspd_exact, "_TRIES", 500), pytest.raises(ModelError, match="samples of .* was accepted"):
        generate(target, SPEC, draft=draft, count=40, seed=12)
