"""`cspd` as published, compared with a plain version of it; its parts by hand.

The plain version goes token by token in numpy over the toy's own formulas; only its uniforms are the loop's.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel
from pardec.samplers.continuous.contracts import ImageRequest
from pardec.samplers.continuous.methods.cspd import (
    LastTransition,
    first_accepted,
    last_accepted,
    last_transition,
    log_ratio,
    share,
)
from pardec.samplers.continuous.state import ImageState
from pardec.samplers.ops.denoising_paths import DenoisingPath
from pardec.samplers.ops.unmasking import Unmasking, unmasking
from pardec.samplers.rng import Keyed
from tests.samplers.vector_toys import generate, latents_of, pair

TOKENS, SIZE, HEAD = 12, 2, 5


def distribution(model: ContinuousModel, x: np.ndarray, index: int, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the toy head."""
    h: Any = model.head
    mean = h.keep * x + h.pull * z + h.bend * np.tanh(2 * x)
    return mean, np.exp(h.spread + h.growth * index + h.lean * np.tanh(z))


def state(
    model: ContinuousModel, held: dict[int, np.ndarray], place: int, label: int, scale: float | None
) -> np.ndarray:
    b: Any = model.backbone
    z = b.shift + b.weight * sum(held.values(), np.zeros(SIZE)) + b.placed * (place / TOKENS - 0.5)
    z = 2 * np.tanh(z)
    plain = z - 0.3 * (1 + max(label, 0))
    return z if scale is None else plain + scale * (z - plain)


def plainly(
    models: tuple[ContinuousModel, ContinuousModel], order: list[int], schedule: Unmasking, *, seed: int, label: int,
    steps: int, k: int, cfg: float | None, tau: float, derived: bool, prefill: float, temperature: float,
) -> np.ndarray:  # fmt: skip
    """One row like the authors' loop; the order of its tokens and the number per step are given."""
    target, draft = models
    source = Keyed((seed,))

    def uniforms(place: int, purpose: str, width: int = 0) -> np.ndarray:
        return source.uniform(np.array([0]), np.array([0]), torch.tensor([[place]]), purpose, width)[0, 0].numpy()

    def normals(place: int, purpose: str, width: int) -> np.ndarray:
        return torch.special.ndtri(torch.from_numpy(uniforms(place, purpose, width))).numpy()

    def walk(model: ContinuousModel, z: np.ndarray, e: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The last mean, its deviation, and the sum of the log deviations of the earlier transitions."""
        x, others = e[0], np.zeros(SIZE)
        for number, index in enumerate(range(HEAD - 1, 0, -1), 1):
            mean, deviation = distribution(model, x, index, z)
            others = others + np.log(deviation)
            x = mean + temperature * deviation * e[number]
        mean, deviation = distribution(model, x, 0, z)
        return mean, temperature * deviation, others

    known: dict[int, np.ndarray] = {}  # of the target: what it knew at its last test
    drafted: dict[int, Any] = {}
    for step in range(steps):
        scale = None if cfg is None else 1 + (cfg - 1) * (TOKENS - schedule.left[step]) / TOKENS
        places = order[schedule.bounds[step] : schedule.bounds[step + 1]]
        alone = step <= steps * prefill
        seen = known | {place: mean for place, (mean, *_) in drafted.items()}
        made = {}
        for place in places:
            e = normals(place, "token", (HEAD + 1) * SIZE).reshape(-1, SIZE)
            model = target if alone else draft
            made[place] = walk(model, state(model, seen, place, label, scale), e)
        if alone:
            known |= {place: mean for place, (mean, *_) in made.items()}
            continue
        drafted |= made
        if step % k and step != steps - 1:
            continue
        final = {}
        for place, (x, wide, sums) in drafted.items():
            e = normals(place, "token", (HEAD + 1) * SIZE).reshape(-1, SIZE)
            mean, narrow, other = walk(target, state(target, known, place, label, scale), e)
            constant = np.exp((sums - other if derived else other - sums).sum()) * (wide / narrow).prod()
            near = math.exp(-0.5 * (((x - mean) / (narrow * tau)) ** 2).sum())
            if near * constant > uniforms(place, "accept"):
                final[place] = x
                continue
            final[place] = mean  # the target's own token, unless a proposal stands
            tries = normals(place, "residual", 100 * SIZE).reshape(100, SIZE)
            for normal, u in zip(tries, uniforms(place, "residual accept", 100), strict=True):
                y = mean + narrow * normal
                p = math.exp(-0.5 * (((y - mean) / narrow) ** 2).sum()) * constant
                q = math.exp(-0.5 * (((y - x) / wide) ** 2).sum())
                if max(0.0, 1 - q / p) > u:
                    final[place] = y
                    break
        known |= final
        drafted = {}
    return np.stack([known[place] for place in range(TOKENS)])


@pytest.mark.parametrize("cfg", [None, 2.0])
@pytest.mark.parametrize("derived", [False, True])
@pytest.mark.parametrize(("k", "tau", "steps"), [(1, 42.0, 6), (3, 42.0, 8), (4, 1.0, 12), (2, 0.3, 7)])
def test_rounds_go_as_the_authors_runner_goes(k: int, tau: float, steps: int, derived: bool, cfg: float | None) -> None:
    models = pair(TOKENS, SIZE, HEAD, curved=True)
    seeds, labels = (3, 4, 5), (0, 3, 1)
    flag = str(derived).lower()
    spec = f"cspd:draft=d,k={k},tau={tau},steps={steps},derived={flag},prefill=0.2"
    end = generate(models[0], spec, draft=models[1], seeds=seeds, labels=labels, cfg=cfg, temperature=0.9)
    given: dict[str, Any] = {"steps": steps, "k": k, "cfg": cfg, "tau": tau, "derived": derived, "prefill": 0.2}
    for row, (seed, label) in enumerate(zip(seeds, labels, strict=True)):
        order = ImageState(models[0], ImageRequest((label,), Keyed((seed,)))).rank[0].argsort().tolist()
        schedule = unmasking(TOKENS, steps)
        expected = plainly(models, order, schedule, seed=seed, label=label, temperature=0.9, **given)
        np.testing.assert_allclose(latents_of(end)[row], expected, atol=2e-5)


def test_both_ways_of_a_test_are_taken_there() -> None:
    target, draft = pair(TOKENS, SIZE, HEAD, curved=True)
    end = generate(target, "cspd:draft=d,k=3,steps=8,prefill=0.2", draft=draft, count=20)
    share_ = sum(map(sum, end.trace.accepted)) / sum(map(sum, end.trace.drafted))
    assert 0.2 < share_ < 0.99


def test_the_ratio_by_hand() -> None:
    """d = 1: p = N(1, 2^2), q = N(0, 1), earlier deviations 3 and 5 in all: at x = 1 and tau = 1, the ratio is 2."""
    target = LastTransition(torch.tensor([[1.0]]), torch.tensor([[2.0]]).log(), torch.tensor([[3.0]]).log())
    draft = LastTransition(torch.tensor([[0.0]]), torch.tensor([[1.0]]).log(), torch.tensor([[5.0]]).log())
    x = torch.tensor([[1.0]])
    for tau, derived, expected in (
        (1.0, False, (3 / 5) * (1 / 2) * math.exp(0.5)),
        (2.0, False, (3 / 5) * (1 / 2) * math.exp(0.125)),
        (1.0, True, (5 / 3) * (1 / 2) * math.exp(0.5)),
    ):
        assert float(log_ratio(x, target, draft, tau=tau, derived=derived).exp()) == pytest.approx(expected)
    assert float(share(torch.tensor(math.log(4.0)))) == pytest.approx(0.75)
    assert float(share(torch.tensor(-1.0))) == 0


def test_an_ending_is_a_paths_last_transition() -> None:
    shape = (3, 2, 1)
    means, deviations = torch.arange(6.0).view(shape), torch.arange(6.0).view(shape) / 10
    found = last_transition(DenoisingPath(torch.zeros(4, 2, 1), means, deviations))
    assert found.mean.flatten().tolist() == [4, 5]
    assert found.log_deviation.flatten().tolist() == pytest.approx([0.4, 0.5])
    assert found.others.flatten().tolist() == pytest.approx([0.2, 0.4])


def published(proposals: Tensor, taken: Tensor) -> Tensor:
    """The authors' retries, as a loop."""
    out, had = torch.zeros_like(proposals[0]), torch.zeros(taken.shape[1], dtype=torch.bool)
    for proposal, here in zip(proposals, taken, strict=True):
        out[here] = proposal[here]
        had |= here
        if bool(had.all()):
            break
    return out


@pytest.mark.parametrize("uniform", [0.02, 0.2, 0.7])
def test_tries_for_the_rejected(uniform: float) -> None:
    generator = torch.Generator().manual_seed(4)
    for _ in range(20):
        proposals = torch.randn(9, 5, 2, generator=generator)
        taken = torch.rand(9, 5, generator=generator) < uniform
        otherwise = torch.randn(5, 2, generator=generator)
        assert torch.equal(last_accepted(proposals, taken), published(proposals, taken))
        each = [int(column.nonzero()[0]) if column.any() else None for column in taken.T]
        kept = [otherwise[i] if at is None else proposals[at, i] for i, at in enumerate(each)]
        assert torch.equal(first_accepted(proposals, taken, otherwise), torch.stack(kept))


def test_the_published_fall_back_leaves_zeros_and_ours_does_not() -> None:
    """A draft so similar to the target that the residual is almost empty, while a few tokens are still rejected."""
    target, draft = pair(TOKENS, SIZE, HEAD, far=0.3)
    zeros = {}
    for flag in ("true", "false"):
        spec = f"cspd:draft=d,k=2,steps=6,prefill=0,reference={flag}"
        end = generate(target, spec, draft=draft, count=200)
        zeros[flag] = int((latents_of(end) == 0).all(-1).sum())
        assert sum(map(sum, end.trace.accepted)) < sum(map(sum, end.trace.drafted))
    assert zeros["true"] > 0
    assert zeros["false"] == 0
