"""`topk`: rank and tolerance by hand, compared with a plain version on random trees, and its greedy settings."""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.speculative.accept.topk import TopK
from tests.reference.naive_acceptance import Node, children
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.speculative.test_rrs import random_tree

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 4, 3)


@pytest.mark.parametrize(
    ("k", "tolerance", "count"), [(2, 0.52, 2), (2, 0.5, 1), (3, 0.92, 3), (3, 0.91, 2), (1, 9.0, 1)]
)
def test_a_chain_by_hand(k: int, tolerance: float, count: int) -> None:
    """log .5 - log .3 = .511, log .5 - log .2 = .916; the chain is the best, the second, the third."""
    draft = tree(torch.tensor([[0, 0, 1, 2]]), None)
    verdict = TopK(k, tolerance).accept(draft, distributions(P, greedy=True), Given(torch.zeros(1, 4)), None)
    assert int(verdict.count) == count
    assert int(verdict.next) == 0
    if verdict.deviation is not None:
        assert float(verdict.deviation) == count - 1


def test_a_gap_of_exactly_the_tolerance_passes() -> None:
    """log .5 - log .25 is log 2 in float32 as well."""
    p = torch.tensor([0.5, 0.25, 0.25]).expand(1, 2, 3)
    for tolerance, count in ((log(2), 1), (0.693, 0)):
        draft = tree(torch.tensor([[0, 2]]), None)
        verdict = TopK(2, tolerance).accept(draft, distributions(p, greedy=True), Given(torch.zeros(1, 2)), None)
        assert int(verdict.count) == count


def naive(nodes: Sequence[Node], law: np.ndarray, k: int, tolerance: float) -> list[int]:
    """The longest accepted path, the likeliest of the longest ones: every path is listed."""

    def fits(node: int) -> bool:
        behind = law[nodes[node].parent]
        own = behind[nodes[node].token]
        return bool(own > 0 and (behind > own).sum() < k and np.log(behind.max()) - np.log(own) <= tolerance)

    paths, best = [(0, 0.0, [0])], (0, 0.0, [0])
    while paths:
        depth, score, path = paths.pop(0)
        best = max(best, (depth, score, path), key=lambda each: each[:2])
        for node in children(nodes, path[-1]):
            if fits(node):
                own = np.log(law[nodes[node].parent][nodes[node].token])
                paths.append((depth + 1, score + own, [*path, node]))
    return best[2]


def test_random_trees_follow_a_plain_version() -> None:
    seeded, depths = np.random.RandomState(3), set()
    for _ in range(60):
        nodes, p, draft = random_tree(seeded, points=2, size=12)
        law = p.numpy()[0].astype(np.float64)
        expected = naive(nodes, law, 3, 1.0)
        verdict = TopK(3, 1.0).accept(draft, distributions(p, greedy=True), Given(torch.zeros(1, 12)), None)
        assert verdict.path[0, : int(verdict.count) + 1].tolist() == expected
        assert int(verdict.next) == int(law[expected[-1]].argmax())
        other = sum(nodes[n].token != law[nodes[n].parent].argmax() for n in expected[1:])
        assert verdict.deviation is not None
        assert float(verdict.deviation) == other
        depths.add(len(expected))
    assert len(depths) > 2


def test_its_strict_ends_are_greedy_decoding_and_more_of_either_accepts_more() -> None:
    model, given = toy_ar(2, 6, 0.7), [[1, 2, 1, 2], [3], [5, 5, 0, 5, 5]]
    for spec in ("k=1,tolerance=9", "k=6,tolerance=0"):
        assert registry.resolve(f"lookup+topk:{spec}", "ar").exact == "greedy"
        assert rows(run(model, f"lookup+topk:{spec}", given, 12)) == [plain_greedy(model, p, 12) for p in given]
    taken = [sum(map(sum, run(model, f"sjd+topk:k=6,tolerance={t}", given, 30).trace.accepted)) for t in (0, 0.5, 2, 9)]
    assert taken == sorted(taken)
    assert taken[0] < taken[-1]


def test_equals_are_one_rank_and_only_the_lowest_id_is_the_best() -> None:
    p = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64).expand(1, 2, 3)
    draft = tree(torch.tensor([[0, 1]]), None)
    for tolerance, count in ((0.0, 0), (0.1, 1)):
        verdict = TopK(2, tolerance).accept(draft, distributions(p, greedy=True), Given(torch.zeros(1, 2)), None)
        assert int(verdict.count) == count
