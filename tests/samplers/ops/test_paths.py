"""Denoising paths: each kind of token, path densities by integration and by torch, two heads on one path."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.continuous.contracts import States
from pardec.samplers.ops import denoising_paths
from pardec.samplers.ops.denoising_paths import Last, denoise, log_density, rescore, token, trace, width
from tests.samplers.vector_toys import ToyHead, mar

LASTS: tuple[Last, ...] = get_args(Last)
HEAD = ToyHead(2, 4, bend=0.3, lean=0.2)


def states(count: int, size: int = 2) -> States:
    return States(torch.linspace(-1, 1, count * size).view(count, size))


def normals(count: int, head: ToyHead) -> torch.Tensor:
    return torch.randn(count, width(head), generator=torch.Generator().manual_seed(2))


def test_a_path_by_hand() -> None:
    """d = 1, keep .5, pull 1, deviations 1: from 2 with state 1 and noise 1, -1: 2, 3, 1.5; index 0: mean 1.75."""
    head = ToyHead(1, 3, keep=0.5, pull=1.0, spread=0.0, growth=0.0)
    noise = torch.tensor([[2.0, 1.0, -1.0, 0.5]])
    one = States(torch.ones(1, 1))
    path = trace(head, one, noise)
    assert path.points.flatten().tolist() == [2, 3, 1.5, 2.25]
    assert path.means.flatten().tolist() == [2, 2.5, 1.75]
    assert {last: float(token(path, head, last)) for last in LASTS} == pytest.approx(
        {"map": 1.75, "x1": 1.5 / 0.9, "noise": 2.25}
    )
    assert float(denoise(head, one, noise, temperature=0.0)) == 0.5 * (0.5 * (0.5 * 2 + 1) + 1) + 1


@pytest.mark.parametrize("last", LASTS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_trace_ends_where_a_walk_does(last: Last, temperature: float) -> None:
    noise = normals(7, HEAD)
    path = trace(HEAD, states(7), noise, temperature=temperature)
    made = denoise(HEAD, states(7), noise, temperature=temperature, last=last)
    assert torch.equal(token(path, HEAD, last), made)


@pytest.mark.parametrize("last", LASTS)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_density_is_the_product_of_its_transitions(last: Last, temperature: float) -> None:
    path = trace(HEAD, states(5), normals(5, HEAD), temperature=temperature)
    expected = torch.zeros(5, dtype=torch.float64)
    for number, index in enumerate(range(3, -1 if last == "noise" else 0, -1)):
        distribution = HEAD.distribution(path.points[number], index, states(5))
        normal = torch.distributions.Normal(distribution.mean.double(), temperature * distribution.deviation.double())
        expected += normal.log_prob(path.points[number + 1].double()).sum(1)
    assert log_density(path, last).dtype == torch.float64
    torch.testing.assert_close(log_density(path, last), expected, rtol=1e-5, atol=1e-5)


def test_densities_of_all_paths_add_up_to_1() -> None:
    """d = 1, two random transitions from one first point, over a grid of their results."""
    head = ToyHead(1, 3, bend=0.3)
    line = torch.linspace(-9, 9, 601)
    first, second = torch.meshgrid(line, line, indexing="ij")
    count = first.numel()
    points = torch.stack((torch.full((count,), 0.4), first.flatten(), second.flatten(), torch.zeros(count)))[..., None]
    blank = torch.zeros(3, count, 1)
    path = rescore(head, States(torch.full((count, 1), 0.3)), denoising_paths.DenoisingPath(points, blank, blank))
    total = float(log_density(path, "x1").exp().sum()) * float(line[1] - line[0]) ** 2
    assert total == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("rows", [1, 7, 10, 1 << 20])
def test_a_path_says_the_same_of_itself_along_it(rows: int) -> None:
    path = trace(HEAD, states(5), normals(5, HEAD), temperature=0.8)
    with patch.object(denoising_paths, "ROWS", rows):
        again = rescore(HEAD, states(5), path, temperature=0.8)
    torch.testing.assert_close(again.means, path.means)
    torch.testing.assert_close(again.log_deviations, path.log_deviations)
    other = rescore(replace(HEAD, pull=0.1), states(5), path, temperature=0.8)
    assert torch.equal(other.points, path.points)
    assert (log_density(other, "x1") != log_density(path, "x1")).all()


@pytest.mark.parametrize("guided", [False, True])
def test_mars_head_says_the_same_along_a_path_in_one_call(guided: bool) -> None:
    """Each point with its own index; errors relative to the values, which are large for an untrained head."""
    model = mar()
    said = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
    given = States(said, -said, torch.linspace(1, 3, 6)) if guided else States(said)
    path = trace(model.head, given, torch.randn(6, width(model.head), generator=torch.Generator().manual_seed(3)))
    again = rescore(model.head, given, path)
    for found, expected in ((again.means, path.means), (again.log_deviations, path.log_deviations)):
        assert float((found - expected).abs().max() / expected.abs().max()) < 1e-5


def test_the_mean_of_a_ratio_is_1() -> None:
    """E_q[p / q] = 1 over paths, which a wrong normalizer violates."""
    near = replace(HEAD, pull=0.45, spread=HEAD.spread + 0.05)
    count = 40_000
    given = States(torch.tensor([[0.5, -0.5]]).expand(count, 2))
    path = trace(near, given, normals(count, HEAD))
    ratio = (log_density(rescore(HEAD, given, path), "noise") - log_density(path, "noise")).exp().numpy()
    assert abs(ratio.mean() - 1) < 4 * ratio.std() / math.sqrt(count)
    assert np.log(ratio).mean() < -0.01
