"""`kseq`: every outcome enumerated, its acceptance between other rules and the optimum, and refusals."""

from __future__ import annotations

from itertools import product

import networkx
import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept import kseq
from pardec.samplers.speculative.accept.kseq import KSeq
from pardec.samplers.speculative.accept.rrs import RecursiveRejection
from tests.reference import naive_acceptance as naive
from tests.samplers.ar_toys import counted, g_test, joint, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, emitted, pairs, tree
from tests.samplers.joint_distributions import drafting
from tests.samplers.speculative.test_rrs import random_tree


@pytest.mark.parametrize("k", [1, 2, 4])
def test_what_comes_out_has_the_target_s_distribution_and_more_is_accepted_than_by_recursion(k: int) -> None:
    for p, q in pairs(15, seed=k):
        distribution, accepted = emitted(KSeq(), p, q, k, replacement=True)
        assert float((distribution - p).abs().max()) < 1e-10
        recursion = emitted(RecursiveRejection(True), p, q, k, replacement=True)[1]
        most = naive.optimum(p.numpy(), q.numpy(), k)
        assert naive.single(p.numpy(), q.numpy()) - 1e-10 < recursion < accepted + 1e-9
        assert accepted < most + 1e-10
        assert accepted > (1 - 1 / np.e) * most
        rho = naive.rho(p.numpy(), q.numpy(), k)
        assert float(kseq.division(p[None], q[None], torch.tensor([k]))) == pytest.approx(rho, abs=1e-6)


def the_division_factor_by_hand() -> None:
    """p uniform over {0, 1}, q all on 0, two drafts: b = min(.5 / rho, 1), and 1 - (1 - b)^2 = rho b = .5.

    So (1 - b)^2 = .5, b = 1 - 2^-.5 = .2929, rho = .5 / b = 1.7071.
    """
    p, q = torch.tensor([[0.5, 0.5]], dtype=torch.float64), torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert float(kseq.division(p, q, torch.tensor([2]))) == pytest.approx(1.7071068, abs=1e-6)
    assert float(kseq.division(p, q, torch.tensor([1]))) == 1


def siblings_after_the_accepted_one_are_not_tested() -> None:
    p = torch.tensor([0.25, 0.25, 0.5], dtype=torch.float64).expand(1, 3, 3)
    draft = tree(torch.tensor([[0, 0, 1]]), [-1, 0, 0], p)
    made = KSeq().accept(draft, distributions(p), Given(torch.zeros(1, 3)), None)
    assert int(made.count) == 1
    assert made.tested is not None
    assert made.tested.tolist() == [[False, True, False]]


def an_impossible_token_is_rejected_at_a_uniform_of_0() -> None:
    """u rho q < p is 0 < 0."""
    p = torch.tensor([0.0, 0.5, 0.5], dtype=torch.float64).expand(1, 3, 3)
    draft = tree(torch.tensor([[1, 0, 0]]), [-1, 0, 0], torch.full((1, 3, 3), 1 / 3))
    assert int(KSeq().accept(draft, distributions(p), Given(torch.zeros(1, 3)), None).count) == 0


def test_any_larger_factor_is_exact_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kseq.division
    monkeypatch.setattr(kseq, "division", lambda p, q, k: (found(p, q, k) * 1.3).clamp(max=float(k.max())))
    worse = 0.0
    for p, q in pairs(20):
        distribution, accepted = emitted(KSeq(), p, q, 3, replacement=True)
        assert float((distribution - p).abs().max()) < 1e-10
        worse += emitted(RecursiveRejection(True), p, q, 3, replacement=True)[1] - accepted
    assert worse > 0


def test_a_chain_is_speculative_sampling() -> None:
    drawn = np.random.RandomState(0)
    p, q = (torch.from_numpy(drawn.dirichlet([0.6] * 5, (64, 4))) for _ in range(2))
    draft = tree(torch.from_numpy(drawn.randint(0, 5, (64, 4))), None, q)
    uniforms = torch.from_numpy(drawn.uniform(size=(64, 4)))
    ours, theirs = Given(uniforms), Given(uniforms)
    made = KSeq().accept(draft, distributions(p), ours, None)
    true = RecursiveRejection().accept(draft, distributions(p), theirs, None)
    assert torch.equal(made.count, true.count)
    torch.testing.assert_close(ours.left, theirs.left)


def test_uniforms_one_by_one_decide_as_all_at_once() -> None:
    class Lazy:
        def __init__(self, inner: Given) -> None:
            self.accept, self.draw = inner.accept, inner.draw

    drawn = np.random.RandomState(5)
    for _ in range(30):
        _, p, draft = random_tree(drawn, repeated=True)
        given = Given(torch.from_numpy(drawn.uniform(size=(1, draft.width))))
        one, other = (KSeq().accept(draft, distributions(p), uniforms, None) for uniforms in (given, Lazy(given)))  # type: ignore[arg-type]
        assert torch.equal(one.path, other.path)
        assert torch.equal(one.next, other.next)
        assert torch.equal(one.tested, other.tested)  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", ["lookup+kseq", "kseq", "sequential+kseq"])
def test_drafters_without_a_distribution_are_refused_by_name(spec: str) -> None:
    with pytest.raises(SpecError, match="does not sample its drafts") as error:
        registry.resolve(spec, "ar", sampling=True)
    assert (spec.split("+")[0] if "+" in spec else "sequential") in str(error.value)
    assert "model" in (error.value.hint or "")


def test_its_siblings_are_drawn_independently() -> None:
    assert KSeq().siblings == "with"


def test_shapes_that_count_siblings_by_their_tokens_are_refused() -> None:
    """With dyspec, 200,000 draws of toys deviated by 0.005 from their joint distribution."""
    with pytest.raises(SpecError, match="must not depend on the sampled tokens"):
        registry.resolve("model:name=x+dyspec+kseq", "ar", sampling=True)


@pytest.mark.seeds("arXiv:2310.15141")
def test_samples_have_the_target_s_distribution_and_more_drafts_are_accepted_up_to_the_optimum() -> None:
    the_division_factor_by_hand()
    siblings_after_the_accepted_one_are_not_tested()
    an_impossible_token_is_rejected_at_a_uniform_of_0()
    each_row_has_the_factor_of_its_own_siblings()
    test_what_comes_out_has_the_target_s_distribution_and_more_is_accepted_than_by_recursion(3)
    for p, q in pairs(12):
        accepted = [emitted(KSeq(), p, q, k, replacement=True)[1] for k in (1, 2, 3)]
        assert accepted[0] == pytest.approx(naive.single(p.numpy(), q.numpy()))
        assert accepted[0] < accepted[1] < accepted[2]
        assert all(a < naive.optimum(p.numpy(), q.numpy(), k) + 1e-10 for k, a in enumerate(accepted, 1))
    draws, target = 1500, toy_ar(3, 5)
    with drafting(5):
        spec = "model:name=draft,k=2+template:widths=3-2+kseq"
        done = run(target, spec, [[1, 3]] * draws, 3, temperature=1.0, seeds=range(draws))
    assert g_test(counted(done, 2, 3, 5), joint(target, [1, 3], 3)) < 4


def transported(p: np.ndarray, q: np.ndarray, k: int) -> float:
    """The highest acceptance of k independent drafts: the transport plan itself, a flow from drafts to tokens."""
    graph, unit = networkx.DiGraph(), 10**12
    for token, mass in enumerate(p):
        graph.add_edge(token, "accepted", capacity=round(mass * unit))
    for draft in product(range(len(p)), repeat=k):
        graph.add_edge("all", draft, capacity=round(np.prod(q[list(draft)]) * unit))
        graph.add_edges_from((draft, token) for token in draft)
    return networkx.maximum_flow_value(graph, "all", "accepted") / unit


@pytest.mark.seeds("arXiv:2502.18779")
def test_the_minimum_over_sets_is_the_linear_program_and_no_rule_is_above_it() -> None:
    test_a_chain_is_speculative_sampling()
    siblings_of_a_second_level_have_their_own_distribution()
    for at, (p, q) in enumerate(pairs(12, sizes=(3, 4, 6, 8))):
        k = 2 if at % 2 else 3 if len(p) < 6 else 2
        most = naive.optimum(p.numpy(), q.numpy(), k)
        assert most == pytest.approx(transported(p.numpy(), q.numpy(), k), abs=1e-9)
        rho = float(kseq.division(p[None], q[None], torch.tensor([k])))
        assert rho == pytest.approx(naive.rho(p.numpy(), q.numpy(), k), abs=1e-6), "the least that is valid"
        for rule in (KSeq(), RecursiveRejection(True)):
            distribution, accepted = emitted(rule, p, q, k, replacement=True)
            assert float((distribution - p).abs().max()) < 1e-10
            assert accepted < most + 1e-10
            assert accepted > (1 - 1 / np.e) * most or rule != KSeq()


def siblings_of_a_second_level_have_their_own_distribution() -> None:
    """Rows of 1 and 2 siblings, whose factors are 1 and 1.7071; the second level's q is not that of the first.

    After node 1, which is accepted, p = (.5, .5), and both siblings are 0 with q(0) = 1: b = .2929, the ratio is
    .5 / 1.7071 = .2929. Both rejected, s = 1.7071, so that p - s min(p / rho, q) leaves nothing of token 0.
    """
    p = torch.tensor([[0.5, 0.5]], dtype=torch.float64).expand(1, 4, 2).clone()
    p[0, 0] = torch.tensor([0.0, 1.0])
    q = torch.tensor([[[0, 0], [0, 1], [1, 0], [1, 0]]], dtype=torch.float64)
    draft = tree(torch.tensor([[0, 1, 0, 0]]), [-1, 0, 1, 1], q)
    given = Given(torch.tensor([[0, 0.5, 0.3, 0.3]], dtype=torch.float64))
    made = KSeq().accept(draft, distributions(p), given, None)
    assert int(made.count) == 1
    assert made.ratio is not None
    assert made.ratio[0, 1:].tolist() == pytest.approx([1, 0.29289, 0.29289], abs=1e-4)
    assert given.left[0].tolist() == pytest.approx([0, 1], abs=1e-6)
    given = Given(torch.tensor([[0, 0.5, 0.29, 0.3]], dtype=torch.float64))
    assert KSeq().accept(draft, distributions(p), given, None).path[0].tolist()[:3] == [0, 1, 2]


def each_row_has_the_factor_of_its_own_siblings() -> None:
    """Drafts as in `the_division_factor_by_hand`; the second sibling of row 1 is not tested, so that its factor is 1.

    The ratios are .5 / 1.7071 = .2929 and .5 / 1.
    """
    p = torch.tensor([0.5, 0.5], dtype=torch.float64).expand(2, 3, 2)
    q = torch.tensor([[0, 0], [1, 0], [1, 0]], dtype=torch.float64).expand(2, 3, 2)
    tested = torch.tensor([[False, True, True], [False, True, False]])
    draft = tree(torch.zeros(2, 3, dtype=torch.int64), [-1, 0, 0], q, verify=tested)
    uniforms = Given(torch.full((2, 3), 0.4, dtype=torch.float64))
    made = KSeq().accept(draft, distributions(p), uniforms, None)
    assert made.count.tolist() == [0, 1]
    assert made.ratio is not None
    assert made.ratio[:, 1].tolist() == pytest.approx([0.29289, 0.5], abs=1e-4)
