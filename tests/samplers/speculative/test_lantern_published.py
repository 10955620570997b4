"""`lantern` as published, compared with the naive rule, and at temperature 0."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import pytest
import torch

from pardec.samplers.speculative.accept.code_features import CodeFeatures
from pardec.samplers.speculative.accept.lantern import Lantern
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Draft
from tests.reference import naive_relaxed as naive
from tests.reference.naive_acceptance import Node
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, InOrder, distributions, tree
from tests.samplers.speculative.test_lantern import features
from tests.samplers.speculative.test_rrs import random_tree

Mode = Literal["principled", "reference"]


@pytest.mark.parametrize("points", [0, 1, 2])
def test_the_published_rule_on_trees_and_chains(points: int) -> None:
    drawn = np.random.RandomState(10 + points)
    borrowed = 0
    for trial in range(36):
        nodes, p, draft = random_tree(drawn, points=points, size=8, vocab=6)
        near, k = features(6, trial), 1 + trial % 4
        delta, ratio = ((0.3, None), (0.1, None), (0.1, 3.0))[trial % 3]
        if trial % 2:
            nodes = [node._replace(parent=i - 1) for i, node in enumerate(nodes)]
            draft = Draft(
                draft.tokens, draft.sizes, draft.base, verify=draft.verify, q=draft.q, is_point_mass=draft.is_point_mass
            )
        uniforms = torch.from_numpy(drawn.uniform(size=(1, 8)) ** 0.5)

        def test(distribution: np.ndarray, node: Node, above: int) -> naive.Test:
            return naive.published(distribution, node, near.table.tolist(), k, delta, ratio)  # noqa: B023

        true = naive.in_turn(nodes, p.numpy()[0], lambda node: float(uniforms[0, node]), test)  # noqa: B023
        in_order = InOrder([float(uniforms[0, node]) for node in true.tested])
        for given_uniforms in (Given(uniforms), in_order):
            made = Lantern(k, delta, ratio, mode="reference").accept(draft, distributions(p), given_uniforms, near)
            assert made.path[0, 1 : int(made.count) + 1].tolist() == true.path
            assert made.tested is not None
            assert made.tested[0].nonzero()[:, 0].tolist() == sorted(true.tested)
            np.testing.assert_allclose(given_uniforms.left[0].numpy(), true.distribution, atol=1e-9)
            assert made.deviation is None
        plain = Speculative().accept(draft, distributions(p), Given(uniforms), None)
        borrowed += int(plain.count) != len(true.path)
    assert borrowed > 3


def test_nothing_left_is_the_uniform_distribution_as_published() -> None:
    """k = 2 of 3 tokens: a rejection clears all of them."""
    p = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).expand(1, 2, 3)
    uniforms = Given(torch.full((1, 2), 9.0))
    draft = tree(torch.tensor([[0, 2]]), None)
    Lantern(2, 0.5, mode="reference").accept(draft, distributions(p), uniforms, features(3))
    assert uniforms.left[0].tolist() == pytest.approx([1 / 3] * 3)


# --- temperature 0 ---


@pytest.mark.parametrize(("delta", "token"), [(0.05, None), (0.15, 1), (0.25, 1)])
def test_greedy_takes_what_borrows_itself_to_the_top(delta: float, token: int | None) -> None:
    """p = (.35, .3, .1, .05, .2): token 1 may borrow .1 of 2, then .05 of 3, and needs more than .05."""
    p = torch.tensor([0.35, 0.3, 0.1, 0.05, 0.2], dtype=torch.float64).expand(1, 2, 5)
    near = torch.tensor([[1, 2, 3], [2, 3, 4], [3, 4, 0], [4, 0, 1], [0, 1, 2]], dtype=torch.int32)
    draft = tree(torch.tensor([[0, 1]]), None)
    modes: tuple[Mode, ...] = get_args(Mode)
    for mode in modes:
        rule = Lantern(2, delta, mode=mode)
        made = rule.accept(draft, distributions(p, greedy=True), Given(torch.zeros(1, 2)), CodeFeatures(near))
        assert int(made.count) == (token is not None)
        assert int(made.next) == 0
        assert (None if made.deviation is None else float(made.deviation)) == (
            None if mode == "reference" else float(token is not None)
        )


def test_greedy_takes_the_longest_path() -> None:
    """Both children of the root are accepted; only the second has an accepted child."""
    p = torch.tensor([0.4, 0.35, 0.25], dtype=torch.float64).expand(1, 4, 3)
    near = torch.tensor([[1, 2], [2, 0], [1, 0]], dtype=torch.int32)
    draft = tree(torch.tensor([[0, 1, 0, 0]]), [-1, 0, 0, 2])
    made = Lantern(1, 0.3).accept(draft, distributions(p, greedy=True), Given(torch.zeros(1, 4)), CodeFeatures(near))
    assert made.path[0, : int(made.count) + 1].tolist() == [0, 2, 3]
    assert made.deviation is not None
    assert float(made.deviation) == 0


def test_greedy_rows_are_plain_without_a_neighbour_and_close_with_some() -> None:
    model, given = toy_ar(2, 8, 0.6), [[1, 2, 1, 2], [3], [5, 5, 0, 5, 5]]
    plain = [plain_greedy(model, prompt, 12) for prompt in given]
    for spec in ("jacobi+lantern:k=0", "jacobi+lantern:delta=0", "jacobi+lantern:delta=1e-9", "jacobi+lantern:ratio=1"):
        assert rows(run(model, spec, given, 12)) == plain
    done = run(model, "jacobi+lantern:k=7,delta=0.5", given, 12)
    assert rows(done) != plain
    assert max(done.deviation) > 0
