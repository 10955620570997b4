"""`fasthybrid`: groups drawn ahead, and short paths near them, compared with a plain version token by token."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.continuous.contracts import ContinuousModel, States
from pardec.models.continuous.diffusion_head import DiffusionHead
from pardec.models.errors import SpecError
from pardec.models.load import load_continuous
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from tests.samplers.readable_classes import PLAIN, readable, tiny_mar
from tests.samplers.vector_toys import ToyBackbone, ToyHead, generate, latents_of, toy

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"
LABELS, SEEDS = (3, 1, 4), (5, 6, 7)


@pytest.fixture(scope="module")
def model() -> ContinuousModel:
    return load_continuous(GOLDEN, device="cpu")


def path(head: Any, states: States, seed: int, token: int, longest: int, guide: Tensor | None = None) -> Tensor:
    """[d]: one token, transition by transition; its noise is the beginning of that of the longest path."""
    width = (longest + 1) * head.size
    u = Keyed((seed,)).uniform(np.array([0]), np.array([0]), torch.tensor([[token]]), "token", width)
    e = torch.special.ndtri(u[0, 0]).float().view(-1, head.size)
    x = e[:1]
    for number, index in enumerate(reversed(range(head.steps)), 1):
        moved = head.distribution(x, index, states)
        mean = moved.mean
        if guide is not None:
            share = 1 - math.cos(math.pi * (index + 1) / (2 * head.steps)) ** 2
            mean = (1 - share) * mean + share * guide
        x = mean + (moved.deviation * e[number] if index else 0)
    return x[0]


def guidance(count: int, steps: int, cfg: float) -> list[float]:
    """Of each step: it grows with the tokens that are no longer missing after it, by MAR's cosine."""
    scales, left = [], count
    for step in range(steps):
        left = max(1, min(left - 1, math.floor(count * math.cos(math.pi / 2 * (step + 1) / steps))))
        scales.append(1 + (cfg - 1) * (count - left) / count)
    return scales


def naive(
    model: ContinuousModel, when: np.ndarray, label: int, seed: int, *, k: int, tau: float, short: int, cfg: float
) -> tuple[np.ndarray, int, int]:
    """One image in the recorded order, and how many tokens were tested, and took a short path."""
    count, groups, longest = model.backbone.tokens, int(when.max()) + 1, model.head.steps
    latents, scales = torch.zeros(1, count, model.head.size), guidance(count, groups, cfg)
    known, brief = torch.zeros(1, count, dtype=torch.bool), model.head.respaced(short)
    ahead: dict[int, tuple[Tensor, Tensor]] = {}
    tested = taken = 0

    def states(token: int) -> States:
        scale = torch.tensor([scales[when[token]]]).float()
        return model.backbone.states(latents, known, torch.tensor([label]), (torch.arange(count) == token)[None], scale)

    def guided(found: States) -> Tensor:
        assert found.uncond is not None
        assert found.scale is not None
        return found.uncond[0] + found.scale[0] * (found.cond[0] - found.uncond[0])

    for step in range(groups):
        drawn, failed = {}, False
        for token in np.flatnonzero(when == step).tolist():
            found = states(token)
            if token in ahead:
                then, vector = ahead[token]
                tested += 1
                if float(guided(found) @ then / (guided(found).norm() * then.norm())) >= tau:
                    taken += 1
                    drawn[token] = path(brief, found, seed, token, longest, vector)
                    continue
            failed = True
            drawn[token] = path(model.head, found, seed, token, longest)
        if failed:
            ahead = {}
            for token in np.flatnonzero((when > step) & (when < step + k)).tolist():
                ahead[token] = guided(states(token)), path(model.head, states(token), seed, token, longest)
        for token, vector in drawn.items():
            latents[0, token], known[0, token] = vector, True
    return latents[0].numpy(), tested, taken


@pytest.mark.seeds("https://cvpr.thecvf.com/virtual/2026/poster/38500")
@pytest.mark.parametrize(("k", "tau"), [(3, 0.9), (5, 0.9), (2, 0.0)])
def test_images_are_those_of_a_plain_version(model: ContinuousModel, k: int, tau: float) -> None:
    got = generate(model, f"fasthybrid:steps=6,k={k},tau={tau},short=4", labels=LABELS, seeds=SEEDS, cfg=2.0)
    shares = []
    for row, (label, seed) in enumerate(zip(LABELS, SEEDS, strict=True)):
        when = got.trace.commit_step[row]
        expected, tested, taken = naive(model, when, label, seed, k=k, tau=tau, short=4, cfg=2.0)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(latents_of(got)[row] / scale, expected / scale, atol=2e-5)
        assert (sum(got.trace.drafted[row]), sum(got.trace.accepted[row])) == (tested, taken)
        shares.append(taken / tested)
    assert max(shares) > 0
    assert tau == 0 or min(shares) < 1, shares
    with patch(
        "pardec.samplers.continuous.methods.fasthybrid.cosine_similarity",
        lambda a, b, dim: torch.full_like(a[:, 0], 0.5),
    ):
        got = generate(model, "fasthybrid:steps=6,k=3,tau=0.5,short=4", labels=LABELS, seeds=SEEDS)
    assert got.trace.accepted == got.trace.drafted, "a cosine of tau is enough"


@pytest.mark.parametrize("order", ["random", "checker"])
def test_without_short_paths_it_is_mar(model: ContinuousModel, order: str) -> None:
    plain = latents_of(generate(model, f"mar:steps=6,order={order}", labels=LABELS, seeds=SEEDS, cfg=2.0))
    for part in ("tau=1.1,short=4", "k=1,short=4"):
        spec = f"fasthybrid:steps=6,{part},order={order}"
        got = generate(model, spec, labels=LABELS, seeds=SEEDS, cfg=2.0)
        np.testing.assert_allclose(latents_of(got), plain, atol=2e-5 * np.abs(plain).max())
        assert not any(map(sum, got.trace.accepted))
    assert resolve("fasthybrid:k=1", "continuous").exact == "distribution"
    assert resolve("fasthybrid", "continuous").exact == "relaxed"


def test_a_row_alone_is_the_row_in_a_batch(model: ContinuousModel) -> None:
    for spec in ("fasthybrid:steps=6,k=3,tau=0.9,short=4", "fasthybrid:steps=6,k=4,tau=0.9,short=3,order=checker"):
        together = generate(model, spec, labels=LABELS, seeds=SEEDS, cfg=2.5)
        for row, (label, seed) in enumerate(zip(LABELS, SEEDS, strict=True)):
            alone = generate(model, spec, labels=(label,), seeds=(seed,), cfg=2.5)
            scale = np.abs(latents_of(alone)).max()
            np.testing.assert_allclose(latents_of(together)[row] / scale, latents_of(alone)[0] / scale, atol=1e-5)
            assert together.trace.accepted[row] == alone.trace.accepted[0]


def test_what_cannot_be_is_refused(model: ContinuousModel) -> None:
    with pytest.raises(SpecError, match="short=11 is more than the 10 transitions"):
        generate(model, "fasthybrid:short=11")
    causal = toy("causal", ToyHead(2, 3), ToyBackbone(4, 2, causal=True))
    with pytest.raises(SpecError, match="causal samples in raster order"):
        generate(causal, "fasthybrid:order=checker")
    one_by_one = toy("chain", ToyHead(2, 3), ToyBackbone(4, 2, causal=True, next_token=True))
    with pytest.raises(SpecError, match="chain predicts each token from all tokens before it"):
        generate(one_by_one, "fasthybrid:short=2")


def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Appends the tokens of each call of a head from now on."""
    each: list[int] = []
    own = DiffusionHead.distribution

    def counted(self: DiffusionHead, x: Tensor, *rest: Any) -> Any:
        each.append(len(x))
        return own(self, x, *rest)

    monkeypatch.setattr(DiffusionHead, "distribution", counted)
    return each


@pytest.mark.slow  # seconds for seven images; the tests above have the rule
def test_an_image_takes_half_the_head_calls_and_its_class_stays_readable(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a batch a path is full for all rows where one looks ahead, so that images are sampled one by one."""
    task, counted, right, used = pardec.task("classes"), calls(monkeypatch), 0.0, list[int]()
    for spec, count in (("mar:steps=18,head=50", 1), ("fasthybrid:steps=18,head=50,k=3,tau=0.98,short=8", 6)):
        counted.clear()
        each = [
            task.score(one, tiny_mar().generate(label=[one.label], sampler=spec, cfg=2.0, seed=0).images[0])
            for one in task.problems(n=6)[:count]
        ]
        right = sum(each)
        used.append(len(counted) // count)
    assert used[1] < 0.55 * used[0], used
    assert right >= readable(PLAIN, 6) - 1
