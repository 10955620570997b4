"""Denoising paths: sampling tokens along them, and the density of a path under a head.

    x_T = e_0,  x_(t-1) = mu_t(x_t) + tau s_t(x_t) e_t;  log p(path) = sum_t log N(x_(t-1); mu_t(x_t), (tau s_t(x_t))^2)

The token is x_0 = mu_0(x_1), as published ("map"); x_0 with the last transition's noise ("noise"); or
x_1 / sqrt(alpha_bar_0) ("x1"): random given the others, as a ratio of densities needs, and 0.006 off x_0.
Letters: N tokens, T transitions, d numbers of a token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from pardec.models.continuous.contracts import Gaussian, Head, States

Last = Literal["map", "x1", "noise"]
ROWS = 16384  # rows per head call in `rescore`: more need memory and save no time


@dataclass(frozen=True, slots=True, eq=False)
class DenoisingPath:
    """The points of N tokens from noise to token, and the distributions of the transitions between them."""

    points: Tensor  # [T + 1, N, d] float32: x_T first
    means: Tensor  # [T, N, d] float32: the mean of the next point
    log_deviations: Tensor  # [T, N, d] its log standard deviation, temperature included

    def transitions(self, last: Last) -> int:
        """The number of random transitions."""
        return len(self.means) - (last != "noise")


def width(head: Head) -> int:
    """Standard normal values needed per token."""
    return (head.steps + 1) * head.size


def denoise(
    head: Head,
    states: States,
    noise: Tensor,
    *,
    temperature: float = 1.0,
    last: Last = "map",
    every: int = 1,
    guide: Tensor | None = None,
) -> Tensor:
    """Samples tokens [N, d] from `noise` [N, width]; `every` as in `Head.ready`.

    With `guide` [N, d] the mean of the transition t = T .. 1 is (1 - g) mu + g `guide`, g = 1 - cos^2(pi t / (2 T)).
    """
    e, states = noise.view(len(noise), head.steps + 1, head.size), head.ready(states, every)
    x = e[:, 0]
    for number, index in enumerate(reversed(range(1, head.steps)), 1):
        distribution = head.distribution(x, index, states)
        mean = _guided(distribution.mean, guide, (index + 1) / head.steps)
        x = mean + temperature * distribution.deviation * e[:, number]
    if last == "x1":
        return x / float(head.signal[0])
    distribution = head.distribution(x, 0, states)
    mean = _guided(distribution.mean, guide, 1 / head.steps)
    return mean if last == "map" else mean + temperature * distribution.deviation * e[:, -1]


def _guided(mean: Tensor, guide: Tensor | None, left: float) -> Tensor:
    """`mean` moved towards `guide`; `left` is the share of the path's transitions from this one on."""
    return mean if guide is None else torch.lerp(mean, guide, math.sin(math.pi / 2 * left) ** 2)


def trace(head: Head, states: States, noise: Tensor, *, temperature: float = 1.0) -> DenoisingPath:
    """Like `denoise`, but returns the whole path, with a random last transition; `token` returns its tokens."""
    e, states = noise.view(len(noise), head.steps + 1, head.size), head.ready(states)
    points, means, deviations = [e[:, 0]], [], []
    for number, index in enumerate(reversed(range(head.steps)), 1):
        distribution = head.distribution(points[-1], index, states)
        means.append(distribution.mean)
        deviations.append(distribution.log_deviation + _log(temperature))
        points.append(distribution.mean + temperature * distribution.deviation * e[:, number])
    return DenoisingPath(torch.stack(points), torch.stack(means), torch.stack(deviations))


def token(path: DenoisingPath, head: Head, last: Last) -> Tensor:
    """[N, d]: the tokens at the paths' ends."""
    if last == "x1":
        return path.points[-2] / float(head.signal[0])
    return path.means[-1] if last == "map" else path.points[-1]


def rescore(head: Head, states: States, path: DenoisingPath, *, temperature: float = 1.0) -> DenoisingPath:
    """The same points with the distributions of another head or other states, from one call of T * N rows.

    More than ROWS are split into several calls, some transitions each.
    """
    steps, count = path.means.shape[:2]
    index = torch.arange(steps - 1, -1, -1, device=path.points.device).repeat_interleave(count)
    points, each = path.points[:-1].flatten(0, 1), max(1, ROWS // max(1, count))
    gaussians: list[Gaussian] = []
    for part in range(0, steps, each):
        rows = slice(part * count, (part + each) * count)
        which = torch.arange(count, device=index.device).repeat(len(index[rows]) // max(1, count))
        gaussians.append(head.distribution(points[rows], index[rows], states[which]))
    means = torch.cat([distribution.mean for distribution in gaussians])
    deviations = torch.cat([distribution.log_deviation for distribution in gaussians]) + _log(temperature)
    return DenoisingPath(path.points, means.view_as(path.means), deviations.view_as(path.means))


def log_density(path: DenoisingPath, last: Last) -> Tensor:
    """[N] float64: the log density of the points under the path's distributions, without the first point."""
    count = path.transitions(last)
    mean, log_deviation = path.means[:count].double(), path.log_deviations[:count].double()
    gap = (path.points[1 : count + 1].double() - mean) * torch.exp(-log_deviation)
    return (-0.5 * gap.square() - log_deviation - 0.5 * math.log(2 * math.pi)).sum((0, 2))


def _log(temperature: float) -> float:
    return math.log(temperature) if temperature > 0 else -math.inf
