"""Sampling at a temperature: thousands of rows compared with the loop's exact joint distribution, by enumeration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from itertools import product

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.plan import Plan
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.rng import Keyed, Source, gumbel
from tests.samplers.toys import request, run, toy

ROWS = 4000
MODEL = toy(seed=11, vocab=5, sharp=1.0)  # four tokens and the mask
MASK = 4
Canvas = tuple[int, ...]
Choose = Callable[[dict[int, float]], list[int]]  # score of each open position -> which are committed


@cache
def distributions(canvas: Canvas) -> dict[int, np.ndarray]:
    """The model's own distribution at each open position."""
    logits = MODEL.forward(Plan.full(torch.tensor([canvas]), MODEL.visible())).logits()[0].double()
    logits[:, MASK] = -torch.inf
    return {p: distribution for p, distribution in enumerate(logits.softmax(-1)[:, :MASK].numpy()) if canvas[p] == MASK}


@cache
def joint(canvas: Canvas, choose: Choose, temperature: float = 1.0) -> dict[Canvas, float]:
    """The distribution of finished canvases: each step samples all open positions independently, and commits some."""
    found: Counter[Canvas] = Counter()

    def walk(canvas: Canvas, weight: float) -> None:
        own = distributions(canvas)
        if not own:
            found[canvas] += weight
            return
        drawn = {
            p: distribution ** (1 / temperature) / (distribution ** (1 / temperature)).sum()
            for p, distribution in own.items()
        }
        after: Counter[Canvas] = Counter()
        for tokens in product(range(MASK), repeat=len(own)):
            candidates = dict(zip(own, tokens, strict=True))
            uniform = float(np.prod([drawn[p][t] for p, t in candidates.items()]))
            chosen = choose({p: float(own[p][t]) for p, t in candidates.items()})
            after[tuple(candidates[p] if p in chosen else t for p, t in enumerate(canvas))] += uniform
        for next_canvas, uniform in after.items():
            walk(next_canvas, weight * uniform)

    walk(canvas, 1.0)
    return dict(found)


def surest(score: dict[int, float]) -> list[int]:
    return [max(score, key=lambda p: (score[p], -p))]


@cache
def sampled(
    spec: str, canvas: Canvas, source: Source | None = None, temperature: float = 1.0, rows: int = ROWS
) -> Counter[Canvas]:
    source = source or Keyed(tuple(range(rows)))
    asked = request([canvas] * rows, [2] * rows, source=source, temperature=temperature)
    return Counter(map(tuple, run(MODEL, spec, asked).tokens.tolist()))


def excess(counts: Counter[Canvas], distribution: dict[Canvas, float]) -> float:
    """Pearson's chi-square in standard deviations above its mean (Wilson and Hilferty); rare cells are merged."""
    assert set(counts) <= set(distribution)
    cells = [(counts[canvas], ROWS * p) for canvas, p in distribution.items() if ROWS * p >= 5]
    cells.append((ROWS - sum(seen for seen, _ in cells), ROWS - sum(expected for _, expected in cells)))
    cells = [(seen, expected) for seen, expected in cells if expected >= 1]
    free = len(cells) - 1
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return float(((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / np.sqrt(2 / (9 * free)))


OPEN3, GAP = (0, 3, MASK, MASK, MASK), (2, 1, MASK, 0, MASK)
RULES: dict[str, Choose] = {
    "sequential": surest,
    "threshold:tau=0.5": lambda score: [p for p in score if score[p] >= 0.5] or surest(score),
    "threshold:tau=0": lambda score: list(score),
}


@pytest.mark.parametrize("canvas", [OPEN3, GAP])
@pytest.mark.parametrize("spec", RULES)
@pytest.mark.covers(1)
def test_the_loop_draws_from_its_own_distribution(spec: str, canvas: Canvas) -> None:
    distribution = joint(canvas, RULES[spec])
    assert sum(distribution.values()) == pytest.approx(1)
    counts = sampled(spec, canvas)
    distance = sum(abs(counts[c] / ROWS - p) for c, p in distribution.items()) / 2
    noise = sum(
        np.sqrt(p * (1 - p) / (2 * np.pi * ROWS)) for p in distribution.values()
    )  # its mean for an exact sampler
    assert excess(counts, distribution) < 3
    assert distance < 1.5 * noise


@pytest.mark.parametrize("drafts", ["drafts=2", "drafts=4,width=2", "graph=0-1-0.1"])
@pytest.mark.parametrize("select", ["sequential", "threshold:tau=0.5"])
@pytest.mark.covers(1)
def test_verified_steps_draw_from_the_distribution_of_one_forward_a_step(select: str, drafts: str) -> None:
    """freedave accepts a sampled draft token only where the next step would sample the same token."""
    counts = sampled(f"freedave:{drafts}+{select}", OPEN3, rows=1000)
    assert counts == sampled(select, OPEN3, rows=1000)  # by the keyed noise they are the same rows


def test_a_temperature_sharpens_the_draw_but_not_the_score() -> None:
    distribution = joint(OPEN3, RULES["threshold:tau=0.5"], temperature=0.5)
    assert excess(sampled("threshold:tau=0.5", OPEN3, temperature=0.5), distribution) < 3
    assert excess(sampled("threshold:tau=0.5", OPEN3), distribution) > 8


class Broken:
    """Keyed noise with one injected fault."""

    def __init__(self, mistake: str) -> None:
        self.inner, self.mistake = Keyed(tuple(range(ROWS))), mistake

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        if self.mistake == "steps":
            step = np.zeros_like(step)
        if self.mistake == "positions":
            positions = torch.zeros_like(positions)
        if self.mistake == "rows":
            rows = rows // 40
        return self.inner.uniform(rows, step, positions, purpose, width)


@pytest.mark.parametrize("mistake", ["steps", "positions", "rows"])
def test_noise_used_twice_is_noticed(mistake: str) -> None:
    assert excess(sampled("sequential", OPEN3, Broken(mistake)), joint(OPEN3, surest)) > 6


def tail(draw: Callable[[Tensor, Tensor], Tensor]) -> int:
    """How often a token of probability 1e-4 is sampled in 400,000 trials."""
    logits = torch.tensor([0.9999, 0.0001]).log().expand(400_000, 2)
    uniform = Keyed((5,)).uniform(np.array([0]), np.array([0]), torch.arange(400_000)[None], "token", 2)[0]
    return int((draw(logits, uniform) == 1).sum())


def test_rare_tokens_are_drawn_as_often_as_they_should() -> None:
    assert (
        abs(tail(lambda p, u: DenseDistribution(p[None]).draw(np.arange(len(p)), lambda some: u[some])) - 40)
        < 4 * 40**0.5
    )
    coarse = tail(lambda logits, uniform: (logits + gumbel(uniform.half().clamp(1e-3, 0.999))).argmax(-1))
    assert abs(coarse - 40) > 4 * 40**0.5  # half precision cuts the tail off
