"""Layers run as one call of the kernels in C give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pardec.models.decoder import Decoder, FusedLayers
from pardec.models.kernels.cpu import panels
from pardec.models.kernels.cpu.block_rounding import rounded
from pardec.models.kernels.cpu.layers import LayersInC
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids, model

pytestmark = pytest.mark.usefixtures("in_c")

SHAPE = {"width": 64, "head_dim": 16, "mlp_width": 96}
MATRICES = "qkv_weight", "out_weight", "gate_up_weight", "down_weight"
KINDS = "plain", "panels", "blocks", "int8 activations"


def packed(weight: Tensor, kind: str) -> Tensor:
    if kind == "plain":  # column by column, as models are loaded
        return weight.t().contiguous().t()
    if kind == "panels":
        own = panels.empty(*weight.shape)
        own.fill(weight)
        return own
    return rounded("Q8_0", weight, weight.dtype, "int8" if kind == "int8 activations" else "float32")


def decoder(kind: str = "panels", **shape: Any) -> Decoder:
    network = model(**(SHAPE | shape)).decoder
    assert isinstance(network, Decoder)
    for layer in network.layers:
        for name in MATRICES:
            setattr(layer, name, nn.Parameter(packed(getattr(layer, name).data, kind), requires_grad=False))
    return network


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[range]:
    """The layers of each call."""
    found: list[range] = []
    whole = LayersInC.forward

    def forward(self: LayersInC, *args: Any, **more: Any) -> Tensor:
        found.append(more["layers"])
        return whole(self, *args, **more)

    monkeypatch.setattr(LayersInC, "forward", forward)
    return found


def same(network: Decoder, run: Callable[[], list[Tensor]], exact: bool) -> None:
    """Asserts that `run` gives the same with fused layers and without."""
    fused = run()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FusedLayers, "run", lambda *_: None)
        plain = run()
    for one, other in zip(fused, plain, strict=True):
        if exact:
            assert torch.equal(one, other)
        else:
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def prompt(network: Decoder) -> list[Tensor]:
    """A prompt of more queries than a part of causal attention has, and the steps after it."""
    cache, tokens = network.new_cache(2, 90), ids(2, 80)
    states = [network(Plan.full(tokens[:, :70], Visible.causal()), cache).states]
    for start, stop in ((70, 71), (71, 76), (76, 80)):
        place = torch.arange(start, stop).expand(2, -1)
        lengths, want = torch.full((2,), stop), torch.arange(stop - start).expand(2, -1)
        known: dict[str, Any] = {"uniform": stop, "span": (start, stop)}
        plan = Plan(tokens[:, start:stop], place, place, Visible.causal(), lengths, want, **known)
        states.append(network(plan, cache).states)
    return [*states, *cache.k, *cache.v]


def ragged(network: Decoder) -> list[Tensor]:
    """Rows of other lengths, without values that the host knows."""
    cache, tokens = network.new_cache(2, 30), ids(2, 20)
    network(Plan.full(tokens, Visible.causal()), cache)
    place = torch.tensor([[12, 13, 14], [18, 19, 20]])
    return [network(ask(tokens[:, :3], place, Visible.causal(), place[:, -1] + 1), cache).states]


def tree(network: Decoder) -> list[Tensor]:
    cache, tokens = network.new_cache(1, 40), ids(1, 30)
    network(Plan.full(tokens[:, :20], Visible.causal()), cache)
    parents, base = torch.tensor([-1, 0, 0, 1, 2]), torch.tensor([20])
    places = torch.tensor([[20, 21, 21, 22, 22]])
    slots, want = torch.arange(20, 25)[None], torch.arange(5)[None]
    plan = Plan(tokens[:, 20:25], places, slots, Visible.tree(parents, base), base + 5, want, uniform=25)
    return [network(plan, cache).states]


def canvas(network: Decoder) -> list[Tensor]:
    """Masked positions: all see all, and few are wanted."""
    whole = Plan.full(ids(2, 24), Visible.bidirectional())
    few = replace(whole, want=torch.tensor([[3, 7], [20, 21]]), narrow=True)
    return [network(whole).states, network(few).states]


def taps(network: Decoder) -> list[Tensor]:
    hidden = network(replace(Plan.full(ids(1, 9), Visible.causal()), hidden=(-1, 0, 1)))
    return [hidden.states, *(hidden.taps[index] for index in (-1, 0, 1))]


@pytest.mark.parametrize("run", [prompt, ragged, tree, canvas, taps], ids=lambda run: run.__name__)
@pytest.mark.parametrize("shape", [{}, {"qkv_bias": True}, {"qk_norm": True}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_layers_at_once_are_the_layers_one_by_one(
    run: Callable[[Decoder], list[Tensor]], shape: dict[str, Any], kind: str, calls: list[range]
) -> None:
    network = decoder(kind, **shape)
    same(network, lambda: run(network), exact=kind != "plain")
    assert calls


@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_rows_that_go_through_an_mlp_in_parts_are_those_of_layers_one_by_one(kind: str, calls: list[range]) -> None:
    """A batch with more rows than a part of layers.c has."""
    network = decoder(kind)
    whole = Plan.full(ids(3, 210), Visible.causal())
    same(network, lambda: [network(whole).states], exact=kind != "plain")
    assert calls


@torch.inference_mode()
def test_replaced_weights_are_read(calls: list[range]) -> None:
    network, tokens = decoder("plain"), Plan.full(ids(1, 5), Visible.causal())
    before = network(tokens).states
    network.layers[1].mlp_norm = nn.Parameter(torch.full((SHAPE["width"],), 0.5), requires_grad=False)
    network.layers[0].down_weight.mul_(2)
    assert not torch.allclose(network(tokens).states, before)
    same(network, lambda: [network(tokens).states], exact=False)
    assert len(calls) == 3


@pytest.mark.parametrize(
    "shape",
    [{"out_bias": True}, {"activation": "gelu"}, {"post_norms": True}, {"clip_qkv": 1.0}, {"attention_cap": 5.0}],
)
@torch.inference_mode()
def test_layers_that_do_more_run_one_by_one(shape: dict[str, Any], calls: list[range]) -> None:
    decoder(**shape)(Plan.full(ids(1, 5), Visible.causal()))
    assert not calls
