"""Compact caches compared with full caches and masks, for random choices of slots per layer and head."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.caches.compact_cache import CompactCache
from pardec.models.caches.kv_cache import KVCache, Reader, attend_hidden
from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.errors import CapacityError
from pardec.models.kernels.attention import AttentionPattern, visible_slots
from pardec.models.plan import Plan, Visible

LAYERS, HEADS, TEXT = 3, 2, 14


def decoder() -> Decoder:
    made = Decoder(
        DecoderConfig(
            vocab=11, width=16, layers=LAYERS, heads=4, kv_heads=HEADS, head_dim=8, mlp_width=24, norm_eps=1e-6,
            frequencies=(1.0, 0.3, 0.1, 0.03),
        )
    )  # fmt: skip
    rng = np.random.RandomState(2)
    with torch.no_grad():
        for weight in made.parameters():
            if weight.dim() > 1:
                weight.copy_(torch.from_numpy(rng.standard_normal(weight.shape)) * 0.5)
    return made.double().eval().requires_grad_(False)


def fed(network: Decoder, lengths: list[int], capacity: int = 24) -> KVCache:
    """A cache with random texts of these lengths."""
    tokens = torch.from_numpy(np.random.RandomState(0).randint(0, 11, (len(lengths), max(lengths))))
    cache = network.new_cache(len(lengths), capacity)
    network(Plan.full(tokens, Visible.causal(), torch.tensor(lengths)), cache)
    return cache


def plan(lengths: list[int], visible: Visible | None = None) -> Plan:
    """Four nodes after texts of these lengths: a chain, or a tree."""
    base = torch.tensor(lengths)
    order, depth = torch.arange(4).expand(len(lengths), 4), torch.arange(4)
    if visible is not None:
        depth = torch.tensor([0, 1, 1, 2])
    return Plan(
        tokens=(base[:, None] * 3 + order) % 11,
        positions=base[:, None] + depth,
        slots=base[:, None] + order,
        visible=Visible.causal() if visible is None else replace(visible, base=base),
        lengths=base + 4,
        want=order,
    )


TREE = Visible.tree(torch.tensor([-1, 0, 0, 2]), torch.tensor([0]))


class Masked(Reader):
    """The full cache, in which the slots that are not chosen are hidden."""

    def __init__(self, hidden: list[Tensor]) -> None:
        self.hidden = hidden

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, cap: float | None
    ) -> Tensor:
        return attend_hidden(q, k, v, pattern, self.hidden[layer])


def chosen(
    lengths: list[int], first: list[int], counts: list[int], *, holes: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Random slots [B, N, K] of each layer below `first`, and the slots [B, S, K] that the choice hides."""
    rng = np.random.RandomState(len(lengths) + holes)
    slots, hidden = [], []
    for _ in range(LAYERS):
        own = np.full((len(lengths), max(counts), HEADS), -1)
        gone = np.zeros((len(lengths), 24, HEADS), dtype=bool)
        for row, (stop, count) in enumerate(zip(first, counts, strict=True)):
            gone[row, :stop] = True
            for head in range(HEADS):
                some = rng.permutation(stop)[:count]
                own[row, :count, head] = some
                if holes and count > 1:
                    own[row, rng.randint(count), head] = -1
                gone[row, [slot for slot in own[row, :, head] if slot >= 0], head] = False
        slots.append(torch.from_numpy(own))
        hidden.append(torch.from_numpy(gone))
    return slots, hidden


@pytest.mark.parametrize("visible", [None, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("lengths", [[TEXT], [TEXT, 9, 6]], ids=["alone", "ragged"])
def test_it_gives_what_the_full_cache_gives_with_all_else_masked(
    visible: Visible | None, holes: bool, lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    network = decoder()
    full = fed(network, lengths)
    first, counts = [length - 2 for length in lengths], [5, 7, 4][: len(lengths)]
    slots, hidden = chosen(lengths, first, counts, holes=holes)
    compact = CompactCache(full, batch=len(lengths), slots=16, reach=full.capacity)
    compact.fill(full, np.arange(len(lengths)), slots, np.array(first), np.array(lengths))
    asked = plan(lengths, visible)
    if len(lengths) == 1:  # what the host knows of a row alone
        chain = {"span": (TEXT, TEXT + 4)} if visible is None else {}
        asked = replace(asked, uniform=TEXT + 4, **chain)
    given = network(asked, compact).logits()
    monkeypatch.setattr(full, "reader", lambda *_: Masked(hidden))
    torch.testing.assert_close(given, network(asked, full).logits(), rtol=0, atol=1e-6)  # logits are float32
    states = network(asked, full).states
    torch.testing.assert_close(network(asked, compact).states, states, rtol=0, atol=1e-10)


def test_what_is_left_out_may_be_anything() -> None:
    network, lengths = decoder(), [TEXT, 9]
    full = fed(network, lengths)
    first = np.array(lengths) - 2
    slots, hidden = chosen(lengths, first.tolist(), [5, 3], holes=True)
    results = []
    for poison in (False, True):
        if poison:
            for layer, gone in enumerate(hidden):
                for store in (full.k, full.v):
                    store[layer][:, :24][gone] = torch.nan
        compact = CompactCache(full, batch=2, slots=16, reach=24)
        compact.fill(full, np.arange(2), slots, first, np.array(lengths))
        results.append(network(plan(lengths), compact).states)
    assert results[1].isfinite().all()
    assert torch.equal(*results)


def test_rows_are_filled_kept_and_replaced_one_by_one() -> None:
    network, lengths = decoder(), [TEXT, 9, 6]
    full = fed(network, lengths)
    first = np.array(lengths) - 1
    slots, _ = chosen(lengths, first.tolist(), [5, 7, 4], holes=True)
    rows = np.arange(3)
    compact, other = (CompactCache(full, batch=3, slots=16, reach=24) for _ in range(2))
    compact.fill(full, rows, slots, first, np.array(lengths))
    for row in rows[::-1]:  # the same, a row at a time
        one = rows[row : row + 1]
        other.fill(full, one, [each[one] for each in slots], first[one], np.array(lengths)[one])
    whole = network(plan(lengths), compact).states
    assert torch.equal(network(plan(lengths), other).states, whole)
    other.keep(torch.tensor([2, 0]))
    torch.testing.assert_close(network(plan([6, TEXT]), other).states, whole[[2, 0]], rtol=0, atol=1e-12)
    other.keep(torch.tensor([0, 1, 1]))
    other.put(torch.tensor([2, 1, 0]), compact)
    torch.testing.assert_close(network(plan(lengths[::-1]), other).states, whole.flip(0), rtol=0, atol=1e-12)


def test_it_is_filled_from_a_cache_whose_rows_share_their_beginning() -> None:
    network = decoder()
    tokens = torch.arange(8)[None] % 11
    plain, shared = network.new_cache(2, 24), network.new_cache(2, 24, shared=8)
    network(Plan.full(tokens.expand(2, -1), Visible.causal()), plain)
    network(Plan.full(tokens, Visible.causal()), shared.shared)
    for store, own in ((plain.k, shared.k), (plain.v, shared.v)):
        for layer in range(LAYERS):
            store[layer][:, 8:12] = torch.randn(2, 4, HEADS, 8, generator=torch.Generator().manual_seed(layer)).double()
            own[layer][:, :4] = store[layer][:, 8:12]
    slots = [torch.tensor([[[0, 9], [10, 3]]]).expand(2, -1, -1)] * LAYERS
    results = []
    for source in (plain, shared):
        compact = CompactCache(source, batch=2, slots=12, reach=24)
        compact.fill(source, np.arange(2), slots, np.array([11, 11]), np.array([12, 12]))
        results.append(network(plan([12, 12]), compact).states)
    assert torch.equal(*results)


def test_a_plan_beyond_its_slots_is_refused() -> None:
    network = decoder()
    full = fed(network, [TEXT])
    compact = CompactCache(full, batch=1, slots=4, reach=24)
    compact.fill(full, np.arange(1), [torch.zeros(1, 1, HEADS, dtype=torch.int64)] * LAYERS, *([np.array([TEXT])] * 2))
    with pytest.raises(CapacityError, match="5 slots, and the compact cache has 4"):
        network(plan([TEXT]), compact)


def test_the_queries_of_a_plan_are_those_that_meet_the_keys() -> None:
    """Attention computed from the kept queries equals the output of each layer."""
    network = decoder()
    cache = network.new_cache(2, 24)
    tokens = torch.from_numpy(np.random.RandomState(0).randint(0, 11, (2, 7)))
    whole = Plan.full(tokens, Visible.causal(), torch.tensor([7, 5]))
    last = torch.tensor([[6], [4]])
    hidden = network(replace(whole, queries=3, want=last, narrow=True), cache)
    assert [tuple(q.shape) for q in hidden.queries] == [(2, 3, 4, 8)] * LAYERS
    every = network(replace(whole, queries=7, want=torch.full((2, 1), 6), hidden=(-1, 0, 1, 2)), cache)
    for layer, q in enumerate(every.queries):
        assert torch.equal(hidden.queries[layer], torch.stack((q[0, 4:7], q[1, 2:5])))
        weights = torch.einsum("bqhd,bshd->bhqs", q, cache.k[layer][:, :7].repeat_interleave(2, 2)) / 8**0.5
        seen = visible_slots(whole, 7) | torch.eye(7, dtype=torch.bool)
        weights = weights.masked_fill(~seen[:, None], -torch.inf).softmax(-1)
        out = torch.einsum("bhqs,bshd->bqhd", weights, cache.v[layer][:, :7].repeat_interleave(2, 2)).flatten(2)
        part = network.layers[layer]
        mixed = every.taps[layer - 1] + out @ part.out_weight.T
        normed = torch.nn.functional.rms_norm(mixed, (16,), part.mlp_norm, 1e-6)
        gate, up = (normed @ part.gate_up_weight.T).chunk(2, -1)
        result = mixed + (torch.nn.functional.silu(gate) * up) @ part.down_weight.T
        torch.testing.assert_close(result[0], every.taps[layer][0])
        torch.testing.assert_close(result[1, :5], every.taps[layer][1, :5])
    assert network(whole, cache).queries == ()
