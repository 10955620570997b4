"""Caches: against forwards made by hand with the positions that the papers name, and the identities that must hold."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.masked.cache.dkv import DelayedCache
from pardec.samplers.masked.contracts import Cache, Canvas, QuerySpec
from pardec.samplers.masked.loop import decode
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, request, same, toy


class ByHand:
    """One row decoded greedily, the surest first; every forward queries the positions it is told, and no others."""

    def __init__(self, family: str, prompt: list[int], new: int) -> None:
        self.model = toy(family, sharp=1.2)
        self.tokens = [*prompt, *[MASK] * new]
        self.end = len(self.tokens)
        self.cache = self.model.new_cache(1, self.end)
        self.order: list[int] = []

    def step(self, asked: range, block: range) -> None:
        """Feeds the tokens at `asked`, overwriting their K/V, and commits the surest open position of `block`."""
        open_ = [p for p in block if self.tokens[p] == MASK]
        at = torch.tensor([list(asked)])
        rows = [max(p - self.model.decoding_config.shift, 0) for p in open_]
        plan = Plan(
            tokens=torch.tensor([[self.tokens[p] for p in asked]]),
            positions=at,
            slots=at,
            visible=self.model.visible(),
            lengths=torch.tensor([self.end]),
            want=torch.tensor([[asked.index(row) for row in rows]]),
        )
        logits = self.model.forward(plan, self.cache).logits()[0].index_fill(1, torch.tensor([MASK]), -torch.inf)
        best, ids = logits.softmax(-1).max(-1)
        at_best = int(best.argmax())
        self.tokens[open_[at_best]] = int(ids[at_best])
        self.order.append(open_[at_best])


FIRST, SECOND, LAST = range(5, 9), range(9, 13), range(13, 15)  # blocks of 4 after a prompt of 5, ten tokens to come
ALL = range(15)
ASKED: dict[tuple[str, str], list[range]] = {
    ("llada", "none"): [ALL] * 10,
    ("llada", "prefix"): [ALL, *[range(5, 15)] * 3, ALL, *[range(9, 15)] * 3, ALL, range(13, 15)],
    ("llada", "dual"): [ALL, *[range(5, 9)] * 3, ALL, *[range(9, 13)] * 3, ALL, range(13, 15)],
    # Steps 0, 3, 6 and 9 of the clock, and the steps 0, 4 and 8 that enter a block.
    ("llada", "dual:refresh=3"): [
        ALL, FIRST, FIRST, ALL,
        ALL, SECOND, ALL, SECOND,
        ALL, ALL,
    ],
    ("llada", "prefix:refresh=1"): [ALL] * 10,
    # A block's first token is predicted one to the left of the block, which is asked as long as that token is open.
    ("dream", "prefix"): [
        ALL, range(4, 15), range(4, 15), range(4, 15),
        ALL, range(8, 15), range(8, 15), range(9, 15),
        ALL, range(13, 15),
    ],
    ("dream", "dual"): [
        ALL, range(4, 9), range(4, 9), range(4, 9),
        ALL, range(8, 13), range(8, 13), range(8, 13),
        ALL, range(13, 15),
    ],
    ("dream", "dual:refresh=2"): [
        ALL, range(4, 9), ALL, range(5, 9),
        ALL, range(8, 13), ALL, range(9, 13),
        ALL, range(13, 15),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("family", "cache"), ASKED)
def test_a_cache_is_the_positions_that_it_queries(family: str, cache: str) -> None:
    (prompt,) = prompts((5,), seed=3)
    hand = ByHand(family, prompt, 10)
    for number, asked in enumerate(ASKED[family, cache]):
        hand.step(asked, (FIRST, SECOND, LAST)[number // 4])
    got = fill(toy(family, sharp=1.2), f"sequential@{cache}", [prompt], 10)
    assert list(got.trace.fed[0]) == ASKED[family, cache]
    assert got.tokens[0].tolist() == hand.tokens
    assert got.trace.commit_step[0, 5:].argsort().tolist() == [p - 5 for p in hand.order]
    assert got.tokens_fed == (sum(map(len, ASKED[family, cache])),)


def test_stale_keys_are_what_is_seen() -> None:
    """The hand-made run is told apart from one without a cache, so the test above can fail."""
    (prompt,) = prompts((5,), seed=3)
    model = toy("llada", sharp=1.2)
    results = [fill(model, f"sequential@{cache}", [prompt], 10).tokens.tolist() for cache in ("none", "prefix", "dual")]
    assert results[0] != results[1]
    assert results[1] != results[2]


LENGTHS, NEW = (5, 2, 9), (10, 7, 4)


def both(family: str, one: str, other: str, **options: Any) -> tuple[Finished, Finished]:
    model, given = toy(family, seed=1, sharp=1.2), prompts(LENGTHS)
    new = options.pop("new", NEW)
    return fill(model, one, given, new, **options), fill(model, other, given, new, **options)


def agree(one: Finished, other: Finished) -> bool:
    """Tokens, commit steps and forwards of all rows; what was fed may differ."""
    return (
        (one.tokens == other.tokens).all()
        and (one.trace.commit_step == other.trace.commit_step).all()
        and one.nfe == other.nfe
    )


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("cache", ["prefix", "dual"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(2)
def test_refreshing_at_every_step_is_no_cache(family: str, cache: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "fixed:steps=6"):
        assert agree(*both(family, f"{select}@{cache}:refresh=1", f"{select}@none", **distribution))


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("cache", ["prefix", "dual", "dual:refresh=3"])
@pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
@pytest.mark.covers(2)
def test_a_block_causal_model_loses_nothing_to_a_cache(family: str, cache: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "sequential"):
        cached, plain = both(family, f"{select}@{cache}", f"{select}@none", **distribution)
        assert agree(cached, plain)
        assert sum(cached.tokens_fed) < sum(plain.tokens_fed)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("select", ["sequential", "factor", "threshold:tau=0.4"])
def test_on_one_block_dual_is_prefix(family: str, select: str) -> None:
    dual, prefix = both(family, f"{select}@dual", f"{select}@prefix", block_length=6, new=6)
    assert all(same(dual, row, prefix, row) for row in range(3))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_blocks_of_one_are_no_cache(family: str) -> None:
    """Every forward enters a block, so every forward is full."""
    dual, none = both(family, "sequential@dual", "sequential@none", block_length=1)
    assert all(same(dual, row, none, row) for row in range(3))


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
    """A cache that names positions one by one: what `inner` asks as a span, without those in `holes`."""

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
def test_positions_queried_one_by_one_are_the_span(family: str, name: str, distribution: dict[str, Any]) -> None:
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
def test_what_is_open_is_queried_even_if_the_cache_leaves_it_out(family: str) -> None:
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


def widths(fed: Tensor | Any) -> list[int]:
    return [len(asked) for asked in fed]


def test_a_short_row_is_not_padded_to_a_long_one_for_its_own_count() -> None:
    both_rows = fill(toy(sharp=1.2), "sequential@dual", prompts((30, 3)), (6, 6))
    assert widths(both_rows.trace.fed[0]) == [36, 4, 4, 4, 36, 2]
    assert widths(both_rows.trace.fed[1]) == [9, 4, 4, 4, 9, 2]


class Immediate(DelayedCache):
    """Reuses a token's K/V from the forward that committed it, when a mask stood there."""

    def _unsettled(self, canvas: Canvas, changed: np.ndarray) -> np.ndarray:
        return super()._unsettled(canvas, np.zeros_like(changed))


@pytest.mark.seeds("arXiv:2505.15781")
def test_refreshing_always_is_no_cache_and_delay_flips_fewer_tokens_than_none() -> None:
    model, given, flips = toy("llada", sharp=1.2), prompts((5, 7, 3, 9) * 6, seed=2), []
    plain = fill(model, "sequential", given, 16, block_length=16)
    refreshed = fill(model, "sequential@dkv:refresh=1", given, 16, block_length=16)
    assert all(same(plain, row, refreshed, row) for row in range(len(given)))
    for cache in (DelayedCache(refresh=0, full=1), Immediate(refresh=0, full=1)):
        sampler = replace(registry.resolve("sequential", "masked"), cache=cache)
        *_, done = decode(model, sampler, request(*masked_rows(given, 16), block_length=16))
        flips.append(int((done.tokens != plain.tokens).sum()))
        per_token = 2 * 2 * 1 * 8 * 4  # bytes of K/V: two layers, one head of eight, float32
        recomputed = [[len(fed) * per_token for fed in row] for row in done.trace.fed]
        assert all(step < row[0] for row in recomputed for step in row[1:])  # each step's, from the trace
    delayed, immediate = flips
    assert 0 < delayed < immediate


def masked_rows(given: list[list[int]], new: int) -> tuple[list[list[int]], list[int]]:
    return [[*prompt, *[MASK] * new] for prompt in given], [len(prompt) for prompt in given]
