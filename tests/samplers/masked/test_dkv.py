"""`dkv`: a token is computed once more after its commit, then reused; by hand, naive version, identities."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.samplers import registry
from pardec.samplers.masked.cache.changes import rows_predicting
from pardec.samplers.masked.cache.dkv import DelayedCache
from pardec.samplers.masked.contracts import Canvas
from pardec.samplers.masked.loop import decode
from tests.reference import naive_caches as naive
from tests.samplers.cache_checks import (
    LENGTHS,
    NEW,
    OPEN,
    ORDER,
    WHOLE,
    agree,
    both,
    check_plain,
    in_order,
    stale,
)
from tests.samplers.masked import test_dkv_greedy
from tests.samplers.query_parity import queried
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import FAMILIES, MASK, fill, prompts, request, run, same, toy


def left(*gone: int) -> tuple[int, ...]:
    return tuple(p for p in OPEN if p not in gone)


def a_token_is_queried_once_more_after_its_commit() -> None:
    got = in_order("llada", "dkv:refresh=4,full=1", ORDER, steps=8, block_length=8)
    assert got == [
        WHOLE, left(), left(7), left(7, 9), WHOLE, left(7, 9, 6, 5), left(7, 9, 6, 5, 12), (8, 10)
    ]  # fmt: skip


def how_many_full_steps_a_block_begins_with_is_the_families() -> None:
    """The authors' code has two full steps for LLaDA and one for Dream; the result states the number."""
    for name, full, other in (("tiny-llada", 2, 1), ("tiny-dream", 1, 2)):
        model = pardec.load(name, device="cpu")
        settings = {"max_new_tokens": 6, "block_length": 3, "stop_ids": []}
        got = model.generate("Tom has 3 cups.", sampler="sequential@dkv", **settings)
        length = got.sequences.shape[1]
        whole = [len(step.fed) == length for step in got.trace.steps[0]]
        assert whole == [True, full == 2, False] * 2
        assert f"@dkv:refresh=8,full={full}," in got.spec
        said = model.generate("Tom has 3 cups.", sampler=f"sequential@dkv:full={full}", **settings)
        assert said.spec == got.spec
        assert f"full={other}" in str(model.prepare("a", sampler=f"sequential@dkv:full={other}").sampler.spec)
    # A loop that is handed a sampler without a model takes the family's too.
    for family, full in (("llada", 2), ("dream", 1), ("sdar", 2), ("shifted-sdar", 1)):
        one, other = (fill(toy(family), f"sequential@dkv{said}", prompts((5,)), 8) for said in ("", f":full={full}"))
        assert one.trace.fed == other.trace.fed


def a_shifted_family_queries_the_rows_that_predict_and_the_token_itself() -> None:
    options = {"steps": 8, "block_length": 8}
    got = in_order("dream", "dkv:refresh=0", ORDER, **options)
    # Rows 4..11 predict 5..12. Of the second forward 7 is fresh: 6 has no longer to predict it, 7 is asked by itself.
    assert got[:4] == [WHOLE, (4, 5, 7, 8, 9, 10, 11), (4, 5, 7, 9, 10, 11), (4, 6, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=next", ORDER, **options)
    assert got[:4] == [WHOLE, (4, 5, 6, 7, 8, 9, 10, 11), (4, 5, 7, 8, 9, 10, 11), (4, 5, 6, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=both", ORDER, **options)
    assert got[:5] == [WHOLE, *[tuple(range(4, 13))] * 3, (4, 5, 7, 8, 9, 10, 11, 12)]
    # In a row without a prompt the first position predicts itself.
    wanted = np.array([[True, False, False, True]])
    assert rows_predicting(wanted, 1).tolist() == [[True, False, True, False]]
    assert rows_predicting(wanted[:, ::-1] & [True, True, True, False], 1).tolist() == [[True, False, False, False]]


def test_the_published_sets_of_dream() -> None:
    """`un` reuses position i once i + 1 is committed, and the last one always; step 1 computes all after the prompt."""
    options = {"steps": 8, "block_length": 8}
    got = in_order("dream", "dkv:refresh=0,settle=next,reference=true", ORDER, **options)
    assert got[:5] == [WHOLE, tuple(range(4, 13)), (4, 5, 7, 8, 9, 10, 11), (4, 5, 7, 9, 10, 11), (4, 7, 9, 10, 11)]
    got = in_order("dream", "dkv:refresh=0,settle=both,reference=true", ORDER, **options)
    assert got[:3] == [WHOLE, tuple(range(4, 13)), tuple(range(4, 13))]
    # Before the seventh forward 12, the last position, has settled and 11 has not: it is computed as 11 is.
    assert got[4:7] == [(4, 5, 7, 8, 9, 10, 11, 12), (7, 8, 9, 10, 11, 12), (7, 8, 9, 10, 11, 12)]
    got = in_order("dream", "dkv:refresh=4,settle=next,prompt=keep,reference=true", ORDER, **options)
    assert got[0] == WHOLE
    assert got[4] == WHOLE[4:]


RULES = {
    "dkv:refresh=3,full=1": naive.dkv(3, 1, "self", "refresh"),
    "dkv:refresh=0,full=2,settle=next": naive.dkv(0, 2, "next", "refresh"),
    "dkv:refresh=0,full=1,settle=both": naive.dkv(0, 1, "both", "refresh"),
    "dkv:refresh=3,full=1,settle=next,prompt=keep": naive.dkv(3, 1, "next", "keep"),
}


@pytest.mark.parametrize("cache", RULES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_it_is_its_plain_version(family: str, cache: str) -> None:
    check_plain(family, cache, RULES[cache])


@pytest.mark.parametrize("settle", ["self", "next", "both"])
@pytest.mark.parametrize(("refresh", "full", "prompt"), [(0, 1, "refresh"), (4, 1, "keep"), (3, 2, "refresh")])
def test_the_published_sets_are_their_plain_version(refresh: int, full: int, prompt: str, settle: str) -> None:
    """In families without a shift there are none, and `reference=true` changes nothing."""
    for family, rule in (("dream", naive.dkv_published), ("llada", naive.dkv)):
        cache = f"dkv:refresh={refresh},full={full},settle={settle},prompt={prompt},reference=true"
        check_plain(family, cache, rule(refresh, full, settle, prompt))


def test_the_published_sets_keep_masks_under_tokens() -> None:
    """Shows that the test above can fail."""
    rows = [prompt + [MASK] * 9 for prompt in prompts((5, 3))]
    spec = "random+fixed@dkv:refresh=0,settle=next,reference="
    assert stale(toy("dream", sharp=1.2), spec + "true", rows, [5, 3], block_length=9)[0] > 0
    assert stale(toy("dream", sharp=1.2), spec + "false", rows, [5, 3], block_length=9)[0] == 0


@pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
@pytest.mark.parametrize("settle", ["self", "next", "both"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_refreshing_at_every_step_is_no_cache(family: str, settle: str, distribution: dict[str, Any]) -> None:
    for select in ("threshold:tau=0.4", "origin:steps=30"):
        assert agree(*both(family, f"{select}@dkv:settle={settle},refresh=1", f"{select}@none", **distribution))
    exact = [registry.resolve(f"sequential@dkv{more}").exact for more in (":refresh=1", "", ":refresh=1,prompt=keep")]
    assert exact == ["greedy", "relaxed", "relaxed"]


@pytest.mark.parametrize("revise", ["edit:tau=0.2", "remdm:at=0.5", "saber"])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_revise_stages_query_no_given_token_of_the_block_again(family: str, revise: str) -> None:
    """Blocks of 8 from position 0: the prompt ends in the first, and position 11 is given in the second."""
    model, rows = toy(family, sharp=2.0), [[1, 2, 3, 4, 5, *[MASK] * 6, 7, *[MASK] * 4]]
    got = run(
        model,
        f"threshold:tau=0.9+{revise}@dkv:prompt=keep,refresh=0,full=1",
        request(rows, [5], block_length=8, absolute=True),
    )
    shift = model.decoding_config.shift
    fed = [set(each) for each in got.trace.fed[0]]
    assert all(not each & set(range(5 - shift)) for each in fed[1:]), "the prompt is queried once"
    assert len(fed) > 4
    if not shift:  # else it predicts position 12
        assert sum(11 in each for each in fed) == 2, "a given token only as a block is entered"


def test_what_is_settled_is_one_in_a_family_without_shift() -> None:
    model, given = toy("llada", seed=1, sharp=1.2), prompts(LENGTHS)
    results = [
        fill(model, f"threshold:tau=0.4@dkv:settle={settle},reference={reference}", given, NEW)
        for settle in ("self", "next", "both")
        for reference in ("false", "true")
    ]
    assert all(agree(one, results[0]) and one.trace.fed == results[0].trace.fed for one in results)


def test_what_is_settled_is_more_with_each_setting() -> None:
    spec = "leftmost+fixed@dkv:refresh=0,settle={}"
    sets = [queried(fill(toy("dream"), spec.format(settle), prompts((5,)), 9)) for settle in ("self", "next", "both")]
    for one, two, three in zip(*sets, strict=True):
        assert set(one) <= set(two) <= set(three)
    assert sum(map(len, sets[0])) < sum(map(len, sets[1])) < sum(map(len, sets[2]))


class Immediate(DelayedCache):
    """Reuses a token's K/V from the forward that committed it, which were computed from a mask."""

    def _unsettled(self, canvas: Canvas, changed: np.ndarray) -> np.ndarray:
        return super()._unsettled(canvas, np.zeros_like(changed))


@pytest.mark.seeds("arXiv:2505.15781")
def test_refreshing_always_is_no_cache_and_delay_flips_fewer_tokens_than_none() -> None:
    a_token_is_queried_once_more_after_its_commit()
    how_many_full_steps_a_block_begins_with_is_the_families()
    a_shifted_family_queries_the_rows_that_predict_and_the_token_itself()
    test_it_is_its_plain_version("dream", "dkv:refresh=3,full=1,settle=next,prompt=keep")
    test_the_published_sets_of_dream()
    test_revise_stages_query_no_given_token_of_the_block_again("llada", "edit:tau=0.2")
    test_dkv_greedy.test_the_window_takes_the_nearest_masks_in_the_order_of_commits()
    test_dkv_greedy.test_it_is_its_plain_version("llada", 3, 1)
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


test_bad_parameters = refused_specs(
    [
        ("refresh=-1", "dkv: refresh must be at least 0"),
        ("full=0", "full must be at least 1, got 0"),
        ("settle=un", "settle must be one of self, next, both"),
    ],
    before="sequential@dkv:",
)
