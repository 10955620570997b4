"""The test after a step towards the drafter: its formula, its limits, and temperature 0."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.samplers import registry
from pardec.samplers.speculative.accept.enrich import Enrich, _Enrichment
from pardec.samplers.speculative.ops.verification import Trial
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, near, target


def naive(z: Tensor, q: Tensor, eta: float, alpha: float) -> tuple[Tensor, Tensor]:
    """p^ [V] and the distribution after a rejection [V], entry by entry, of the target's logits z [V]."""
    p = z.softmax(0)
    shifted = [float(z[i] + (eta * (q[i] - p[i]) if q[i] >= alpha * max(q) else 0)) for i in range(len(z))]
    moved = torch.tensor(shifted, dtype=z.dtype).softmax(0)
    left = torch.tensor([max(0.0, float(p[i] - q[i]), float(p[i] - moved[i])) for i in range(len(z))], dtype=z.dtype)
    return moved, left / left.sum()


@pytest.mark.parametrize(("eta", "alpha"), [(5.0, 0.1), (1.0, 0.0), (40.0, 1.0)])
def test_the_shifted_distribution_and_the_residual_are_those_of_the_formula(eta: float, alpha: float) -> None:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(6, 9, generator=generator, dtype=torch.float64) * 2
    q = (torch.randn(6, 9, generator=generator, dtype=torch.float64) * 2).softmax(-1)
    token = torch.arange(6)
    trial = Trial(token, token, token, q[token, token], q, None)
    rule = _Enrichment(Enrich(eta, alpha), None)
    p = z.softmax(-1)
    for row in range(6):
        moved, left = naive(z[row], q[row], eta, alpha)
        assert torch.allclose(rule.weight(p, trial)[row], moved[row])
        assert torch.allclose(rule.after_rejection(p, trial)[row], left)
    point = torch.arange(6) < 3  # of these rows the drafted token was certain, whatever q holds
    mixed, sure = Trial(token, token, token, q[token, token], q, point), torch.eye(9, dtype=torch.float64)[:6]
    for row in range(6):
        moved, _ = naive(z[row], sure[row] if point[row] else q[row], eta, alpha)
        assert torch.allclose(rule.weight(p, mixed)[row], moved[row])
    only = torch.tensor([[1.0, 0.0]])  # of p and q: nothing is left after the rejection that rounding makes
    alike = Trial(token[:1], token[:1], token[:1], only[0, :1], only, None)
    assert rule.after_rejection(only, alike).tolist() == only.tolist()


def test_a_strong_step_accepts_what_the_drafter_is_sure_of_and_none_is_exact() -> None:
    with named(near=near()):
        done = {eta: run(target(), f"model:name=near,k=3+enrich:eta={eta}", RAGGED, NEW) for eta in (0, 2, 1000)}
    assert rows(done[0]) == greedy()
    assert rows(done[1000]) != greedy()
    accepted = [np.mean([n for row in each.trace.accepted for n in row[1:]]) for each in done.values()]
    assert accepted == sorted(accepted)
    assert accepted[0] < 2 < 2.5 < accepted[2], "point masses that are moved to are accepted as far as there is room"
    assert registry.resolve("model:name=near+enrich", "ar").exact == "relaxed"


def test_the_first_round_of_many_draws_follows_the_rule() -> None:
    """One token after one drafted from q: p^ is capped where q exceeds it, and the residual fills the rest."""
    vocab, eta = 5, 3.0
    generator = torch.Generator().manual_seed(3)
    z, q = torch.randn(vocab, generator=generator).double(), torch.randn(vocab, generator=generator).double().softmax(0)
    moved, left = naive(z, q, eta, 0.1)
    kept = torch.minimum(moved, q)
    expected = kept + (1 - kept.sum()) * left
    count, rule = 40_000, _Enrichment(Enrich(eta), None)
    drawn = torch.multinomial(q.expand(count, -1), 1, generator=generator)[:, 0]
    row = torch.zeros(count, dtype=torch.int64)
    trial = Trial(row, row, drawn, q[drawn], q.expand(count, -1), None)
    p = z.softmax(0).expand(count, -1)
    passed = torch.rand(count, generator=generator) * q[drawn] < rule.weight(p, trial)
    other = torch.multinomial(rule.after_rejection(p, trial), 1, generator=generator)[:, 0]
    frequency = torch.bincount(torch.where(passed, drawn, other), minlength=vocab) / count
    assert (frequency - expected).abs().max() < 0.01
    assert (frequency - p[0]).abs().max() > 0.03, "it is not the target's distribution"
