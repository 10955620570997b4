"""`dapd`: an independent set of positions that attend to each other, then confident ones; by hand and naive."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pardec.samplers.registry import resolve
from tests.reference import naive_dependence as naive
from tests.samplers.dependence_parity import MODELS, compare, model_of, steps_with
from tests.samplers.toys import altered, fill, toy


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


def test_a_candidate_as_likely_as_tau_is_not_confident() -> None:
    """Two tokens are equally likely everywhere, and everything depends on everything in the first step."""

    def halves(logits: Tensor) -> Tensor:
        return torch.full_like(logits, -1e4).index_fill(1, torch.arange(2), 0.0)

    model = altered(toy(), halves)
    assert fill(model, "dapd:first=0,switch=1,tau=0.5", [[3]], 4, block_length=4).nfe == (4,)
    assert fill(model, "dapd:first=0,switch=1,tau=0.49", [[3]], 4, block_length=4).nfe == (2,)


@pytest.mark.parametrize(("share", "layers", "read"), [(0.3, 10, (7, 8, 9)), (0.75, 2, (0, 1)), (0.01, 4, (3,))])
def test_the_number_of_layers_is_rounded_up(share: float, layers: int, read: tuple[int, ...]) -> None:
    spec = resolve(f"dapd:share={share}").select.reads_attention(layers)
    assert spec is not None
    assert spec.layers == read
