"""`bild`: the rollback by hand, its ends (plain decoding, taking everything), and the deviation reported."""

from __future__ import annotations

import math

import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.bild import BigLittle
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.joints import drafting
from tests.samplers.verdicts import Given, distributions, tree

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 4, 3)


@pytest.mark.parametrize(("rollback", "count"), [(0.69, 0), (0.70, 1), (1.20, 1), (1.21, 2), (1.61, 3)])
def test_the_first_token_too_unlikely_and_all_behind_it_fall(rollback: float, count: int) -> None:
    """-log .5 = .693, -log .3 = 1.204, -log .2 = 1.609."""
    draft = tree(torch.tensor([[0, 0, 1, 2]]), None)
    made = BigLittle(rollback).accept(draft, distributions(P), Given(torch.zeros(1, 4)), None)
    assert int(made.count) == count
    assert int(made.next) == 0
    assert made.deviation is not None
    assert float(made.deviation) == pytest.approx(sum((0.5, 0.7, 0.8)[:count]))


def test_the_first_sibling_within_the_bound_is_kept() -> None:
    draft = tree(torch.tensor([[0, 2, 1, 0]]), [-1, 0, 0, 0])
    made = BigLittle(1.3).accept(draft, distributions(P), Given(torch.zeros(1, 4)), None)
    assert made.path[0, :2].tolist() == [0, 2]


def test_without_any_bound_the_small_model_decodes_alone() -> None:
    """At temperature 0 the large model's law still decides what is too unlikely, and each token kept counts."""
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
    for value in (-1.0, math.nan):
        with pytest.raises(SpecError, match="bild: rollback is in nats and at least 0"):
            BigLittle(value)
