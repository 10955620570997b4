"""`head_to`: transitions that become fewer from step to step, compared with a plain loop."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.ops.unmasking import unmasking
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from tests.samplers.readable_classes import PLAIN, readable
from tests.samplers.vector_toys import generate

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def transitions_by_hand() -> None:
    """MAR's 64 steps from 50 to 5 transitions: 45 are dropped over 63 steps, rounded down."""
    each = unmasking(256, 64).transitions(50, 5)
    assert [int(each[k]) for k in (0, 1, 2, 31, 62, 63)] == [50, 49, 48, 27, 5, 5]
    assert unmasking(16, 1).transitions(50, 5).tolist() == [50]
    assert unmasking(16, 4).transitions(9, 9).tolist() == [9] * 4
    resolve("mar:head=10,head_to=2", "continuous")  # the fewest that a head has


def naive(model: ContinuousModel, when: np.ndarray, label: int, seed: int, chains: list[int], cfg: float) -> np.ndarray:
    """One image in the recorded order, token by token and transition by transition; guidance grows linearly."""
    count, size = model.backbone.tokens, model.head.size
    latents, scales = torch.zeros(1, count, size), unmasking(count, len(chains)).scale(cfg, "linear")
    known = torch.zeros(1, count, dtype=torch.bool)
    for step, transitions in enumerate(chains):
        head, new = model.head.respaced(transitions), torch.from_numpy(when == step)[None]
        states = model.backbone.states(latents, known, torch.tensor([label]), new, torch.tensor([scales[step]]).float())
        for at, token in enumerate(new[0].nonzero()[:, 0].tolist()):
            width = (max(chains) + 1) * size
            u = Keyed((seed,)).uniform(np.array([0]), np.array([0]), torch.tensor([[token]]), "token", width)
            e = torch.special.ndtri(u[0, 0]).float().view(-1, size)
            x = e[:1]
            for number, index in enumerate(reversed(range(transitions)), 1):
                moved = head.distribution(x, index, states[torch.tensor([at])])
                x = moved.mean + (moved.deviation * e[number] if index else 0)
            latents[0, token] = x[0]
        known = known | new
    return latents[0].numpy()


def each_step_has_its_own_chain(model: ContinuousModel) -> None:
    got = generate(model, "mar:steps=4,head=20,head_to=5", labels=(3, 1), seeds=(5, 6), cfg=2.0)
    for row, (label, seed) in enumerate(((3, 5), (1, 6))):
        expected = naive(model, got.trace.commit_step[row], label, seed, [20, 15, 10, 5], 2.0)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got.latents[row] / scale, expected / scale, atol=2e-5)  # type: ignore[index]
    same = generate(model, "mar:steps=4,head=20,head_to=20", labels=(3, 1), seeds=(5, 6), cfg=2.0)
    plain = generate(model, "mar:steps=4,head=20", labels=(3, 1), seeds=(5, 6), cfg=2.0)
    assert (same.latents == plain.latents).all()


@pytest.mark.parametrize("last", ["x1", pytest.param("noise", marks=pytest.mark.slow)])
def test_seeded_jacobi_and_sequential_anneal_alike(model: ContinuousModel, last: str) -> None:
    parts = f"last={last},head=12,head_to=4"
    for steps in (4, 16):
        mar = generate(model, f"mar:steps={steps},{parts}", labels=(3, 1), seeds=(5, 6), cfg=2.0)
        ahead = generate(
            model, f"seeded_jacobi:tol=0,window=3,steps={steps},{parts}", labels=(3, 1), seeds=(5, 6), cfg=2.0
        )
        np.testing.assert_allclose(mar.latents, ahead.latents, atol=1e-4 * np.abs(mar.latents).max())  # type: ignore[arg-type]
    one = generate(model, f"sequential:{parts}", labels=(3, 1), seeds=(5, 6), cfg=2.0)
    assert (one.latents == mar.latents).all()  # as many steps as tokens


def test_a_row_alone_is_the_row_in_a_batch(model: ContinuousModel) -> None:
    for spec in ("mar:steps=5,head=12,head_to=3", "seeded_jacobi:steps=5,window=3,head=12,head_to=3"):
        together = generate(model, spec, labels=(3, 1, 4), seeds=(5, 6, 7), cfg=2.5)
        for row, (label, seed) in enumerate(((3, 5), (1, 6), (4, 7))):
            alone = generate(model, spec, labels=(label,), seeds=(seed,), cfg=2.5)
            scale = np.abs(alone.latents).max()
            np.testing.assert_allclose(together.latents[row] / scale, alone.latents[0] / scale, atol=1e-5)  # type: ignore[index]


def test_what_cannot_be_is_refused(model: ContinuousModel) -> None:
    for spec in ("mar:head_to=1", "mar:head=10,head_to=11", "seeded_jacobi:head=10,head_to=11"):
        with pytest.raises(SpecError, match="head_to must lie between 2"):
            resolve(spec, "continuous")
    with pytest.raises(SpecError, match="head_to=500 is more than the 10 transitions"):
        generate(model, "mar:head_to=500")


def test_transitions_fall_and_each_step_has_its_own(model: ContinuousModel) -> None:
    transitions_by_hand()
    each_step_has_its_own_chain(model)


@pytest.mark.slow  # seconds for 16 images; the tests above have the rule
@pytest.mark.seeds("arXiv:2505.20297")
def test_a_head_that_takes_fewer_transitions_as_the_image_fills_beats_one_that_takes_few_throughout(
    model: ContinuousModel,
) -> None:
    """Small images need more transitions at the end than the published 5."""
    test_transitions_fall_and_each_step_has_its_own(model)
    test_seeded_jacobi_and_sequential_anneal_alike(model, "map")  # tokens of several steps in one call
    assert readable(f"{PLAIN},head_to=25", 4, of=4) >= readable(PLAIN, 4) - 1
    assert readable(f"{PLAIN},head_to=10", 4, of=4) > readable("mar:steps=12,head=10", 4, of=4)
