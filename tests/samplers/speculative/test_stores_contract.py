"""Caches that encode older K/V: the values that they read do not depend on rows, rounds and drafts."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from pardec.models.errors import ModelError, SpecError
from pardec.models.kv_stores.cache import StoredCache, stored_bytes
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.cache.stored_cache import StoredKV
from pardec.samplers.speculative.loop import VerifyLoop
from tests.samplers.ar_toys import request, rows, run, toy_ar
from tests.samplers.module_files import random_modules
from tests.samplers.picture_toys import codes, draw, features, toy_pictures
from tests.samplers.store_checks import NEW, VOCAB, of_family, target, taught, texts
from tests.samplers.toys import drafter_named

# Small chunks, so that many are encoded in a short answer.
STORES = (
    "int8:chunk=4,residual=3",
    "kivi:bits=2,group=4,residual=3",
    "rotatekv:bits=2,group=4,chunk=4,residual=3",
    "gear:bits=2,chunk=6,rank=2,sparsity=0.1",
    "mustafar:sparsity=0.5,chunk=4,residual=3",
)


@pytest.mark.parametrize("spec", STORES[1:4])
def test_drafted_tokens_are_those_of_sequential_with_the_same_cache(spec: str) -> None:
    expected = run(target(), f"sequential@{spec}", texts(), NEW)
    plain = run(target(), "sequential", texts(), NEW)
    assert (expected.trace.commit_score != plain.trace.commit_score).any(), "the cache changes something"
    for draft in ("lookup", "earlyexit:layers=1,k=4+beam:nodes=8"):
        done = run(target(), f"{draft}@{spec}", texts(), NEW)
        assert rows(done) == rows(expected)
        assert max(done.nfe) < max(expected.nfe), "drafts are accepted"
    alone = run(target(), f"lookup@{spec}", texts()[1:2], NEW[1:2])
    assert rows(alone) == rows(expected)[1:2]


@pytest.mark.slow
@pytest.mark.parametrize("spec", STORES)
def test_every_drafter_is_sequential_with_the_same_cache(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.samplers.speculative.test_verify_contract import names, resolves

    monkeypatch.setattr(
        draft_models, "language_model", lambda name, *_: drafter_named(name, toy_ar(4, VOCAB, layers=3))
    )
    expected = rows(run(target(), f"sequential@{spec}", texts(), NEW))
    with random_modules():
        for draft in filter(lambda draft: resolves(f"{draft}@{spec}", sampling=False), names("draft")):
            assert rows(run(target(), f"{draft}@{spec}", texts(), NEW)) == expected, draft


@pytest.mark.parametrize("spec", STORES[1:4])
def test_rows_that_join_leave_and_move_are_those_that_are_alone(spec: str) -> None:
    sampler, given = registry.resolve(f"lookup@{spec}", "ar"), texts()

    def start(which: list[int]) -> VerifyLoop:
        source = JoinableSource([100 + at for at in which])
        asked = request([given[at] for at in which], [NEW[at] for at in which], source=source)
        loop = VerifyLoop(target(), sampler, asked)
        loop.round()
        return loop

    loop, ends = start([1, 2]), dict[int, list[int]]()
    where = {0: 1, 1: 2}  # row of the request: text
    waiting = [3, 0]
    while len(loop.text):
        loop.round()
        over = loop.finished_rows()
        ends |= {where[end.row]: end.tokens.tolist() for end in loop.leave(over)}
        free = np.flatnonzero(over)
        if len(free) and waiting:
            at = waiting.pop()
            where[int(loop.rows[free[0]])] = at
            loop.put(free[:1], start([at]))
            free = free[1:]
        loop.keep(np.setdiff1d(np.arange(len(loop.rows)), free)[::-1].copy())
    expected = rows(run(target(), f"sequential@{spec}", given, NEW))
    assert [ends[at] for at in range(4)] == expected


# --- families ---

FAMILIES = (
    "llama", "qwen2 with some sliding layers", "qwen3", "mistral that slides", "phi3 that slides, rotated in part",
    "gemma2", "gemma3", "qwen3_moe, one layer dense",
)  # fmt: skip
# The mean difference of a logit from those with the plain cache, in standard deviations of these.
ENOUGH = {
    "int8:chunk=4,residual=3": 0.02,
    "kivi:bits=8,group=4,residual=3": 0.02,
    "rotatekv:bits=8,chunk=4,residual=3": 0.02,
    "gear:bits=8,chunk=5": 0.02,
    "mustafar:sparsity=0,chunk=4,residual=3": 1e-5,
}


@pytest.mark.parametrize("case", FAMILIES)
def test_with_enough_bits_every_family_says_what_it_says_with_the_plain_cache(case: str) -> None:
    model = of_family(case)
    tokens = torch.randint(0, 61, (3, 20), generator=torch.Generator().manual_seed(1))
    plain = taught(model, "", tokens, [14, 1, 6])
    for spec, bound in ENOUGH.items():
        gap = (taught(model, spec, tokens, [14, 1, 6]) - plain).abs().mean() / plain.std()
        assert gap < bound, spec
        assert gap > 0 or spec.startswith("mustafar"), "something was encoded"


def test_pictures_under_guidance_whose_halves_are_of_different_lengths() -> None:
    model = toy_pictures(side=4, vocab=6)
    captions = features((1, 3, 2))
    plain = draw(model, "sequential", captions, cfg=3.0)
    for spec in ("kivi:bits=16,group=3,residual=2", "rotatekv:bits=16,chunk=3,residual=2,sinks=2"):
        assert (draw(model, f"sequential@{spec}", captions, cfg=3.0).tokens == plain.tokens).all()
    store = "rotatekv:bits=3,chunk=3,residual=2"
    expected = draw(model, f"sequential@{store}", captions, cfg=3.0)
    done = draw(model, f"jacobi:window=5@{store}", captions, cfg=3.0)
    assert (done.tokens == expected.tokens).all()
    assert max(done.nfe) < max(expected.nfe)
    alone = draw(model, f"sequential@{store}", captions[1:2], cfg=3.0)
    assert (codes(alone, captions[1:2]) == codes(expected, captions)[1:2]).all()


# --- bytes, and what is refused ---


@pytest.mark.parametrize("spec", STORES)
def test_bytes_are_those_of_the_formula(spec: str) -> None:
    model = of_family("gemma3")
    stage = registry.resolve(f"sequential@{spec}", "ar").cache
    assert isinstance(stage, StoredKV)
    cache = stage.new_cache(model, 3, 90, scratch=5)
    assert isinstance(cache, StoredCache)
    kinds = [tuple(part.shape[2:]) for part in cache.k]
    expected = stored_bytes(stage.store, kinds, torch.float32, rows=3, capacity=95, scratch=5)
    held = [*cache.k, *cache.v, *(part for pair in (*cache.sinks, *cache._dense.values()) for part in pair)]
    held += [
        part for pair in cache.encoded for one in pair for part in (*one.parts.values(), *one.calibration.values())
    ]
    assert cache.nbytes == expected == sum(part.nbytes for part in held)


@pytest.mark.parametrize("draft", ["sparsekv", "triforce:name=toy"])
@pytest.mark.parametrize("cache", ["kivi", "gear", "int8", "mustafar", "rotatekv"])
def test_drafters_that_copy_keys_of_the_text_take_no_encoded_ones(draft: str, cache: str) -> None:
    with pytest.raises(SpecError, match=f"{draft.split(':')[0]} copies keys and values of the text, which '{cache}'"):
        registry.resolve(f"{draft}@{cache}", "ar")


@pytest.mark.parametrize("name", ["int8", "kivi", "rotatekv", "gear", "mustafar"])
def test_masked_models_and_shared_ones_refuse_it(name: str) -> None:
    with pytest.raises(SpecError, match=f"'{name}' is for autoregressive models"):
        registry.resolve(f"threshold@{name}", "masked")
    shared = copy.copy(target())
    shared.processes = 2
    with pytest.raises(ModelError, match="is shared by 2 processes"):
        VerifyLoop(shared, registry.resolve(f"sequential@{name}", "ar"), request(texts(), 3))
