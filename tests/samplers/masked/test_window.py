"""`window`: final tokens keep their K/V, and the computed window slides with the first open position."""

from __future__ import annotations

import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers.registry import resolve
from tests.samplers.cache_checks import agree, queried
from tests.samplers.toys import fill, prompts, toy


def test_what_is_computed_by_hand() -> None:
    """The window begins at the first open position of the forward before, so that its token is stored as final."""
    got = fill(toy("wedlm"), "leftmost+sequential@window", prompts((5,)), 6)
    spans = [(0, 9), (5, 10), (6, 11), (7, 11), (8, 11), (9, 11)]
    assert queried(got) == [tuple(range(*span)) for span in spans]
    got = fill(toy("wedlm"), "leftmost+sequential@window:slide=false", prompts((5,)), 6)
    spans = [(0, 9), (5, 9), (6, 9), (7, 9), (8, 11), (9, 11)]
    assert queried(got) == [tuple(range(*span)) for span in spans]


@pytest.mark.parametrize("select", ["threshold:tau=0.4", "sequential", "wedlm:tau=1.5"])
@pytest.mark.parametrize("options", [{}, {"temperature": 0.8}, {"cfg": 1.5}])
@pytest.mark.covers(2)
def test_block_after_block_it_changes_nothing(select: str, options: dict[str, float]) -> None:
    model, given, new = toy("wedlm", seed=1, sharp=1.2), prompts((5, 2, 9)), (10, 7, 4)
    cached, plain = (
        fill(model, f"{select}@{cache}", given, new, **options) for cache in ("window:slide=false", "none")
    )
    assert agree(cached, plain)
    assert sum(cached.tokens_fed) < sum(plain.tokens_fed)


def test_what_is_refused() -> None:
    with pytest.raises(SpecError, match="divides its steps among blocks, and a sliding window has no blocks"):
        resolve("fixed:steps=4@window")
    for family in ("llada", "sdar", "nemotron"):
        with pytest.raises(SpecError, match="the cache 'window' is for"):
            pardec.Model(toy(family)).prepare(input_ids=[[1, 2]], sampler="threshold@window", max_new_tokens=4)
    assert resolve("sequential@window").exact == "greedy"
