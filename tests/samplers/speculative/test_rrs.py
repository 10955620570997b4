"""`rrs`: every outcome enumerated, compared with the distribution and the naive recursion; sampling of siblings."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.speculative.accept.rrs import RecursiveRejection
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.shape.siblings import siblings
from tests.reference import naive_acceptance as naive
from tests.samplers.ar_toys import counted, g_test, joint, run, toy_ar
from tests.samplers.handmade_drafts import Given, InOrder, distributions, emitted, pairs, tree
from tests.samplers.joint_distributions import drafting

CASES = [(k, replacement) for k in (1, 2, 3, 4) for replacement in (False, True)]


@pytest.mark.parametrize(("k", "replacement"), CASES)
@pytest.mark.covers(1)
def test_what_comes_out_has_the_target_s_distribution_to_ten_digits(k: int, replacement: bool) -> None:
    for p, q in pairs(40):
        if not replacement and k > len(p):
            continue
        distribution, accepted = emitted(RecursiveRejection(replacement), p, q, k, replacement=replacement)
        assert float((distribution - p).abs().max()) < 1e-10
        least, most = naive.single(p.numpy(), q.numpy()), naive.optimum(p.numpy(), q.numpy(), k)
        assert accepted > least - 1e-10
        if replacement:
            assert accepted < most + 1e-10
        if k == 1:
            assert accepted == pytest.approx(least, abs=1e-12)


def a_worked_example() -> None:
    """p = (.5, .3, .2), q = (.2, .2, .6); siblings 2 then 0, without replacement: q_2 = (.5, .5, 0).

    Sibling 2 is accepted with .2/.6 = 1/3; else r = norm(.3, .1, 0) = (.75, .25, 0), and sibling 0 with .75/.5 -> 1.
    With replacement q stays (.2, .2, .6), and sibling 0 is accepted all the same.
    """
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 3, 3)
    q = torch.tensor([[[0, 0, 0], [0.2, 0.2, 0.6], [0.5, 0.5, 0.0]]], dtype=torch.float64)
    draft = tree(torch.tensor([[1, 2, 0]]), [-1, 0, 0], q)
    for u, path in ((0.33, [0, 1]), (0.34, [0, 2])):
        made = RecursiveRejection().accept(draft, distributions(p), Given(torch.tensor([[0, u, 0.999]])), None)
        assert made.path[0, : int(made.count) + 1].tolist() == path
        assert made.ratio is not None
        assert made.ratio[0, 1].item() == pytest.approx(1 / 3)
    assert made.ratio[0, 2].item() == 1


def without_replacement_accepts_more_than_with() -> None:
    gain = [
        emitted(RecursiveRejection(), p, q, 2, replacement=False)[1]
        - emitted(RecursiveRejection(True), p, q, 2, replacement=True)[1]
        for p, q in pairs(40)
    ]
    assert np.mean(gain) > 0.05


def the_law_without_earlier_siblings_is_needed() -> None:
    """Siblings drawn without replacement and tested against the unrestricted q come out wrong."""

    class Unrestricted(RecursiveRejection):
        def accept(self, draft, distributions, uniforms, state):  # type: ignore[no-untyped-def]
            draft.q[:, 2:] = draft.q[:, 1:2]
            return super().accept(draft, distributions, uniforms, state)

    off = [float((emitted(Unrestricted(), p, q, 2, replacement=False)[0] - p).abs().sum() / 2) for p, q in pairs(20)]
    assert np.mean(off) > 0.02


@pytest.mark.parametrize("replacement", [False, True])
def test_trees_of_distributions_and_points_follow_the_naive_recursion(replacement: bool) -> None:
    """Random trees with point masses, padding and repeated siblings; uniforms generated at once and one by one."""
    drawn = np.random.RandomState(4 + replacement)
    for trial in range(60):
        nodes, p, draft = random_tree(drawn, repeated=replacement, points=trial % 3)
        uniforms = torch.from_numpy(drawn.uniform(size=(1, len(nodes))))
        true = naive.recursive(nodes, p.numpy()[0], lambda node: float(uniforms[0, node]))  # noqa: B023
        in_order = InOrder([float(uniforms[0, node]) for node in true.tested])
        for given_uniforms in (Given(uniforms), in_order):
            made = RecursiveRejection(replacement).accept(draft, distributions(p), given_uniforms, None)
            assert made.path[0, 1 : int(made.count) + 1].tolist() == true.path
            assert made.tested is not None
            assert made.tested[0].nonzero()[:, 0].tolist() == sorted(true.tested)
            np.testing.assert_allclose(given_uniforms.left[0].numpy(), true.distribution, atol=1e-9)
        assert in_order.used == len(true.tested)


def random_tree(  # type: ignore[no-untyped-def]
    drawn: np.random.RandomState, *, repeated: bool = False, points: int = 0, size: int = 9, vocab: int = 5
):
    """Nodes for the naive rules, distributions [1, T, V], and the draft; points: 0 none, 1 some, 2 all."""
    parents = [-1, *(int(drawn.randint(0, i)) for i in range(1, size))]
    nodes = [naive.Node(int(drawn.randint(vocab)), -1)]
    p, base = drawn.dirichlet([0.7] * vocab, size), drawn.dirichlet([0.7] * vocab, size)
    distribution, point = np.zeros((size, vocab)), np.zeros(size, bool)
    for i, parent in enumerate(parents[1:], 1):
        earlier = {node.token for node in nodes[1:] if node.parent == parent}
        free = [x for x in range(vocab) if repeated or x not in earlier]
        if not free:
            nodes.append(naive.Node(0, parent, False))
            continue
        token = int(drawn.choice(free))
        distribution[i] = base[parent]
        if not repeated:
            distribution[i, list(earlier)] = 0
        distribution[i] /= distribution[i].sum()
        point[i] = points == 2 or (points == 1 and bool(drawn.randint(2)))
        nodes.append(naive.Node(token, parent, bool(drawn.uniform() < 0.9), None if point[i] else distribution[i]))
    tokens = torch.tensor([[node.token for node in nodes]])
    more = {"verify": torch.tensor([[node.tested for node in nodes]])}
    if points == 1:
        more["is_point_mass"] = torch.from_numpy(point)[None]
    q = None if points == 2 else torch.from_numpy(distribution)[None]
    return nodes, torch.from_numpy(p)[None], tree(tokens, parents, q, **more)


def test_it_says_how_siblings_are_drawn() -> None:
    assert RecursiveRejection().siblings == "without"
    assert RecursiveRejection(True).siblings == "with"
    assert getattr(Speculative(), "siblings", "without") == "without"
    assert registry.resolve("lookup+rrs:replacement=true", "ar", sampling=True).exact == "distribution"


def siblings_by_hand() -> None:
    """q = (0, .5, .3, .2, 0): uniforms of 0 and 1 draw the first and the last possible token with replacement.

    Without it their shares of what earlier ones leave are .5, .3 / .5 and .2 / .2.
    """
    logits = torch.tensor([[[0.0, 0.5, 0.3, 0.2, 0.0]]]).log()
    ends: Any = SimpleNamespace(noise=lambda keys, purpose, width: torch.tensor([[[0.0, 1.0]]], dtype=torch.float64))
    for how, temperature, tokens, shares in (
        ("with", 1.0, [1, 3], [0.5, 0.2]),
        ("without", 0.0, [1, 2, 3], [0.5, 0.6, 1.0]),
    ):
        context: Any = SimpleNamespace(request=SimpleNamespace(temperature=temperature), siblings=how)
        made = siblings(logits, len(tokens), context, ends, torch.zeros(1, 1, dtype=torch.int64))
        assert made.tokens.tolist() == [[tokens]]
        assert made.share[0, 0].tolist() == pytest.approx(shares)
        assert made.real.all()
    made = siblings(logits, 5, context, ends, torch.zeros(1, 1, dtype=torch.int64))
    assert made.real.tolist() == [[[True] * 3 + [False] * 2]], "three tokens are possible"


@pytest.mark.seeds("arXiv:2402.14160")
def test_every_depth_has_the_target_s_distribution_and_trees_without_replacement_accept_more() -> None:
    test_it_says_how_siblings_are_drawn()
    a_worked_example()
    siblings_by_hand()
    without_replacement_accepts_more_than_with()
    the_law_without_earlier_siblings_is_needed()
    draws, accepted = 1500, {}
    target, prompt = toy_ar(3, 5), [1, 3]
    with drafting(5):
        for replacement in ("false", "true"):
            spec = f"model:name=draft,k=3+template:widths=3-2-1+rrs:replacement={replacement}"
            done = run(target, spec, [prompt] * draws, 4, temperature=1.0, seeds=range(draws))
            accepted[replacement] = sum(map(sum, done.trace.accepted)) / sum(done.nfe)
            if replacement == "false":
                for depth in range(1, 5):
                    assert g_test(counted(done, 2, depth, 5), joint(target, prompt, depth)) < 4
    assert accepted["false"] >= accepted["true"]
