"""The contract of caches of masked models: they compute enough positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.masked.contracts import Cache, QuerySpec
from pardec.samplers.masked.loop import decode
from tests.samplers.cache_checks import (
    LENGTHS,
    NEW,
    agree,
    stale,
)
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, request, same, toy

ORDERED = ("dkv_greedy:refresh=0,window=0", "dkv_greedy:refresh=3,window=2")
SOUND = (
    "prefix", "dual:refresh=5", "vicinity:before=2,after=1,warmup=2", "dkv:refresh=0", "dkv:refresh=3,settle=next",
    "dkv:refresh=0,settle=both,full=2", "dkv:refresh=2,settle=self,prompt=keep", "block", *ORDERED,
)  # fmt: skip
SELECTS = (
    "sequential", "threshold:tau=0.4", "origin:steps=40", "random+fixed:steps=6", "remdm+threshold:tau=0.4",
    "wino+threshold:tau=0.4", "edit+threshold:tau=0.4",
)  # fmt: skip


def fitting(family: str, select: str, cache: str) -> bool:
    """Whether family, select and cache can be combined."""
    if cache == "block" and FAMILIES[family][1] != "block-causal":
        return False
    return cache not in ORDERED or "random" in select


@pytest.mark.parametrize("cache", SOUND)
@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(2)
def test_every_forward_sees_the_tokens_that_stand_there(family: str, select: str, cache: str) -> None:
    if not fitting(family, select, cache):
        return
    rows = [prompt + [MASK] * new for prompt, new in zip(prompts(LENGTHS), NEW, strict=True)]
    rows[0][8] = 3  # given, as by a template
    distributions: list[dict[str, Any]] = [{}, {"temperature": 0.8, "cfg": 1.5}]
    if FAMILIES[family][1] == "bidirectional":
        distributions.append({"block_length": 10})
    distribution = distributions[sum(map(ord, family + select + cache)) % len(distributions)]
    count, got = stale(toy(family, seed=2, sharp=1.2), f"{select}@{cache}", rows, list(LENGTHS), **distribution)
    assert count == 0
    assert not (got.tokens == MASK).any()
    if "origin" in select:  # idle steps between commits are the trap
        assert any((np.diff(clocks) > 1).any() for clocks in got.trace.clocks)


@pytest.mark.parametrize(
    "cache", ["prefix", "dual", "vicinity:before=2,after=1,warmup=0", "es:depth1=0,depth2=0", "dkv"]
)
@pytest.mark.parametrize("block", ["slowfast:tau=0.05", "dsb", "dsb:most=6", "dcd", "multiblock:add=0.2"])
@pytest.mark.covers(2)
def test_forwards_of_a_moving_block_see_the_tokens_that_stand_there(block: str, cache: str) -> None:
    """A block may move away from what the last forward committed or edited in it."""
    spec = f"{block}+threshold:tau=0.3+edit:tau=0.1@{cache}"
    for seed in range(3):
        rows = [prompt + [MASK] * 17 for prompt in prompts((5, 3), seed=seed)]
        assert stale(toy("llada", sharp=1.2, seed=seed), spec, rows, [5, 3], block_length=8)[0] == 0


@pytest.mark.parametrize("cache", ["dual:refresh=7", "vicinity:warmup=0,refresh=7", "dkv:refresh=7"])
def test_a_refresh_that_falls_on_an_idle_step_is_made_at_the_next_forward(cache: str) -> None:
    spec = f"origin:steps=24@{cache}"
    got = fill(toy("llada", sharp=1.2), spec, prompts((30,)), 8, block_length=8)
    clocks = got.trace.clocks[0]
    due = [now // 7 > before // 7 for before, now in zip((-1, *clocks), clocks, strict=False)]
    assert [len(positions) == 38 for positions in got.trace.fed[0]] == [True, *due[1:]]
    assert any(late and now % 7 for late, now in zip(due[1:], clocks[1:], strict=True))


@pytest.mark.parametrize("cache", ["none", "prefix", "dual"])
def test_without_attention_no_cache_changes_anything(cache: str) -> None:
    model = toy(seed=4, sharp=1.2)
    for layer in model.decoder.layers:
        layer.out_weight.zero_()
    plain = fill(model, "threshold:tau=0.4", prompts(LENGTHS), NEW)
    assert agree(fill(model, f"threshold:tau=0.4@{cache}", prompts(LENGTHS), NEW), plain)


@pytest.mark.parametrize("family", FAMILIES)
def test_guidance_of_one_is_no_guidance(family: str) -> None:
    for cache in ("none", "dual"):
        model, given = toy(family, seed=1, sharp=1.2), prompts(LENGTHS)
        guided = fill(model, f"threshold:tau=0.4@{cache}", given, NEW, cfg=1.0)
        plain = fill(model, f"threshold:tau=0.4@{cache}", given, NEW)
        assert agree(guided, plain)
        assert guided.forward_rows == tuple(2 * nfe for nfe in plain.nfe)
        assert guided.tokens_fed == tuple(2 * fed for fed in plain.tokens_fed)


@dataclass(frozen=True)
class AsMask(Cache):
    """A cache that queries the span of `inner` as a mask, without the positions in `holes`."""

    inner: Any
    holes: tuple[int, ...] = ()

    def start(self, canvas: Any) -> Any:
        return self.inner.start(canvas)

    def query(self, canvas: Any, state: Any) -> QuerySpec:
        span = self.inner.query(canvas, state)
        place = np.arange(canvas.length)
        mask = (place >= span.start[:, None]) & (place < span.stop[:, None])
        mask[:, list(self.holes)] = False
        return QuerySpec(span.start, span.stop, torch.from_numpy(mask))


def with_cache(family: str, cache: Any, given: list[list[int]], new: tuple[int, ...], **options: Any) -> Finished:
    sampler = registry.resolve("threshold:tau=0.4@dual")
    sampler = type(sampler)(**{n: getattr(sampler, n) for n in sampler.__dataclass_fields__} | {"cache": cache})
    rows = [row + [MASK] * count for row, count in zip(given, new, strict=True)]
    asked = request(rows, [len(row) for row in given], absolute=FAMILIES[family][1] == "block-causal", **options)
    *_, last = decode(toy(family, seed=1, sharp=1.2), sampler, asked)
    assert isinstance(last, Finished)
    return last


@pytest.mark.parametrize("distribution", [{}, {"cfg": 1.7}])
@pytest.mark.parametrize("name", ["prefix", "dual:refresh=2"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(2)
def test_positions_computed_one_by_one_are_the_span(family: str, name: str, distribution: dict[str, Any]) -> None:
    inner = registry.resolve(f"sequential@{name}").cache
    given = prompts(LENGTHS)
    spans = with_cache(family, inner, given, NEW, **distribution)
    single = with_cache(family, AsMask(inner), given, NEW, **distribution)
    for row in range(3):
        assert agree(spans, single)
        fed = [tuple(asked) for asked in spans.trace.fed[row]]
        shifted = FAMILIES[family][0]
        if not shifted:
            assert [tuple(asked) for asked in single.trace.fed[row]] == fed
    alone = with_cache(family, AsMask(inner), given[1:2], NEW[1:2], seeds=[101], **distribution)
    assert same(alone, 0, single, 1)


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_what_is_open_is_computed_even_if_the_cache_leaves_it_out(family: str) -> None:
    shift = FAMILIES[family][0]
    got = with_cache(family, AsMask(registry.resolve("sequential@dual").cache, holes=(5, 6, 7, 8)), prompts((5,)), (8,))
    assert (got.tokens != MASK).all()
    for number, step in enumerate(got.trace.steps[0]):
        assert {p - shift for p in step.positions} <= set(step.fed), number


def test_the_first_forward_is_full_whatever_the_cache_queries() -> None:
    class Nothing(AsMask):
        def query(self, canvas: Any, state: Any) -> QuerySpec:
            return QuerySpec(canvas.block_start, canvas.block_start)

    got = with_cache("llada", Nothing(registry.resolve("sequential@dual").cache), prompts((5,)), (4,))
    assert got.trace.fed[0][0] == range(9)
    assert all(asked == range(5, 9) for asked in got.trace.fed[0][1:])


def test_stale_keys_are_what_is_seen() -> None:
    """With the toys, a cache changes predictions, so that tests of the computed positions can fail."""
    (prompt,) = prompts((5,), seed=3)
    model = toy("llada", sharp=1.2)
    results = [fill(model, f"sequential@{cache}", [prompt], 10).tokens.tolist() for cache in ("none", "prefix", "dual")]
    assert results[0] != results[1]
    assert results[1] != results[2]
