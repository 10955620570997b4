"""Chains judged in Triton against the definition; without a GPU, test_attention_triton.py (models) interprets it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.samplers.rng import Keyed as Source
from pardec.samplers.speculative.contracts import Draft, RoundUniforms, Verdict
from pardec.samplers.speculative.ops.verification import judge
from tests.grids import fewer_where
from tests.triton_runs import DEVICE, INTERPRETED, WHERE_TRITON_RUNS

pytestmark = WHERE_TRITON_RUNS


def both(draft: Draft, p: Tensor, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> tuple[Verdict, Verdict]:
    """The verdicts of the definition and of the kernel."""
    rows = np.arange(len(p))
    uniforms = RoundUniforms(Source(tuple(range(seed, seed + len(p)))), rows, rows + 3, DEVICE)
    found = []
    for kernels in ("reference", "triton"):
        monkeypatch.setenv("PARDEC_KERNELS", kernels)
        found.append(judge(draft, p, uniforms))
    return found[0], found[1]


def same(expected: Verdict, found: Verdict) -> None:
    for name in ("path", "count", "next", "tested"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.ratio is not None
    assert expected.ratio is not None
    torch.testing.assert_close(found.ratio, expected.ratio)


@fewer_where(INTERPRETED)
@pytest.mark.parametrize("kind", ["distributions", "points", "mixed"])
@pytest.mark.parametrize(("batch", "nodes", "vocab"), [(1, 1, 5), (6, 2, 3), (9, 6, 37), (2, 33, 4500)])
def test_a_ragged_chain_is_judged_as_it_is_defined(batch, nodes, vocab, kind, monkeypatch):
    drawn = torch.Generator().manual_seed(nodes)
    p, q = torch.randn(2, batch, nodes, 2 * vocab, generator=drawn).mul(2)[..., :vocab].softmax(-1)  # laws with gaps
    q = 0.2 * q + 0.8 * torch.cat((q[:, :1], p[:, :-1]), 1)  # alike, so that some are accepted
    tokens = q.flatten(0, 1).multinomial(1, generator=drawn).view(batch, nodes)
    sizes = torch.randint(1, nodes + 1, (batch,), generator=drawn).numpy()
    held = torch.full((2, batch, nodes, vocab + 3), float("nan"))  # neither whole nor without poison
    for row, size in enumerate(sizes):
        held[0, row, :size, :vocab], held[1, row, :size, :vocab] = p[row, :size], q[row, :size]
    p, q = held.to(DEVICE)[..., :vocab]
    more = {
        "distributions": {"q": q},
        "points": {},
        "mixed": {"q": q, "is_point_mass": (torch.rand(batch, nodes, generator=drawn) < 0.5).to(DEVICE)},
    }[kind]
    verify = torch.rand(batch, nodes, generator=drawn) < 0.95
    draft = Draft(tokens.to(DEVICE), sizes, np.zeros(batch, int), verify=verify.to(DEVICE), **more)
    for seed in (0, 10):
        same(*both(draft, p, monkeypatch, seed))


def test_where_nothing_is_left_the_distribution_itself_is_drawn_from(monkeypatch):
    p = torch.tensor([[0.2, 0.5, 0.3], [0.0, 1.0, 0.0]], device=DEVICE)
    for q, token in ((p[0], 0), (None, 1)):  # a law that is p, rejected by a token it cannot draw; a certain token
        distributions = None if q is None else (q * torch.tensor([1.0, 1.0, 1.0], device=DEVICE)).expand(4, 2, 3)
        tokens = torch.tensor([[0, token]] * 4, device=DEVICE)
        draft = Draft(tokens, np.full(4, 2), np.zeros(4, int), q=distributions)
        same(*both(draft, p[0 if q is not None else 1].expand(4, 2, 3), monkeypatch))


@pytest.mark.parametrize("point", [False, True])
def test_what_comes_out_has_the_distribution_of_the_target(point, monkeypatch):
    from pardec.samplers.speculative.ops.verification_triton import judge_chains

    p = torch.tensor([0.1, 0.0, 0.4, 0.2, 0.3])
    q = torch.tensor([0.3, 0.2, 0.1, 0.2, 0.2])
    count = 12
    grid = (torch.arange(count).double() + 0.5) / count
    distribution, half = torch.zeros(5, dtype=torch.float64), torch.ones(count, 2).double()
    for token in range(5):
        if point and token != 2:
            continue  # a point mass is not drawn
        weight = 1.0 if point else float(q[token])
        tokens = torch.tensor([[0, token]]).expand(count, 2).to(DEVICE)
        distributions = None if point else q.expand(count, 2, 5).to(DEVICE)
        tested = torch.tensor([[False, True]]).expand(count, 2).to(DEVICE)
        target = p.expand(count, 2, 5).to(DEVICE)
        one = tokens[:1], tested[:1], target[:1], distributions if distributions is None else distributions[:1]
        uniform = judge_chains(*one, None, half[:1].to(DEVICE), grid[:1].to(DEVICE))[2][0, 1].item()
        distribution[token] += weight * uniform
        if uniform < 1:
            rejected = judge_chains(tokens, tested, target, distributions, None, 2 * half.to(DEVICE), grid.to(DEVICE))
            assert (rejected[0] == 0).all()
            distribution += weight * (1 - uniform) * torch.bincount(rejected[1].cpu(), minlength=5) / count
    assert (distribution - p).abs().max() < 1 / count
