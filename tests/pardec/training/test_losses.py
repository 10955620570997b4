"""Losses of a draft distribution: hand-worked values, gradients by enumeration, reduced vocabularies."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.training.losses import loss

P = torch.tensor([[0.5, 0.3, 0.2]])
Q = torch.tensor([[0.25, 0.25, 0.5]])
LABEL = torch.tensor([0])
WORKED = {
    "ce": 1.386294,  # -ln 0.25
    "fkl": 0.218006,  # 0.5 ln 2 + 0.3 ln 1.2 + 0.2 ln 0.4
    "rkl": 0.239280,  # 0.25 ln 0.5 + 0.25 ln (5/6) + 0.5 ln 2.5
    "jsd": 0.055581,  # m = (0.375, 0.275, 0.35)
    "jsd:0.3": 0.046059,  # m = 0.3 p + 0.7 q = (0.325, 0.265, 0.41)
    "tvd": 0.3,  # (0.25 + 0.05 + 0.3) / 2
    "lk": 0.356675,  # -ln 0.7
    "lk_hybrid": 0.289959,  # w = exp(-2.1);  w 0.218006 + (1 - w) 0.3
}


@pytest.mark.parametrize("name", WORKED)
def test_values_worked_by_hand(name: str) -> None:
    assert loss(name)(Q.log(), P.log(), LABEL).item() == pytest.approx(WORKED[name], abs=1e-5)


def test_divergences_normalise_what_a_reduced_vocabulary_keeps_and_overlaps_count_what_it_loses() -> None:
    ids, q = torch.tensor([0, 2]), torch.tensor([[0.6, 0.4]])
    kept = torch.tensor([[5 / 7, 2 / 7]])
    expected = (kept * (kept / q).log()).sum().item()
    assert loss("fkl")(q.log(), P.log(), LABEL, ids).item() == pytest.approx(expected, abs=1e-6)
    assert loss("fkl")(q.log(), P[:, ids].log(), LABEL, ids).item() == pytest.approx(expected, abs=1e-6)
    assert loss("tvd")(q.log(), P.log(), LABEL, ids).item() == pytest.approx(1 - 0.5 - 0.2, abs=1e-6)
    with pytest.raises(ValueError, match="all of its ids"):
        loss("tvd")(q.log(), P[:, ids].log(), LABEL, ids)


def test_a_label_off_the_list_costs_nothing() -> None:
    assert loss("ce")(Q.log(), P.log(), torch.tensor([-1])).item() == 0


def test_tvd_descends_like_the_policy_gradient_that_tvd_plus_samples() -> None:
    """grad TVD = -E_(x ~ q) [r(x) grad log q(x)],  r(x) = 1[q(x) < p(x)], enumerated over x."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(4, 6, generator=generator, dtype=torch.float64)
    draft = torch.randn(4, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    p, log_q = target.softmax(-1), draft.log_softmax(-1)
    tvd = 0.5 * (p - log_q.exp()).abs().sum()
    (expected,) = torch.autograd.grad(tvd, draft, retain_graph=True)
    q = log_q.detach().exp()
    (enumerated,) = torch.autograd.grad(-(q * (q < p) * log_q).sum(), draft)
    assert torch.allclose(enumerated, expected, atol=1e-12)


def test_tvd_plus_rewards_tokens_that_the_target_finds_likelier() -> None:
    torch.manual_seed(0)
    draft = Q.log().repeat(4000, 1).requires_grad_()
    (slope,) = torch.autograd.grad(loss("tvd++")(draft, P.log().expand(4000, 3), LABEL.expand(4000)).mean(), draft)
    # r = 1 for the ids 0 and 1, which q gives half the mass: A = +1 and -1, and -E[A grad log q] = q_i (E[A] - A_i).
    assert torch.allclose(slope.sum(0), torch.tensor([-0.25, -0.25, 0.5]), atol=0.03)
    # On the ids 0 and 2 alone q is (.6, .4), and p stays (.5, .2): nothing is likelier, whatever it is renormalised.
    few = torch.tensor([[0.6, 0.4]]).log().repeat(50, 1)
    assert loss("tvd++")(few, P.log().expand(50, 3), LABEL.expand(50), torch.tensor([0, 2])).abs().max() == 0
    even = torch.full((4000, 3), 1 / 3).log()  # every token has the same log q, and rewards less their mean add up to 0
    assert abs(loss("tvd++")(even, P.log().expand(4000, 3), LABEL.expand(4000)).mean().item()) < 1e-3
    # A token as likely for both has no reward: less than the mean of positions where one of two tokens has.
    half, target = torch.zeros(40, 2), torch.cat((torch.zeros(20, 2), torch.tensor([[0.8, 0.2]]).log().expand(20, 2)))
    assert (loss("tvd++")(half, target, LABEL.expand(40))[:20] < 0).all()


@pytest.mark.parametrize("name", ["ce", "fkl"])
def test_the_slope_written_out_is_that_of_autograd(name: str) -> None:
    generator = torch.Generator().manual_seed(1)
    draft, target = torch.randn(5, 7, generator=generator), torch.randn(5, 7, generator=generator)
    labels, weights = torch.tensor([0, 3, 6, 2, 2]), torch.tensor([1.0, 0.5, 0.0, 2.0, 1.0])
    leaf = draft.clone().requires_grad_()
    expected = (loss(name)(leaf, target, labels) * weights).sum()
    (gradient,) = torch.autograd.grad(expected, leaf)
    value, slope = loss(name).with_slope(draft, target, labels, weights)
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(slope, gradient, atol=1e-6)


@pytest.mark.parametrize("name", ["fkl", "rkl", "jsd:0.3"])
def test_a_perfect_draft_has_no_slope(name: str) -> None:
    draft = P.log().clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(name)(draft, P.log(), LABEL).sum(), draft)
    assert _largest(slope) < 1e-6


def _largest(x: Tensor) -> float:
    return float(x.abs().max())


def test_unknown_names_and_parameters_are_refused() -> None:
    with pytest.raises(SpecError, match="fkl"):
        loss("fkll")
    with pytest.raises(SpecError, match="no parameter"):
        loss("ce:2")
    with pytest.raises(SpecError, match="between 0 and 1"):
        loss("jsd:1.5")
    with pytest.raises(SpecError, match="not a number"):
        loss("jsd:x")
    assert loss("jsd:0.3").parameter == 0.3
