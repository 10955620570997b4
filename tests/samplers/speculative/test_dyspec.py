"""Dynamic trees: the greedy search node by node, the most probable of all trees, structure chosen before sampling."""

from __future__ import annotations

import heapq
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.shape.dyspec import DySpec
from tests.samplers.ar_toys import counted, g_test, joint, run
from tests.samplers.fake_draft_model import (
    FakeDraftModel,
    context,
    grown,
    named,
    near,
    nodes,
    target,
    uniforms,
    written,
)


def distribution(draft_model: FakeDraftModel, row: int, tokens: tuple[int, ...]) -> np.ndarray:
    found: np.ndarray = torch.from_numpy(draft_model.logits(row, tokens)).float().softmax(-1).double().numpy()
    return found


def search(draft_model: FakeDraftModel, row: int, count: int, deep: int, children: int) -> set[tuple[int, ...]]:
    """The `count` likeliest paths of the `children` likeliest tokens each, by best-first search node by node."""
    heap: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    found: set[tuple[int, ...]] = set()
    while heap and len(found) <= count:
        value, path = heapq.heappop(heap)
        found.add(path)
        if len(path) < deep:
            q = distribution(draft_model, row, path)
            for token in np.argsort(-q)[:children].tolist():
                heapq.heappush(heap, (value * q[token], (*path, token)))
    return found - {()}


@pytest.mark.parametrize(("count", "children"), [(1, 6), (5, 6), (12, 6), (30, 6), (12, 1), (12, 2)])
def test_at_temperature_0_it_is_the_search_that_asks_node_by_node(count: int, children: int) -> None:
    text = written([[1], [2], [3], [0, 4]])
    draft_model = FakeDraftModel(text)
    budget = [5, 2, 3, 0]
    draft = grown(DySpec(count, children=children), draft_model, budget)
    for row, deep in enumerate(budget):
        assert set(nodes(draft, row)) == (search(draft_model, row, count, deep, children) if deep else set())
    assert len(draft_model.calls) <= 5


def no_tree_of_its_size_is_likelier() -> None:
    text = written([[row, 1] for row in range(5)])
    draft_model = FakeDraftModel(text, vocab=3)
    draft = grown(DySpec(3, children=3), draft_model, [2] * 5)
    for row in range(5):
        value = {(t,): distribution(draft_model, row, ())[t] for t in range(3)}
        value |= {(*p, t): v * distribution(draft_model, row, p)[t] for p, v in list(value.items()) for t in range(3)}
        trees = [tree for tree in combinations(value, 3) if all(not p[:-1] or p[:-1] in tree for p in tree)]
        assert sum(value[p] for p in nodes(draft, row)) == pytest.approx(max(sum(map(value.get, t)) for t in trees))  # type: ignore[arg-type]


def places(
    draft_model: FakeDraftModel, draft: Draft, row: int, children: int, deep: int
) -> tuple[list[float], list[float]]:
    """The values of the nodes in the tree, and of those that could have been added next."""
    taken, free = [], []
    below: dict[tuple[int, ...], list[int]] = {(): []}
    for path in nodes(draft, row):
        below.setdefault(path, [])
        below[path[:-1]].append(path[-1])
    reach = {(): 1.0}
    for path, tokens in sorted(below.items(), key=lambda item: len(item[0])):
        place, left = reach[path], distribution(draft_model, row, path)
        for token in tokens:
            taken.append(place)
            share = left[token] / left.sum()
            reach[*path, token] = place * share
            place *= 1 - share
            left[token] = 0
        if len(tokens) < children and len(path) < deep and left.sum() > 0:
            free.append(place)
    return taken, free


def draws_fill_the_places_of_the_highest_value() -> None:
    text = written([[row, 1] for row in range(20)])
    draft_model = FakeDraftModel(text)
    draft = grown(DySpec(9, children=3), draft_model, [3] * 20, temperature=1.0)
    for row in range(20):
        taken, free = places(draft_model, draft, row, 3, 3)
        assert len(taken) == 9
        assert min(taken) >= max(free) - 1e-6
    assert len({draft.depth[row].tolist().count(1) for row in range(20)}) > 1  # trees differ in form


def test_q_is_the_distribution_given_earlier_siblings() -> None:
    draft_model = FakeDraftModel(written([[row, 1] for row in range(8)]))
    draft = grown(DySpec(12), draft_model, [4] * 8, temperature=1.0)
    assert draft.q is not None
    for row in range(8):
        left = {}
        for node, path in enumerate(nodes(draft, row), 1):
            given = left.setdefault(path[:-1], distribution(draft_model, row, path[:-1]))
            np.testing.assert_allclose(draft.q[row, node], given / given.sum(), atol=1e-5)
            given[path[-1]] = 0


def test_a_row_alone_has_the_tree_that_it_has_in_a_batch() -> None:
    together = grown(DySpec(10), FakeDraftModel(written([[1], [2, 3], [4]])), [2, 4, 3], seed=5, temperature=1.0)
    alone = grown(DySpec(10), FakeDraftModel(written([[2, 3]])), [4], seed=6, temperature=1.0)
    assert nodes(together, 1) == nodes(alone, 0)


def test_draws_with_replacement_have_the_targets_distribution_where_siblings_run_out() -> None:
    draws, options = 4000, {"temperature": 0.9, "top_k": 2}
    with named(near=near()):
        spec = "model:name=near,k=3+dyspec:nodes=5,children=3+rrs:replacement=true"
        done = run(target(), spec, [[1, 3]] * draws, 4, seeds=range(draws), **options)
    assert g_test(counted(done, 2, 4, 5), joint(target(), [1, 3], 4, **options)) < 4


def every_node_of_a_round_has_its_own_noise() -> None:
    text = written([[1], [2]])
    drawn, keys = uniforms(text), list[Tensor]()
    listened: Any = SimpleNamespace(noise=lambda key, *more: keys.append(key) or drawn.noise(key, *more))
    DySpec(12).grow(FakeDraftModel(text), context(text, temperature=1.0), np.array([4, 4]), listened, None)
    assert len(keys) > 2
    assert torch.cat(keys, 1)[0].unique().numel() == sum(each.shape[1] for each in keys)


@pytest.mark.seeds("arXiv:2410.11744")
def test_its_trees_are_the_likeliest_keep_the_distribution_and_gain_what_fixed_ones_do_at_least() -> None:
    for children in (1, 6):
        test_at_temperature_0_it_is_the_search_that_asks_node_by_node(12, children)
    no_tree_of_its_size_is_likelier()
    every_node_of_a_round_has_its_own_noise()
    draws_fill_the_places_of_the_highest_value()
    draft_model = FakeDraftModel(written([[row, 1] for row in range(5)]), vocab=3)
    draft = grown(DySpec(4, children=3), draft_model, [2] * 5)
    for row in range(5):  # at temperature 0, against every tree of four nodes
        value = {(t,): distribution(draft_model, row, ())[t] for t in range(3)}
        value |= {(*p, t): v * distribution(draft_model, row, p)[t] for p, v in list(value.items()) for t in range(3)}
        trees = [tree for tree in combinations(value, 4) if all(not p[:-1] or p[:-1] in tree for p in tree)]
        best = max(sum(map(value.__getitem__, tree)) for tree in trees)
        assert sum(value[p] for p in nodes(draft, row)) == pytest.approx(best)
    draws, gained = 1500, {}
    with named(near=near()):
        for shape in ("dyspec:nodes=9,children=3", "template:widths=3-1-1"):  # nine nodes each
            spec = f"model:name=near,k=3+{shape}+rrs"
            done = run(target(), spec, [[1, 3]] * draws, 4, temperature=0.9, seeds=range(draws))
            assert g_test(counted(done, 2, 4, 5), joint(target(), [1, 3], 4, temperature=0.9)) < 4
            gained[shape] = 4 * draws / sum(done.nfe)
    dynamic, fixed = gained.values()
    assert dynamic >= fixed
