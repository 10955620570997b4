"""Independent sets of a graph, for several rows at once."""

from __future__ import annotations

import torch

from pardec.samplers.ops.position_sets import independent_set
from tests.reference import naive_dependence as naive


def test_independent_sets_are_those_of_a_greedy_pass() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        score = torch.randint(0, 6, (3, 9), generator=generator).float()
        nodes = torch.rand(3, 9, generator=generator) < 0.8
        conflict = torch.rand(3, 9, 9, generator=generator) < 0.15
        conflict = (conflict | conflict.transpose(1, 2)) & ~torch.eye(9, dtype=torch.bool)
        got = independent_set(score, nodes, conflict)
        for row in range(3):
            ranked = sorted((i for i in range(9) if nodes[row, i]), key=lambda i: (-float(score[row, i]), i))
            taken = naive.independent(ranked, lambda i, j, pairs=conflict[row]: bool(pairs[i, j]))
            assert sorted(taken) == got[row].nonzero()[:, 0].tolist()
