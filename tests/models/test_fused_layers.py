"""Layers run as one call of the kernels in C give what they give one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pardec.models.decoder import Decoder
from pardec.models.decoder_config import AttentionConfig
from pardec.models.kernels.cpu import attention, layers, panels
from pardec.models.kernels.cpu.block_rounding import rounded
from pardec.models.kernels.cpu.layers import LayersInC
from pardec.models.layers.fused_layers import FusedLayers
from pardec.models.plan import Plan, TargetStates, Visible
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


@torch.inference_mode()
def test_plain_matrices_without_their_kernel_run_one_by_one(
    calls: list[range], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A compiler that fails once may leave one kernel out of several."""
    network, plan = decoder("plain"), Plan.full(ids(1, 5), Visible.causal())
    expected = network(plan).logits()
    assert calls
    calls.clear()
    monkeypatch.setattr(panels, "kernel", lambda: None)
    torch.testing.assert_close(decoder("plain")(plan).logits(), expected, rtol=1e-4, atol=1e-4)
    assert not calls


@pytest.mark.parametrize("wanted", [TargetStates(), TargetStates((0, 1)), TargetStates((1,), normed=True)], ids=str)
@pytest.mark.parametrize("shape", [{}, {"qkv_bias": True, "qk_norm": True}, {"embedding_scale": 3.0}], ids=str)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_chain_of_one_row_equals_forward(kind: str, shape: dict[str, Any], wanted: TargetStates) -> None:
    """A prompt, then chains of one token and of several, in a cache that grows and past the first rotary table."""
    network, tokens = decoder(kind, **shape), ids(1, 90)
    if kind != "plain":
        network.head.weight = nn.Parameter(packed(network.head.weight.data, kind), requires_grad=False)
    if kind not in ("plain", "blocks"):  # the others' embeddings are looked up row by row, or in Python from panels
        network.embed.weight = nn.Parameter(packed(network.embed.weight.data, kind), requires_grad=False)
    ours, theirs = network.new_cache(1, 64), network.new_cache(1, 100)
    for cache in (ours, theirs):
        network(Plan.full(tokens[:, :60], Visible.causal()), cache)
    chain = network.chain(ours, wanted)
    for start, stop in ((60, 61), (61, 64), (64, 65), (65, 78), (78, 90)):
        if start == 64:
            ours.grow(100)
        place, want = torch.arange(start, stop)[None], torch.arange(stop - start)[None]
        known: dict[str, Any] = {"uniform": stop, "span": (start, stop), "hidden": wanted.layers}
        plan = Plan(tokens[:, start:stop], place, place, Visible.causal(), torch.tensor([stop]), want, **known)
        hidden = network(plan, theirs)
        found = chain.run(tokens[:, start:stop], start)
        logits, states = found
        assert torch.equal(logits, hidden.logits(in_order=True))
        assert (states is None) == (wanted == TargetStates())
        assert states is None or torch.equal(states, wanted.of(hidden))
    for one, other in zip((*ours.k, *ours.v), (*theirs.k, *theirs.v), strict=True):
        assert torch.equal(one[:, :90], other[:, :90])


@torch.inference_mode()
def test_chain_reads_replaced_weights() -> None:
    network, tokens = decoder("plain"), ids(1, 9)
    cache = network.new_cache(1, 20)
    chain = network.chain(cache, TargetStates())
    network(Plan.full(tokens[:, :8], Visible.causal()), cache)
    seen = []
    for name in ("", "layer", "norm", "head", "embed"):
        if name == "layer":
            network.layers[1].mlp_norm = nn.Parameter(torch.full((SHAPE["width"],), 0.5), requires_grad=False)
        elif name:
            weight = getattr(network, name).weight
            getattr(network, name).weight = nn.Parameter(weight.flip(0) * 2, requires_grad=False)
        found = chain.run(tokens[:, 8:], 8)
        seen.append(found[0])
        place = torch.tensor([[8]])
        plan = Plan(tokens[:, 8:], place, place, Visible.causal(), torch.tensor([9]), place - 8, uniform=9, span=(8, 9))
        torch.testing.assert_close(found[0], network(plan, cache).logits(), rtol=1e-4, atol=1e-4)
    assert all(not torch.allclose(one, other) for one, other in pairwise(seen))


@pytest.mark.parametrize("name", ["window", "attention_cap", "logit_cap", "attention_sink", "each"])
def test_chain_is_not_made_for_other_attention(name: str) -> None:
    network = decoder()
    config: Any = network.config
    network.config = replace(config, **{name: (AttentionConfig(config.frequencies),) * 3 if name == "each" else 8})
    assert network.chain(network.new_cache(1, 20), TargetStates()) is None


def test_chain_is_not_made_for_several_rows_or_what_a_hook_sees() -> None:
    network = decoder()
    assert network.chain(network.new_cache(2, 20), TargetStates()) is None
    assert network.chain(network.new_cache(1, 20), TargetStates((1, 0))) is None
    assert network.chain(network.new_cache(1, 20), TargetStates((-1,))) is None
    hook = network.head.register_forward_hook(lambda *_: None)
    assert network.chain(network.new_cache(1, 20), TargetStates()) is None
    hook.remove()
    chain = network.chain(network.new_cache(1, 20), TargetStates())
    assert chain.run(ids(1, 1), 0) is None, "gradients are on"


@torch.inference_mode()
def test_chain_does_not_run_while_operations_are_followed_or_layers_do_more() -> None:
    network = decoder()
    chain = network.chain(network.new_cache(1, 20), TargetStates())
    assert chain.run(ids(1, 1), 0) is not None
    with FlopCounterMode(display=False):
        assert chain.run(ids(1, 1), 0) is None
    network.layers[0].register_parameter("out_bias", nn.Parameter(torch.zeros(SHAPE["width"])))
    assert chain.run(ids(1, 1), 0) is None


@pytest.mark.parametrize("token", [-1, 50, 2**40])
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_chain_refuses_what_is_no_token(kind: str, token: int) -> None:
    network = decoder(kind)
    if "activations" in kind:
        network.embed.weight = nn.Parameter(packed(network.embed.weight.data, kind), requires_grad=False)
    chain = network.chain(network.new_cache(1, 20), TargetStates())
    with pytest.raises(IndexError, match=str(token)):
        chain.run(torch.tensor([[3, token]]), 0)


@pytest.mark.parametrize("lacking", [panels, attention])
def test_layers_run_one_by_one_where_a_kernel_that_they_call_could_not_be_compiled(
    lacking: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lacking, "kernel", lambda: None)
    found, run = layers._kernels.__wrapped__()
    assert found is None
    assert run is None
