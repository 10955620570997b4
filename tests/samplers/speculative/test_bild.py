"""`bild`: the rollback by hand, its extremes (plain decoding, accepting everything), and the reported deviation."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import takewhile

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.bild import BigLittle
from pardec.samplers.speculative.shape.chain import Chain
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.joint_distributions import drafting
from tests.samplers.speculative import test_fallback as fallback

P = torch.tensor([[[0.5, 0.1, 0.4], [0.1, 0.3, 0.6], [0.5, 0.3, 0.2], [0.5, 0.3, 0.2]]], dtype=torch.float64)


def the_first_token_too_unlikely_and_all_behind_it_fall(rollback: float, count: int) -> None:
    """-log .5 = .693, -log .3 = 1.204, -log .2 = 1.609; raw logits, here of the least likely tokens, do not count."""
    draft = tree(torch.tensor([[0, 0, 1, 2]]), None)
    given = Given(torch.zeros(1, 4))
    made = BigLittle(rollback).accept(draft, replace(distributions(P), raw=-P.log()), given, None)
    assert int(made.count) == count
    assert given.left[0].tolist() == pytest.approx(P[0, count].tolist())  # the next token is drawn from the large model
    assert int(made.next) == (0, 2, 0, 0)[count]
    assert made.deviation is not None
    assert float(made.deviation) == pytest.approx(sum((0.5, 0.7, 0.8)[:count]))


def a_token_at_the_bound_is_kept() -> None:
    even = torch.full((1, 2, 2), 0.5, dtype=torch.float64)
    made = BigLittle(math.log(2)).accept(tree(torch.tensor([[0, 1]]), None), distributions(even), Given(even[0]), None)
    assert int(made.count) == 1


def the_first_sibling_within_the_bound_is_kept() -> None:
    draft = tree(torch.tensor([[0, 2, 1, 0]]), [-1, 0, 0, 0])
    p = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 4, 3)
    made = BigLittle(1.3).accept(draft, distributions(p), Given(torch.zeros(1, 4)), None)
    assert made.path[0, :2].tolist() == [0, 2]


def test_without_any_bound_the_small_model_decodes_alone() -> None:
    """At temperature 0 the large model's distribution still sets the deviation of each kept token."""
    large, given = toy_ar(2, 5), [[1, 2], [3, 0, 4]]
    with drafting(5):
        kept = run(large, "model:name=draft,k=3+bild:rollback=1e9", given, 8)
        plain = run(large, "model:name=draft,k=3+bild:rollback=0", given, 8)
    assert set(map(max, kept.trace.accepted)) == {3}
    assert rows(plain) == [plain_greedy(large, prompt, 8) for prompt in given]
    assert max(plain.deviation) == 0
    assert all(one != other for one, other in zip(rows(kept), rows(plain), strict=True))
    assert min(kept.deviation) > 0


def test_a_tighter_bound_keeps_less() -> None:
    with drafting(5):
        counts = [
            sum(
                map(
                    sum,
                    run(
                        toy_ar(2, 5), f"model:name=draft,k=3+bild:rollback={r}", [[1, 2]] * 30, 8, temperature=1.0
                    ).trace.accepted,
                )
            )
            for r in (0.5, 1.5, 3.0)
        ]
    assert counts[0] < counts[1] < counts[2]


def test_it_promises_nothing() -> None:
    assert registry.resolve("lookup+bild", "ar", sampling=False).exact == "relaxed"
    assert BigLittle().rollback == 2
    for value in (-1.0, math.nan):
        with pytest.raises(SpecError, match=r"bild: rollback must be at least 0 \(nats\)"):
            BigLittle(value)


@pytest.mark.seeds("arXiv:2302.07863")
def test_the_strictest_thresholds_are_the_large_model_and_looser_ones_are_cheaper_and_agree_less() -> None:
    """Cost: forwards of the large model. Agreement: tokens up to the first that is not the large model's."""
    for rollback, count in ((0.69, 0), (0.70, 1), (1.20, 1), (1.21, 2), (1.61, 3)):
        the_first_token_too_unlikely_and_all_behind_it_fall(rollback, count)
    the_first_sibling_within_the_bound_is_kept()
    a_token_at_the_bound_is_kept()
    fallback.test_it_stops_below_the_bound_only()
    fallback.test_its_drafts_are_one_level_shorter_than_those_that_keep_the_unsure_token(Chain(), 0.0)
    large, given = toy_ar(2, 9), [[at % 9, at // 3, at % 4] for at in range(24)]
    plain = [plain_greedy(large, prompt, 16) for prompt in given[:6]]

    def agreement(some: list[list[int]]) -> int:
        pairs = [zip(text[3:], best[3:], strict=True) for text, best in zip(some, reference, strict=True)]
        return sum(len(list(takewhile(lambda two: two[0] == two[1], pair))) for pair in pairs)

    reference = rows(run(large, "sequential", given, 16))
    assert reference[:6] == plain
    with drafting(9):
        spec = "model:name=draft,k=4+fallback:below={}+bild:rollback={}"
        strict = run(large, spec.format(1, 0), given, 16)
        assert rows(strict) == reference
        for settings in (((0.3, 0.5), (0.3, 2), (0.3, 8)), ((0.9, 3), (0.4, 3), (0.0, 3))):
            done = [run(large, spec.format(*each), given, 16) for each in settings]
            cost = [sum(each.nfe) for each in done]
            agreed = [agreement(rows(each)) for each in done]
            assert sum(strict.nfe) >= cost[0] > cost[1] > cost[2]
            assert 24 * 16 >= agreed[0] >= agreed[1] >= agreed[2]
