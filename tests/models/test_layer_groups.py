"""Groups of layers that run on the same input: compared with the written-out sum; the groups; refusals."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.layers.layer_groups import group_of, stages
from pardec.models.plan import Plan, Visible
from pardec.samplers.speculative.draft.model import check_parallel
from tests.samplers.ar_toys import toy_ar

TEXTS = torch.tensor([[1, 3, 0, 2, 4, 4], [2, 2, 1, 0, 3, 1]])


def naive(model: Any, size: int) -> torch.Tensor:
    """Logits computed by whole-stack forwards in which attention and MLP of a group's layers read the group's input."""
    plan = Plan.full(TEXTS, Visible.causal())

    def through(h: torch.Tensor, layer: int, *skip: str) -> torch.Tensor:
        part = slice(layer, layer + 1)
        made = replace(plan, soft=h, layers=part, skip=frozenset((layer, each) for each in skip))
        return model.decoder(made).states

    h = model.decoder(replace(plan, layers=slice(0, 1))).states
    layer = 1
    while layer < model.layers:
        group = range(layer, min(layer + size, model.layers))
        if len(group) == 1:
            h = through(h, layer)
        else:
            h = h + sum(through(h, each, other) - h for each in group for other in ("attn", "mlp"))
        layer = group.stop
    return model.decoder.project(h.flatten(0, 1)).view(*TEXTS.shape, -1)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_a_group_adds_what_each_part_adds_to_its_input(size: int) -> None:
    model = toy_ar(3, 5, 2.0, layers=6)
    plan = replace(Plan.full(TEXTS, Visible.causal()), parallel=size, narrow=size > 1)
    with torch.inference_mode():
        assert torch.allclose(model.run(plan).logits(), naive(model, size), atol=1e-5)
        exact = model.run(Plan.full(TEXTS, Visible.causal())).logits()
        assert torch.allclose(exact, naive(model, size), atol=1e-3) == (size == 1)


def test_layers_fall_into_groups_behind_the_first() -> None:
    for layers, size in ((1, 3), (2, 2), (30, 4), (7, 7)):
        groups = list(dict.fromkeys(group_of(layer, layers, size) for layer in range(layers)))
        assert [layer for group in groups for layer in group] == list(range(layers))
        assert groups[0] == range(1)
        assert max(map(len, groups)) <= size
        assert len(groups) == stages(layers, size)


def test_a_stack_that_cannot_is_refused() -> None:
    check_parallel(toy_ar(3, 5))
    with pytest.raises(ModelError, match="cannot run in parallel"):
        check_parallel(SimpleNamespace(decoder=None, processes=1, name="other"))  # type: ignore[arg-type]
    for more in ({"parallel": 0}, {"parallel": 2, "layers": slice(0, 1)}):
        with pytest.raises(ModelError, match="needs the whole stack"):
            toy_ar(3, 5).forward(replace(Plan.full(TEXTS, Visible.causal()), **more))
