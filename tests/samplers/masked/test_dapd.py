"""`dapd`: an independent set of positions that attend to each other, then confident ones; by hand and naive."""

from __future__ import annotations

import math

import pytest

from tests.reference import naive_dependence as naive
from tests.samplers.dependence_parity import MODELS, compare, model_of, steps_with


def test_eight_tokens_by_hand() -> None:
    # Nothing attends to anything: all at once, however unsure.
    assert steps_with("dapd:share=1", {}) == [0] * 8
    # 0 and 4 attend to each other, .2 both ways together, and so do 4 and 7: 4, the surest, waits for neither; then
    # 2 of 8 are open, and .95 is sure.
    edges = {(0, 4): 0.2, (4, 7): 0.3}
    assert steps_with("dapd:share=1", edges) == [1, 0, 0, 0, 0, 0, 0, 1 + 1]
    # With switch=0 the second step is again one of independence.
    assert steps_with("dapd:share=1,switch=0", edges) == [1, 0, 0, 0, 0, 0, 0, 1]
    # Mutual attention .1 is no dependence above first=.1.
    assert steps_with("dapd:share=1,first=0.1", {(0, 4): 0.2}) == [0] * 8
    assert steps_with("dapd:share=1,first=0.09", {(0, 4): 0.2}) == [1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", MODELS)
def test_it_is_the_naive_rule(name: str) -> None:
    layers = model_of(name).layers
    together = 0
    for first, last, switch, tau, share in ((0.01, 0.05, 0.5, 0.2, 0.3), (0.03, 0.06, 0.3, 0.1, 1.0)):
        spec = f"dapd:first={first},last={last},switch={switch},tau={tau},share={share}"
        count = max(1, math.ceil(share * layers))
        together += compare(
            name,
            spec,
            lambda first=first, last=last, switch=switch, tau=tau, count=count: naive.Dapd(  # type: ignore[misc]
                first=first, last=last, switch=switch, tau=tau, layers=count
            ),
        )
    assert together > 5
