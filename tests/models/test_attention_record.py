"""Recorded attention compared with eager attention, and the cases that are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pardec.models.errors import CacheError, ModelError
from pardec.models.layers import layer_hooks
from pardec.models.layers.layer_hooks import mean_attention
from pardec.models.plan import Plan
from tests.models.toys import ids, model, poisoned
from tests.reference.naive_attention import Eager


@pytest.mark.parametrize(("cap", "sink"), [(None, False), (2.0, False), (None, True)])
@pytest.mark.parametrize("room", [1 << 26, 1])
def test_the_mean_over_heads_is_the_definition(
    cap: float | None, sink: bool, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layer_hooks, "_BYTES", room)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, size, heads, 8, generator=generator) * 2 for size, heads in ((5, 6), (7, 3)))
    visible = torch.rand(2, 5, 7, generator=generator) < 0.6
    visible[0, 1] = False
    k[1, 6], visible[1, :, 6] = torch.nan, False
    got = mean_attention(q, k, visible, cap, sink=sink)
    assert got.shape == (2, 5, 7)
    for row in range(2):
        for query in range(5):
            each = torch.zeros(7, dtype=torch.float64)
            for head in range(6):
                scores = (k[row, :, head // 2].double() @ q[row, query, head].double()) / 8**0.5
                scores = scores if cap is None else cap * (scores / cap).tanh()
                chosen = visible[row, query]
                if chosen.any():
                    weights = scores[chosen].exp()
                    each[chosen] += weights / (sink + weights.sum()) / 6
            torch.testing.assert_close(got[row, query].double(), each, rtol=0, atol=1e-6)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("narrow", [False, True])
def test_layers_keep_that_of_the_queries_named(window: int | None, narrow: bool) -> None:
    toy = model("causal", window=window)
    tokens, lengths = ids(3, 9), torch.tensor([9, 6, 1])
    attending = torch.tensor([[8, 2, -1], [0, 5, 3], [0, -1, -1]])
    plan = Plan.full(tokens, toy.visible(), lengths)
    plan = replace(
        plan, attention=(0, 2), attending=attending, narrow=narrow, want=torch.zeros(3, 1, dtype=torch.int64)
    )
    cache = poisoned(toy.new_cache(3, 12))
    got, bare = toy.forward(plan, cache), toy.forward(plan)
    every = toy.forward(replace(plan, attending=None), cache)
    assert set(got.attention) == {0, 2}
    for row, length in enumerate(lengths.tolist()):
        eager = Eager(toy, length, lambda p, s: s <= p and (window is None or s > p - window))
        _, maps = eager.forward(tokens[row].tolist(), range(length))
        for layer, weights in got.attention.items():
            for at, query in enumerate(attending[row].tolist()):
                if query < 0:
                    assert not weights[row, at].any()
                    continue
                torch.testing.assert_close(weights[row, at, :length].double(), maps[layer][query], rtol=0, atol=1e-5)
                assert not weights[row, at, length:].any()
            torch.testing.assert_close(bare.attention[layer][row], weights[row, :, :9], rtol=0, atol=1e-6)
            whole = every.attention[layer][row]
            torch.testing.assert_close(whole[:length, :length].double(), maps[layer], rtol=0, atol=1e-5)
            assert not whole[length:].any()


def test_a_cache_that_is_read_in_parts_keeps_none() -> None:
    toy = model("causal")
    cache = toy.new_cache(2, 8, shared=3)
    at = torch.tensor([[3, 4], [3, 4]])
    plan = Plan(ids(2, 2), at, at, toy.visible(), torch.full((2,), 5), torch.zeros(2, 1, dtype=torch.int64))
    with pytest.raises(CacheError, match="this cache has its own reader"):
        toy.forward(replace(plan, attention=(0,)), cache)


def test_layers_that_are_not_there_are_refused() -> None:
    toy = model("causal")
    plan = Plan.full(ids(1, 3), toy.visible())
    with pytest.raises(ModelError, match=r"attention names layers \[7\]; toy has 0..2"):
        toy.forward(replace(plan, attention=(7,)))
    with pytest.raises(ModelError, match="each process has a part of its heads"):
        replace(toy, processes=2).forward(replace(plan, attention=(0,)))
