"""The contract of every cache of autoregressive specs; new caches are tested without a change here."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from pardec.models.model import LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.loop import VerifyLoop
from tests.samplers.ar_toys import prompts, request, rows, run, toy_ar
from tests.samplers.module_files import random_modules

VOCAB = 8
CACHES = [card.name for card in registry.cards() if (card.family, card.stage) == ("ar", "cache")]
# Settings with which a text of some twenty tokens is compressed, or seen in part; for some models they are defaults.
SMALL = {
    "budget": 8, "chunk": 4, "group": 4, "residual": 4, "window": 6, "sink": 2, "refresh": 2, "heavy": 6, "sinks": 1,
    "recent": 3,
}  # fmt: skip
LARGE = {"budget": 1024, "window": 512, "residual": 512, "heavy": 512}
LENGTHS, NEW = (3, 9, 1, 14), (12, 16, 18, 9)


def spec(name: str, settings: dict[str, int], sampler: str = "sequential") -> str:
    """The sampler with this cache, with those of the settings that it has."""
    own = {entry["name"] for entry in registry.find(name, "ar").parameters}
    text = ",".join(f"{key}={value}" for key, value in settings.items() if key in own)
    return f"{sampler}@{name}:{text}" if text else f"{sampler}@{name}"


@cache
def target() -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=4)


@pytest.fixture(autouse=True)
def drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_models, "language_model", lambda *_: toy_ar(4, VOCAB, 1.5))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", ["sequential", "recycling"])
@pytest.mark.parametrize("name", CACHES)
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_a_ragged_batch(name: str, sampler: str, temperature: float) -> None:
    given, which = prompts(LENGTHS, vocab=VOCAB, seed=1), spec(name, SMALL, sampler)
    done = run(target(), which, given, NEW, temperature=temperature)
    for at in (3,):
        alone = run(target(), which, [given[at]], [NEW[at]], seeds=[100 + at], temperature=temperature)
        assert rows(alone)[0] == rows(done)[at]
        assert alone.nfe[0] == done.nfe[at]


@pytest.mark.parametrize("name", CACHES)
def test_a_row_that_joins_goes_on_as_it_would_alone(name: str) -> None:
    which, given = spec(name, SMALL, "lookup"), prompts((5, 12, 7), vocab=VOCAB, seed=2)
    sampler = registry.resolve(which, "ar")
    running = VerifyLoop(target(), sampler, request(given[:2], (4, 32), source=JoinableSource([100, 101])))
    while not (over := running.finished_rows()).any():
        running.round()
    later = VerifyLoop(target(), sampler, request(given[2:], 17, source=JoinableSource([102])))
    later.round()
    running.put(np.flatnonzero(over), later)
    while len(running.text):
        running.round()
        for event in running.retire():
            at = 2 if event.row == 0 and len(event.tokens) == 24 else event.row
            alone = run(target(), which, [given[at]], [(4, 32, 17)[at]], seeds=[100 + at])
            assert event.tokens.tolist() == rows(alone)[0]


@pytest.mark.parametrize("name", CACHES)
def test_a_prompt_that_others_begin_with_is_right(name: str) -> None:
    """Rows with a common beginning, whose K/V plain caches store once."""
    beginning, *ends = prompts([11, 3, 1], seed=5, vocab=VOCAB)
    texts, which = [[*beginning, *end] for end in ends], spec(name, SMALL)
    done = run(target(), which, texts, 8)
    for at, text in enumerate(texts):
        assert rows(run(target(), which, [text], 8, share_prompt=False))[0] == rows(done)[at]


@pytest.mark.parametrize("kind", ["model", "pearl", "sorted", "eagle", "falcon", "kangaroo", "hydra", "mtp"])
def test_a_drafter_with_a_cache_of_its_own_has_room_for_texts_longer_than_the_target_s(kind: str) -> None:
    which, given = "streaming:sink=2,window=6", prompts((5, 9), vocab=VOCAB, seed=6)
    plain = run(target(), f"sequential@{which}", given, 16)
    with random_modules():
        done = run(target(), f"{kind}:name=toy,k=3@{which}", given, 16)
    assert rows(done) == rows(plain)


@pytest.mark.parametrize("name", CACHES)
def test_it_says_that_it_changes_the_output(name: str) -> None:
    assert registry.resolve(f"sequential@{name}", "ar").exact in ("relaxed", "distribution", "greedy")
    assert registry.find(name, "ar").exact == "relaxed"


@pytest.mark.parametrize("sampler", ["sequential", "lookup", "recycling", "model:name=toy"])
@pytest.mark.parametrize("name", CACHES)
@pytest.mark.covers(1)
def test_with_room_for_all_it_is_no_cache_at_all(name: str, sampler: str) -> None:
    given = prompts(LENGTHS, vocab=VOCAB, seed=3)
    plain, wide = run(target(), sampler, given, NEW), run(target(), spec(name, LARGE, sampler), given, NEW)
    assert rows(wide) == rows(plain)
    assert wide.nfe == plain.nfe
    scores = zip(wide.trace.commit_score, plain.trace.commit_score, strict=True)
    assert all(np.array_equal(one, other) for one, other in scores), "bit for bit"


@pytest.mark.parametrize("name", CACHES)
def test_a_small_one_changes_what_is_predicted(name: str) -> None:
    """Otherwise the tests above would pass with a cache that does nothing."""
    given = prompts((20, 24), vocab=VOCAB, seed=4)
    plain, small = run(target(), "sequential", given, 16), run(target(), spec(name, SMALL), given, 16)
    where = min(len(text) for text in given)
    assert not np.allclose(plain.trace.commit_score[:, where:], small.trace.commit_score[:, where:], atol=1e-6)
    assert torch.isfinite(torch.from_numpy(small.trace.commit_score)).all()
