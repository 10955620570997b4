"""`sequential`: commits the best position of each forward, whatever its score."""

from __future__ import annotations

import pytest

from pardec.samplers.registry import resolve
from tests.reference import naive_masked as naive
from tests.samplers.eight_tokens import proposal, steps_of
from tests.samplers.loop_parity import LENGTHS, NEW, compare
from tests.samplers.toys import FAMILIES, prompts, toy


@pytest.mark.parametrize("spec", ["sequential", "margin+sequential", "entropy+sequential"])
def test_eight_tokens_by_hand(spec: str) -> None:
    assert steps_of(spec) == [1, 5, 2, 7, 0, 4, 3, 6]


@pytest.mark.parametrize("proposer", ["confidence", "margin", "entropy", "random"])
def test_it_takes_the_best_score_of_whatever_proposes(proposer: str) -> None:
    found = proposal(proposer)
    chosen = resolve(f"{proposer}+sequential").select.select(found, None, None)
    assert chosen.nonzero().tolist() == [[0, int(found.score[0].argmax())]]


@pytest.mark.parametrize("family", FAMILIES)
def test_it_is_the_naive_rule(family: str) -> None:
    compare(toy(family, seed=1, sharp=1.2), "sequential", naive.sequential, prompts(LENGTHS, seed=1), NEW)


def test_it_is_exact_unless_a_cache_is_not() -> None:
    exact = {spec: resolve(spec).exact for spec in ("sequential", "sequential+eos", "sequential@dual")}
    assert exact == {"sequential": "greedy", "sequential+eos": "greedy", "sequential@dual": "relaxed"}
