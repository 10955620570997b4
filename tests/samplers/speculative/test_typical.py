"""`typical`: Medusa's rule by hand and naive, the longest path, and the reported deviation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.typical import Typical
from tests.reference import naive_acceptance as naive
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.speculative.test_rrs import random_tree


def test_the_threshold_by_hand() -> None:
    """H(.5, .25, .25) = 1.0397 nats: exp(-H) = .3536, times .3 is .1061, above epsilon; of (.9, .05, .05) .3944."""
    p = torch.tensor([[[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]]], dtype=torch.float64)
    assert Typical(epsilon=1.0).threshold(p)[0].tolist() == pytest.approx([0.10607, 0.20221], abs=1e-4)
    assert Typical().threshold(p)[0].tolist() == pytest.approx([0.09, 0.09])
    spread = torch.full((1, 1, 100), 0.01, dtype=torch.float64)
    assert float(Typical().threshold(spread)) == pytest.approx(0.3 * 0.01)


def test_the_longest_path_stands_and_ties_go_to_the_likelier() -> None:
    """Root -> {0 -> 2 -> ..., 1 -> {0, 2}}: both paths have two levels; .5 * .2 is below .3 * .5."""
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 6, 3)
    draft = tree(torch.tensor([[0, 0, 1, 2, 2, 0]]), [-1, 0, 0, 1, 2, 2])
    made = Typical().accept(draft, distributions(p), Given(torch.zeros(1, 6)), None)
    assert made.path[0].tolist() == [0, 2, 5]
    assert made.deviation is not None
    assert float(made.deviation) == pytest.approx(0.7 + 0.5)
    only = Typical(epsilon=0.4, delta=9.0).accept(draft, distributions(p), Given(torch.zeros(1, 6)), None)
    assert only.path[0, : int(only.count) + 1].tolist() == [0, 1]


def test_a_token_at_the_bar_is_not_accepted() -> None:
    p = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5]], dtype=torch.float64)[:, None].expand(2, 2, 3)
    made = Typical().accept(tree(torch.tensor([[1, 0]] * 2), None), distributions(p), Given(torch.zeros(2, 2)), None)
    assert made.count.tolist() == [1, 0], "each row has its own distributions"
    target = distributions(torch.tensor([0.5, 0.25, 0.25], dtype=torch.float64).expand(1, 2, 3))
    quarter = float(target.probs[0, 0, 1])
    for epsilon, count in ((quarter, 0), (quarter - 1e-9, 1)):
        rule = Typical(epsilon=epsilon, delta=9.0)
        assert (
            int(rule.accept(tree(torch.tensor([[0, 1]]), None), target, Given(torch.zeros(1, 2)), None).count) == count
        )


@pytest.mark.parametrize("reference", [False, True])
def test_random_trees_follow_the_naive_rule(reference: bool) -> None:
    drawn = np.random.RandomState(2)
    depths = set()
    for _ in range(80):
        nodes, p, draft = random_tree(drawn, points=2, size=12)
        rule = Typical(epsilon=0.2, delta=0.5, reference=reference)
        made = rule.accept(draft, distributions(p), Given(torch.zeros(1, 12)), None)
        path, deviation = naive.typical(nodes, p.numpy()[0], 0.2, 0.5, 1e-5 if reference else 0.0)
        assert made.path[0, 1 : int(made.count) + 1].tolist() == path
        end = path[-1] if path else 0
        deviation += float(1 - p[0, end].max()) if reference else 0
        assert made.deviation is not None
        assert float(made.deviation) == pytest.approx(deviation)
        assert int(made.next) == int(p[0, end].argmax())
        depths.add(len(path))
    assert len(depths) > 2


def test_greedy_decoding_at_temperature_0() -> None:
    model = toy_ar(2, 6, 1.5)
    given = [[1, 2, 1, 2], [3], [5, 5, 0, 5, 5]]
    done = run(model, "lookup+typical", given, 12)
    assert rows(done) == [plain_greedy(model, prompt, 12) for prompt in given]
    assert max(done.deviation) == 0


def test_a_temperature_makes_it_deviate_and_says_how_far() -> None:
    model = toy_ar(2, 6, 0.5)
    done = run(model, "lookup+typical", [[1, 2, 1, 2]] * 20, 16, temperature=1.0)
    taken = sum(map(sum, done.trace.accepted))
    assert 0 < sum(done.deviation) < taken
    assert registry.resolve("lookup+typical", "ar", sampling=True).exact == "relaxed"


def test_nothing_is_accepted_above_certainty() -> None:
    p = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).expand(1, 2, 3)
    draft = tree(torch.tensor([[0, 0]]), None)
    assert (
        int(Typical(epsilon=1.0, delta=math.inf).accept(draft, distributions(p), Given(torch.zeros(1, 2)), None).count)
        == 0
    )
    for name in ("epsilon", "delta"):
        with pytest.raises(SpecError, match=f"typical: {name} must be at least 0, got -1.0"):
            Typical(**{name: -1.0})
