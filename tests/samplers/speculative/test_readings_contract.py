"""Sparse attention: its choices, its behaviour as a cache, and that drafting with it changes no tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.caches.compact_cache import CompactCache, _extents
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.loop import VerifyLoop
from tests.samplers.ar_toys import prompts, request, rows, run, toy_ar
from tests.samplers.joint_distributions import SMALL, drafting
from tests.samplers.reading_drafts import GIVEN, NEW, VOCAB, target

LOSSY = ("retrieval:budget=8,chunk=2,refresh=2", "streaming:sink=2,window=6", "lminfinite:sink=2,window=6")
WHOLE = ("retrieval:budget=64", "retrieval:budget=66,chunk=11,refresh=1", "streaming:sink=4,window=60")


@pytest.mark.parametrize("cache", [*WHOLE, "lminfinite:window=64"])
def test_with_room_for_the_whole_text_nothing_changes_not_even_a_bit(cache: str) -> None:
    plain, read = (run(target(), spec, GIVEN, NEW) for spec in ("lookup", f"lookup@{cache}"))
    assert rows(read) == rows(plain)
    assert read.nfe == plain.nfe
    assert np.array_equal(read.trace.commit_score, plain.trace.commit_score, equal_nan=True)
    assert registry.resolve(f"lookup@{cache}", "ar").exact == "relaxed"


@pytest.mark.parametrize("cache", [LOSSY[0], pytest.param(LOSSY[1], marks=pytest.mark.slow), LOSSY[2]])
def test_rows_are_the_same_alone_in_a_batch_and_joining_another(cache: str) -> None:
    model, spec = target(), f"lookup@{cache}"
    done = run(model, spec, GIVEN, NEW, temperature=0.7)
    assert rows(done) != rows(run(model, "lookup", GIVEN, NEW, temperature=0.7))
    for at in (0, 4):
        alone = run(model, spec, GIVEN[at : at + 1], NEW[at], seeds=[100 + at], temperature=0.7)
        assert rows(alone)[0] == rows(done)[at]
        assert alone.nfe[0] == done.nfe[at]
    joined(spec, model, {at: rows(done)[at] for at in range(4)}, {at: NEW[at] for at in range(4)})


@pytest.mark.parametrize("drafter", [SMALL["sparsekv"], SMALL["triforce"]])
def test_rows_join_drafters_that_read(drafter: str) -> None:
    with drafting(VOCAB):
        done = run(target(), drafter, GIVEN[:4], NEW[:4], temperature=0.7)
        joined(drafter, target(), dict(enumerate(rows(done))), dict(enumerate(NEW[:4])))


def joined(spec: str, model: LanguageModel, expected: dict[int, list[int]], new: dict[int, int]) -> None:
    """Asserts that rows 0 .. 2, the first finished of which is replaced by row 3, are as expected."""
    sampler = registry.resolve(spec, "ar", sampling=True)

    def loop(some: list[int]) -> VerifyLoop:
        options: dict[str, Any] = {"draft_model": draft_models.for_text(sampler, model), "temperature": 0.7}
        options["source"] = JoinableSource([100 + at for at in some])
        texts = [GIVEN[at] for at in some]
        made = VerifyLoop(model, sampler, request(texts, [new[at] for at in some], **options))
        made.round()
        return made

    running, row_at, found = loop([0, 1, 2]), {0: 0, 1: 1, 2: 2}, {}
    while len(running.text):
        over = running.finished_rows()
        found |= {row_at[end.row]: end.tokens.tolist() for end in running.leave(over)}
        free = np.flatnonzero(over)
        if len(free) and 3 not in row_at.values():
            row_at[int(running.rows[free[0]])] = 3
            running.put(free[:1], loop([3]))
            free = free[1:]
        running.keep(np.setdiff1d(np.arange(len(running.text)), free))
        if len(running.text):
            running.round()
    assert found == expected


@pytest.mark.parametrize("cache", LOSSY)
def test_what_a_reading_leaves_out_may_be_nan(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """NaN in all slots of the compact cache that were not filled or written, and in the whole text between fills."""
    plain = rows(run(target(), f"sequential@{cache}", GIVEN, NEW))
    fill = CompactCache.fill

    def poisoned(compact: Any, source: KVCache, some: np.ndarray, *rest: Any) -> None:
        for store in (*compact.k, *compact.v):
            store[torch.from_numpy(some)] = torch.nan
        fill(compact, source, some, *rest)

    monkeypatch.setattr(CompactCache, "fill", poisoned)
    assert rows(run(target(), f"sequential@{cache}", GIVEN, NEW)) == plain


@pytest.mark.parametrize("cache", [*LOSSY[:2], "cake:budget=8,window=4,refresh=1"])
def test_counts_of_a_choice_are_those_of_its_slots(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill, seen = CompactCache.fill, []

    def counted(compact: Any, source: Any, some: Any, chosen: Any, first: Any, stop: Any, counts: Any) -> None:
        last, lead = _extents(chosen)
        seen.append((counts == last).all() and (counts == lead).all())
        fill(compact, source, some, chosen, first, stop, counts)

    monkeypatch.setattr(CompactCache, "fill", counted)
    run(target(), f'sparsekv:read="{cache}"', GIVEN, NEW)
    assert len(seen) > 1
    assert all(seen)


def test_prefixes_and_shared_prompts_are_no_affair_of_lossy_caches() -> None:
    model, same = target(), [prompts([30], vocab=VOCAB)[0]] * 3
    plain = [rows(run(model, f"sequential@{cache}", same, 12)) for cache in LOSSY]
    prefixes = model.cache_prefixes(1 << 20)
    assert prefixes is not None
    run(model, "sequential", same, 12)
    stored = prefixes.nbytes if hasattr(prefixes, "nbytes") else None
    for cache, text in zip(LOSSY, plain, strict=True):
        done = run(model, f"sequential@{cache}", same, 12)
        assert rows(done) == text
        assert len(done.trace.fed[0][0]) == 30  # nothing was taken from what the plain request has left
    assert stored == (prefixes.nbytes if stored is not None else None)
    read = run(model, 'sparsekv:read="retrieval:budget=8,chunk=2"', same, 12)  # which drafts over the target's cache
    assert rows(read) == rows(run(model, "sequential", same, 12))
    assert len(read.trace.fed[0][0]) < 30


def test_what_cannot_be_is_refused_before_the_first_forward() -> None:
    for spec, reason in (
        ("earlyexit@retrieval", "which earlyexit does not return"),
        ("sparsekv@lminfinite", ".lminfinite. stores them elsewhere"),
        ("triforce:name=toy@retrieval", ".retrieval. stores them elsewhere"),
        ("layerskip:skip=search@streaming", "feeds tokens again"),
        ("layerskip:skip=search@lminfinite", "feeds tokens again"),
        ("sequential+streaming", "must follow '@'"),
    ):
        with pytest.raises(SpecError, match=reason) as error:
            registry.resolve(spec, "ar")
        assert error.value.hint
    windowed = toy_ar(0)
    object.__setattr__(windowed.decoder.config, "attention_cap", 5.0)  # type: ignore[attr-defined]
    for spec in ("sequential@retrieval", "sequential@streaming", "sequential@lminfinite", "sparsekv"):
        with pytest.raises(ModelError, match="caps its attention scores"):
            run(windowed, spec, [[1]], 2)
