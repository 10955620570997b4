"""Masked models whose final tokens do not attend to later ones: prompts share K/V, and tokens stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
import torch

from pardec.api import Model
from pardec.models.caches.prefix_cache import Block, PrefixCache
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.masked.loop import MaskedLoop, decode
from tests.grids import pairwise
from tests.samplers.toys import fill, prompts, request, toy

BASE = prompts([40], seed=3)[0]
SIZES = [(40, 0), (36, 3), (32, 1), (17, 2), (16, 0), (5, 5), (33, 0)]  # tokens shared with BASE, and others after
GIVEN = [BASE[:shared] + prompts([own], seed=shared)[0] for shared, own in SIZES]
BYTES = 16 * 2 * 2 * 8 * 4  # of a block: K and V of two layers with one head of 8
NEW = [7, 6, 20, 2, 9, 4, 30]
CACHES = [("sdar", "block"), ("shifted-sdar", "block"), ("llada2", "block"), ("wedlm", "window"),
          ("wedlm", "window:slide=false"), ("nemotron", "causal"), ("sdlm", "next_sequence")]  # fmt: skip


def on(model: LanguageModel, budget: int = 1 << 20) -> PrefixCache:
    cache = model.cache_prefixes(budget)
    assert cache is not None
    return cache


def below(block: Block) -> Iterator[tuple[bytes, Block]]:
    for key, each in block.below.items():
        yield key, each
        yield from ((key + more, deeper) for more, deeper in below(each))


def check_blocks(model: LanguageModel, cache: PrefixCache) -> None:
    """Asserts that every block has the K/V of a whole forward over its text with the family's attention."""
    for text, block in below(cache._root):
        tokens = torch.frombuffer(bytearray(text), dtype=torch.int64)[None]
        whole = model.new_cache(1, tokens.shape[1])
        model.forward(Plan.full(tokens, model.visible()), whole)
        expected = whole.copy_out(0, tokens.shape[1] - cache.block, tokens.shape[1])
        torch.testing.assert_close(block.values, expected, rtol=1e-4, atol=1e-5)
        assert block.leases == 0
    assert cache._root.leases == 0


SELECTS = ("threshold:tau=0.3", "fixed:steps=3", "edit+threshold:tau=0.4", "wino")
TAKEN = [
    (family, cache, select)
    for (family, cache), select in product(CACHES, SELECTS)
    if not (select == "wino" and family in ("wedlm", "nemotron", "sdlm"))
    and not (select == "fixed:steps=3" and cache in ("window", "next_sequence"))
]


@pytest.mark.parametrize(
    ("family", "cache", "select"), pairwise(TAKEN, lambda family, cache, select: ((family, cache), select), 1)
)
def test_tokens_are_those_without(family: str, cache: str, select: str) -> None:
    model, spec, options = toy(family), f"{select}@{cache}", {"temperature": 0.8}
    plain = fill(model, spec, GIVEN, NEW, **options)
    stored = on(model)
    fill(model, f"threshold:tau=0.3@{cache}", [BASE], 16)
    result = fill(model, spec, GIVEN, NEW, **options)
    assert (result.tokens == plain.tokens).all()
    assert (result.trace.commit_step == plain.trace.commit_step).all()
    shift = 1 if family == "nemotron" else model.decoding_config.shift  # the position before a block begins it
    block = 4 if model.decoding_config.block else 1
    expected = [min(shared, len(prompt) // block * block - shift) // 16 * 16 for (shared, _), prompt in
                zip(SIZES, GIVEN, strict=True)]  # fmt: skip
    assert list(result.reused) == expected
    assert [new + old for new, old in zip(result.tokens_fed, result.reused, strict=True)] == list(plain.tokens_fed)
    assert [row[0].start for row in result.trace.fed] == expected
    check_blocks(model, stored)


@pytest.mark.parametrize(
    ("family", "cache"), [("sdar", "block"), ("wedlm", "window"), ("nemotron", "causal"), ("sdlm", "next_sequence")]
)
@pytest.mark.parametrize("budget", [1 << 20, 3 * BYTES])
@pytest.mark.covers(1)
def test_rows_that_join_a_batch(family: str, cache: str, budget: int) -> None:
    network = toy(family)
    model, spec = Model(network), f"threshold:tau=0.3@{cache}"
    given = [*GIVEN, *prompts([40, 36, 50, 40], seed=9)]
    items = [{"input_ids": ids, "max_new_tokens": new} for ids, new in zip(given, [*NEW, 3, 5, 1, 4], strict=True)]
    arguments: dict[str, Any] = {"sampler": spec, "stop_ids": []}
    alone = [model.generate(**{**item, "input_ids": [item["input_ids"]]}, **arguments) for item in items]
    items, alone = items + items[: len(GIVEN)], alone + alone[: len(GIVEN)]
    stored = on(network, budget)
    served = {row.index: row for row in model.serve_batch(items, batch_size=3, **arguments)}
    for at, result in enumerate(alone):
        own = served[at].result
        assert own.tokens == result.tokens
        assert own.tokens_fed[0] + own.reused[0] == result.tokens_fed[0]
    assert sum(row.result.reused[0] for row in served.values()) > 0
    assert 0 < stored.nbytes <= budget
    assert (stored.evictions > 0) == (budget < 1 << 20)
    check_blocks(network, stored)


def test_an_answer_is_stored_too() -> None:
    model = toy("sdar")
    stored = on(model)
    first = fill(model, "threshold:tau=0.3@block", [BASE[:20]], 30)
    text = first.tokens[0, : int(first.trace.lengths[0])].tolist()
    longer = [*text[:48], 1, 2, 3]
    second = fill(model, "threshold:tau=0.3@block", [longer], 8)
    assert second.reused == (48,) if len(text) == 52 else (32,)
    model.prefix_cache = None
    assert (fill(model, "threshold:tau=0.3@block", [longer], 8).tokens == second.tokens).all()
    check_blocks(model, stored)


@pytest.mark.parametrize("spec", ["threshold:tau=0.3", "threshold:tau=0.3@dual", "threshold:tau=0.3@dkv"])
def test_caches_that_do_not_know_what_is_final_take_no_part(spec: str) -> None:
    model = toy("sdar")
    stored = on(model)
    assert [fill(model, spec, GIVEN, NEW).reused for _ in range(2)] == [(0,) * 7] * 2
    assert (stored.blocks, stored.misses) == (0, 0)


def test_guided_rows_take_no_part() -> None:
    model = toy("sdar")
    stored = on(model)
    assert fill(model, "threshold:tau=0.3@block", GIVEN, NEW, cfg=1.5).reused == (0,) * 7
    assert stored.blocks == 0


def test_a_request_left_midway_gives_its_leases_back() -> None:
    model = toy("sdar")
    stored = on(model)
    fill(model, "threshold:tau=0.3@block", GIVEN, NEW)
    mask = model.decoding_config.mask_id
    rows = [[*prompt, *[mask] * 8] for prompt in GIVEN]
    query = request(rows, list(map(len, GIVEN)), absolute=True)
    steps = decode(model, registry.resolve("fixed:steps=8@block"), query)
    for _ in range(3):
        next(steps)
    assert any(block.leases for _, block in below(stored._root))
    steps.close()  # type: ignore[attr-defined]
    check_blocks(model, stored)
    loop = MaskedLoop(model, registry.resolve("fixed:steps=8@block"), query)
    loop.step()
    loop.close()
    check_blocks(model, stored)
