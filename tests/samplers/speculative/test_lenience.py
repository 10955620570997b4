"""`lenience`: the resulting distribution by enumeration, its bound, its acceptance, and its exact extremes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.lenience import Lenience, mix_drafted
from pardec.samplers.speculative.ops.verification import judge
from tests.samplers.ar_toys import counted, joint, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, emitted, pairs, tree
from tests.samplers.joint_distributions import drafting
from tests.samplers.speculative.test_rrs import random_tree


@pytest.mark.parametrize("mix", [0.05, 0.3, 1.0])
def test_what_comes_out_is_the_mixture_and_a_token_is_accepted_that_much_more_often(mix: float) -> None:
    """TV(p~, p) = mix TV(p, q) <= mix, and acceptance is a + mix (1 - a), up to rounding."""
    for p, q in pairs(24):
        distribution, accepted = emitted(Lenience(mix), p, q, 1, replacement=False)
        np.testing.assert_allclose(distribution.numpy(), ((1 - mix) * p + mix * q).numpy(), atol=1e-12)
        exact = float(torch.minimum(p, q).sum())
        assert accepted == pytest.approx(exact + mix * (1 - exact), abs=1e-12)
        assert float((distribution - p).abs().sum() / 2) <= mix + 1e-12


@pytest.mark.parametrize("tv", [0.05, 0.3, 1.0])
def test_with_a_budget_the_distribution_is_that_far_and_acceptance_is_as_much_higher(tv: float) -> None:
    """TV(p~, p) = min(tv, TV(p, q)), and acceptance is min(1, a + tv): no rule within the budget accepts more."""
    for p, q in pairs(24):
        distribution, accepted = emitted(Lenience(tv=tv), p, q, 1, replacement=False)
        apart = float((p - q).abs().sum() / 2)
        assert float((distribution - p).abs().sum() / 2) == pytest.approx(min(tv, apart), abs=1e-12)
        assert accepted == pytest.approx(min(1.0, 1 - apart + tv), abs=1e-12)


def test_each_row_of_a_batch_has_its_own_share_of_the_budget() -> None:
    """(.1 .1 .8) is .6 from (.5 .3 .2), of which .3 is half; (.3 .3 .4) is .2 from it, less than the budget."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(2, 2, 3)
    q = torch.tensor([[0.1, 0.1, 0.8], [0.3, 0.3, 0.4]], dtype=torch.float64)[:, None].expand(2, 2, 3)
    mixed, off = mix_drafted(tree(torch.tensor([[0, 2]] * 2), None, q), p, 0.0, tv=0.3)
    np.testing.assert_allclose(mixed[:, 0].numpy(), [[0.3, 0.2, 0.5], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(off.numpy(), [[0.3, 0.0], [0.2, 0.0]], atol=1e-12)


@pytest.mark.parametrize("siblings", [2, 3])
def test_siblings_share_one_mixture(siblings: int) -> None:
    for p, q in pairs(12, sizes=(4, 5)):
        distribution, _ = emitted(Lenience(0.2), p, q, siblings, replacement=False)
        np.testing.assert_allclose(distribution.numpy(), (0.8 * p + 0.2 * q).numpy(), atol=1e-12)


def naive(p: Tensor, q: Tensor, f: str, eps: float) -> tuple[Tensor, float]:
    """The published rule: a token of q is accepted with min(1, f(p) / q), otherwise one of norm([p - q]+) is drawn.

    The distribution that comes out, and how often the token is not accepted.
    """
    mass = {"linear": p / eps, "square": p / eps**2, "exponential": p**eps}[f]
    true, lost = torch.zeros_like(p), 0.0
    for token in range(len(p)):
        accepted = min(1.0, float(mass[token] / q[token]))
        true[token] += q[token] * accepted
        lost += float(q[token]) * (1 - accepted)
    left = (p - q).clamp(min=0)
    return true + lost * left / left.sum(), lost


@pytest.mark.parametrize("f", ["linear", "square", "exponential"])
@pytest.mark.parametrize("eps", [0.3, 0.8])
def test_the_published_rule_by_a_naive_sum(f: str, eps: float) -> None:
    for p, q in pairs(12):
        true, lost = naive(p, q, f, eps)
        rule = Lenience(eps=eps, f=f, mode="reference")  # type: ignore[arg-type]
        distribution, accepted = emitted(rule, p, q, 1, replacement=False)
        np.testing.assert_allclose(distribution.numpy(), true.numpy(), atol=1e-6)
        assert accepted == pytest.approx(1 - lost, abs=1e-6)


def test_a_point_mass_is_mixed_by_hand() -> None:
    """.8 (.5 .3 .2) + .2 at token 2 = (.4 .24 .36): the moved probability is .2 (1 - .2) = .16 per node."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 3, 3)
    mixed, off = mix_drafted(tree(torch.tensor([[0, 2, 2]]), None), p, 0.2)
    np.testing.assert_allclose(mixed[0].numpy(), [[0.4, 0.24, 0.36], [0.4, 0.24, 0.36], [0.5, 0.3, 0.2]])
    np.testing.assert_allclose(off[0].numpy(), [0.16, 0.16, 0.0], atol=1e-12)
    q = torch.tensor([0.1, 0.1, 0.8], dtype=torch.float64).expand(1, 3, 3)
    point = torch.tensor([[False, False, True]])  # the first drafted token was drawn from q, the second not
    mixed, _ = mix_drafted(tree(torch.tensor([[0, 2, 2]]), None, q, is_point_mass=point), p, 0.5)
    np.testing.assert_allclose(mixed[0].numpy(), [[0.3, 0.2, 0.5], [0.25, 0.15, 0.6], [0.5, 0.3, 0.2]])
    verdict = Lenience(0.2).accept(
        tree(torch.tensor([[0, 2, 2]]), None), distributions(p), Given(torch.tensor([[0, 0.35, 0.37]])), None
    )
    assert int(verdict.count) == 1
    assert verdict.deviation is not None
    assert float(verdict.deviation) == pytest.approx(0.32)


def test_at_temperature_0_the_likeliest_token_alone_is_accepted() -> None:
    p = distributions(torch.tensor([[[0.5, 0.4, 0.1]] * 2], dtype=torch.float64), greedy=True)
    q = torch.tensor([[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]], dtype=torch.float64)
    for rule in (Lenience(1.0), Lenience(tv=1.0), Lenience(eps=0.1, mode="reference")):
        verdict = rule.accept(tree(torch.tensor([[0, 1]]), None, q), p, Given(torch.zeros(1, 2)), None)
        assert (int(verdict.count), int(verdict.next)) == (0, 0)


def test_strict_ends_are_the_exact_rule_on_random_trees() -> None:
    seeded = np.random.RandomState(4)
    for _ in range(20):
        _, p, draft = random_tree(seeded, points=2, size=8)
        uniforms = Given(torch.from_numpy(seeded.rand(1, 8)))
        exact = judge(draft, p, uniforms)
        for rule in (Lenience(0.0), Lenience(tv=0.0), Lenience(eps=1.0, mode="reference")):
            verdict = rule.accept(draft, distributions(p), uniforms, None)
            assert torch.equal(verdict.path, exact.path)
            assert (int(verdict.count), int(verdict.next)) == (int(exact.count), int(exact.next))
    for spec in ("lenience:mix=0", "lenience:tv=0", "lenience:mode=reference,eps=1"):
        assert registry.resolve(f"sjd+{spec}", "ar", sampling=True).exact == "distribution"
    assert registry.resolve("sjd+lenience", "ar", sampling=True).exact == "relaxed"


def test_a_model_s_first_token_has_the_mixture_s_distribution_within_the_reported_deviation() -> None:
    """The second token, for which a chain is verified; the reported deviation bounds its distribution's error."""
    model, prompt, count = toy_ar(3, 5), (1, 3), 4000
    with drafting(5):
        done = run(model, "model:name=draft,k=1+lenience:mix=0.5", [prompt] * count, 3, temperature=1.0)
    drawn = counted(done, 2, 3, 5, slice(None)).sum(2) / count
    distance = float(np.abs(drawn - joint(model, prompt, 2)).sum() / 2)
    assert 0.05 < distance < np.mean(done.deviation) + 0.03


def test_a_bound_on_the_variation_is_of_one_mode() -> None:
    with pytest.raises(SpecError, match="lenience: tv does not work with mode=reference"):
        Lenience(tv=0.1, mode="reference")
