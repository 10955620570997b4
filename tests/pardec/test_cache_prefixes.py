"""Requests with a common beginning share K/V: tokens stay the same with any drafter and when rows join or leave."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.api import Model
from pardec.models.caches.prefix_cache import Block, PrefixCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.result import Result
from tests.grids import chequered, thinned

SHARED = "Tom has 3 cups, and Ann has 8 of them. " * 6
PROMPTS = [f"{SHARED}How many cups?", "Hi", f"{SHARED}Who has more?", SHARED[:50], f"{SHARED[:70]}No."]
READ_STATES = [
    "eagle:name=tiny-llama-eagle",
    "eagle:name=tiny-llama-eagle+beam",
    "medusa:name=tiny-llama-medusa",
    "hydra:name=tiny-llama-hydra",
    "dflash:name=tiny-llama-dflash",
    'auto:model="eagle:name=tiny-llama-eagle",copy="lookup:k=7",measured=false',
]
DRAFTERS = [
    "sequential",
    "lookup",
    "model:name=tiny-llama-draft,k=3+dyspec",
    "earlyexit:layers=1,k=3",
    "layerskip:skip=uniform",
    "recycling:prefill=false",
    "jacobi:window=6",
    "lookahead",
    "prompts:name=tiny-llama-prompts",
    *READ_STATES,
]


@pytest.fixture
def model(llama: Model) -> Iterator[Model]:
    yield llama
    llama.cache_prefixes(0)


def whole(result: Result) -> list[int]:
    """The most tokens that each row can reuse: whole blocks of its prompt, without the last token."""
    return [(length - 1) // 16 * 16 for length in result.prompts]


def on(model: Model, mib: float = 64) -> PrefixCache:
    cache = model.cache_prefixes(mib)
    assert cache is not None
    return cache


def fed(model: Model, monkeypatch: pytest.MonkeyPatch, **arguments: Any) -> tuple[Result, dict[str, int]]:
    """A result, and the widest forward of each network."""
    widest: dict[str, int] = {}
    run = LanguageModel.run

    def watched(self: LanguageModel, plan: Plan, cache: Any = None) -> Any:
        widest[self.name] = max(widest.get(self.name, 0), plan.width)
        return run(self, plan, cache)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "run", watched)
        return model.generate(**arguments), widest


def below(block: Block) -> Iterator[Block]:
    for each in block.below.values():
        yield each
        yield from below(each)


def check_blocks(model: Model, cache: PrefixCache) -> None:
    """Asserts that every block has the K/V of a whole forward over its own text, and that none is leased."""
    check_trie(model.language_model, cache, cache._root)
    for network, (_, root) in cache._drafts.items():
        check_trie(replace(model.language_model, decoder=network), cache, root)


def check_trie(network: LanguageModel, cache: PrefixCache, root: Block) -> None:
    for block in below(root):
        keys, above = [block.key], block.above
        while above is not None:
            keys.insert(0, above.key)
            above = above.above
        tokens = torch.frombuffer(bytearray(b"".join(keys)), dtype=torch.int64)[None]
        whole = network.new_cache(1, tokens.shape[1])
        network.decoder(Plan.full(tokens, network.visible()), whole)
        expected = whole.copy_out(0, tokens.shape[1] - cache.block, tokens.shape[1])[0]
        torch.testing.assert_close(block.values[0], expected, rtol=1e-4, atol=1e-4)
        assert block.leases == 0
    assert root.leases == 0


@pytest.mark.parametrize(
    ("sampler", "temperature"), thinned(product(DRAFTERS, [0.0, 1.0]), lambda sampler, temperature: not temperature)
)
def test_tokens_are_those_without(model: Model, sampler: str, temperature: float) -> None:
    arguments: dict[str, Any] = {"sampler": sampler, "max_new_tokens": 7, "temperature": temperature, "stop_ids": []}
    plain = model.generate(PROMPTS, **arguments)
    assert plain.reused == [0] * len(PROMPTS)
    cache = on(model)
    model.generate(PROMPTS[0], max_new_tokens=4, stop_ids=[])  # without the states that some drafters read
    for first in (sampler not in READ_STATES, True):
        result = model.generate(PROMPTS, **arguments)
        assert result.tokens == plain.tokens
        assert result.reused[0] == (whole(result)[0] if first else 0)
        assert [new + old for new, old in zip(result.tokens_fed, result.reused, strict=True)] == plain.tokens_fed
        assert [row[0].start for row in result.trace.fed] == result.reused
    assert result.reused == whole(result)
    assert min(result.reused) < 16 < 64 < max(result.reused)
    check_blocks(model, cache)


def test_an_answer_is_stored_for_the_request_that_goes_on_from_it(model: Model) -> None:
    cache = on(model)
    ids = model.tokenizer(SHARED)["input_ids"]
    first = model.generate(input_ids=[ids], sampler="lookup", max_new_tokens=30, stop_ids=[])
    longer = [*ids, *first.tokens[0], *model.tokenizer(" And now?")["input_ids"]]
    second = model.generate(input_ids=[longer], max_new_tokens=8)
    assert second.reused == [(len(ids) + 29) // 16 * 16]
    model.cache_prefixes(0)
    assert model.generate(input_ids=[longer], max_new_tokens=8).tokens == second.tokens
    check_blocks(model, cache)


@pytest.mark.parametrize("sampler", ["sequential", "model:name=tiny-llama-draft,k=3"])
def test_wherever_a_block_ends_only_what_was_computed_is_stored(model: Model, sampler: str) -> None:
    cache, ids = on(model), model.tokenizer(SHARED)["input_ids"]
    for start in range(16):
        model.generate(input_ids=[ids[start : start + 40 + start]], sampler=sampler, max_new_tokens=6, stop_ids=[])
    check_blocks(model, cache)


def test_a_drafter_that_reads_logits_of_the_prompt_copies_nothing(model: Model) -> None:
    on(model)
    results = [model.generate(PROMPTS[0], sampler="recycling", max_new_tokens=8) for _ in range(2)]
    assert results[0].reused == results[1].reused == [0]
    assert results[0].tokens_fed == results[1].tokens_fed


@pytest.mark.parametrize(("sampler", "mib"), chequered(["sequential", "lookup", *READ_STATES[:2]], [64, 0.2, 0.07]))
@pytest.mark.covers(1)
def test_rows_that_join_a_batch_have_the_tokens_of_those_alone(model: Model, sampler: str, mib: float) -> None:
    items = [{"prompt": prompt, "max_new_tokens": 5 + 4 * (at % 3)} for at, prompt in enumerate(PROMPTS * 2)]
    results = [model.generate(sampler=sampler, **item) for item in items]
    alone = [result.tokens[0] for result in results]
    cache = on(model, mib)
    for _ in range(2):
        served = {row.index: row for row in model.serve_batch(items, batch_size=3, sampler=sampler)}
        assert [served[at].tokens for at in range(len(items))] == alone
        assert 0 < cache.nbytes <= cache.budget
        for at, result in enumerate(results):
            own = served[at].result
            assert own.tokens_fed[0] + own.reused[0] == result.tokens_fed[0]
    assert sum(row.result.reused[0] for row in served.values()) > 0
    assert mib == 0.07 or (cache.evictions > 0) == (mib < 1)  # the least has room for a block or two, often leased
    check_blocks(model, cache)


def test_requests_that_take_turns(model: Model) -> None:
    arguments: dict[str, Any] = {"sampler": "lookup", "max_new_tokens": 20, "stop_ids": []}
    plain = [model.generate(prompt, **arguments).tokens[0] for prompt in PROMPTS]
    cache = on(model, 0.25)
    streams = [model.stream(prompt, **arguments) for prompt in PROMPTS]
    ends: dict[int, list[int]] = {}
    while len(ends) < len(streams):
        for at, stream in enumerate(streams):
            event = next(stream, None)
            if isinstance(event, pardec.RowFinished):
                ends[at] = event.tokens.tolist()
            assert cache.nbytes <= cache.budget
    for at, stream in enumerate(streams):
        assert list(stream)[1:] == []
        assert ends[at][-20:] == plain[at]
    check_blocks(model, cache)


@pytest.mark.parametrize("events", [1, 2, 3])
def test_a_request_left_midway_gives_its_leases_back(model: Model, events: int) -> None:
    cache = on(model)
    model.generate(PROMPTS, max_new_tokens=4)
    stream = model.stream(PROMPTS, max_new_tokens=20, stop_ids=[])
    for _ in range(events):
        next(stream)
    assert any(block.leases for block in below(cache._root)) == (events > 1)
    stream.close()  # type: ignore[attr-defined]
    check_blocks(model, cache)
    with model.serve_batch(PROMPTS * 2, batch_size=2, max_new_tokens=9) as serving:
        next(serving)
    check_blocks(model, cache)


def test_new_weights_empty_it(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    on(model)
    model.generate(PROMPTS[0], max_new_tokens=4)
    assert model.generate(PROMPTS[0], max_new_tokens=4).reused[0] > 64
    monkeypatch.setattr(type(model.language_model), "weights_version", 1, raising=False)
    results = [model.generate(PROMPTS[0], max_new_tokens=4) for _ in range(2)]
    assert [result.reused for result in results] == [[0], whole(results[0])]


def test_results_are_saved_with_what_they_reused(model: Model, tmp_path: Path) -> None:
    on(model)
    result = [model.generate(PROMPTS, max_new_tokens=4) for _ in range(2)][1]
    assert result.reused == whole(result)
    again = Result.load(result.save(tmp_path / "result.json"))
    assert again.reused == result.reused


def test_bfloat16(model: Model) -> None:
    half = pardec.load("tiny-llama", device="cpu", dtype="bfloat16")
    plain = half.generate(PROMPTS, max_new_tokens=8)
    cache = on(half)
    results = [half.generate(PROMPTS, max_new_tokens=8) for _ in range(2)]
    for result in results:  # a text whose tokens are about level may take another turn: 7 of 400 such rows did
        same = [own == other for own, other in zip(result.tokens, plain.tokens, strict=True)]
        assert sum(same) >= len(PROMPTS) - 1
    assert results[1].reused == whole(results[1])
    assert cache.nbytes == cache.blocks * 16 * 2 * model.language_model.new_cache(1, 1).nbytes // 2 // 4


@pytest.mark.parametrize("mib", [-1, float("nan"), float("inf"), "64", True, None])
def test_a_budget_is_a_number(model: Model, mib: Any) -> None:
    with pytest.raises(SpecError, match="mib must be a number of at least 0"):
        model.cache_prefixes(mib)
    assert model.prefix_cache is None


def test_models_that_cannot_share_say_why() -> None:
    with pytest.raises(SpecError, match="tiny-dream cannot reuse prefixes: its attention is bidirectional"):
        pardec.load("tiny-dream", device="cpu").cache_prefixes(64)
    with pytest.raises(SpecError, match="condition of an image"):
        pardec.load("tiny-llamagen", device="cpu").cache_prefixes(64)


def test_off_and_on_again(model: Model) -> None:
    cache = on(model)
    assert model.prefix_cache is cache
    assert model.cache_prefixes(0) is None
    assert model.prefix_cache is None
    assert on(model) is not cache


def test_a_draft_model_goes_on_from_prompts_of_its_own(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments: dict[str, Any] = {"sampler": "model:name=tiny-llama-draft,k=3", "max_new_tokens": 12, "stop_ids": []}
    plain, widest = fed(model, monkeypatch, prompt=PROMPTS[0], **arguments)
    assert min(widest.values()) > 80
    cache = on(model)
    _, widest = fed(model, monkeypatch, prompt=PROMPTS[2], **arguments)
    assert min(widest.values()) > 80
    second, widest = fed(model, monkeypatch, prompt=PROMPTS[0], **arguments)
    assert max(widest.values()) < 30
    assert second.tokens == plain.tokens
    assert second.draft_forwards == plain.draft_forwards
    served = {row.index: row for row in model.serve_batch(PROMPTS, batch_size=2, **arguments)}
    model.cache_prefixes(0)
    assert [served[at].tokens for at in range(5)] == model.generate(PROMPTS, **arguments).tokens
    assert len(cache._drafts) == 1
    check_blocks(model, cache)


@pytest.mark.parametrize("sampler", ["sequential", "lookup", "eagle:name=tiny-llama-eagle", "recycling"])
def test_samples_of_one_prompt_feed_it_once(model: Model, sampler: str) -> None:
    arguments: dict[str, Any] = {"sampler": sampler, "max_new_tokens": 16, "temperature": 1.0, "stop_ids": []}
    plain = model.generate(PROMPTS[0], num_return_sequences=4, **arguments)
    cache = on(model)
    result = model.generate(PROMPTS[0], num_return_sequences=4, **arguments)
    assert result.tokens == plain.tokens
    assert result.reused == ([0] * 4 if sampler == "recycling" else [0, *whole(result)[1:]])
    check_blocks(model, cache)


def test_values_that_are_not_finite_are_not_stored() -> None:
    broken = pardec.load("tiny-llama", device="cpu")
    cache = on(broken)
    with torch.no_grad():
        broken.language_model.decoder.layers[0].attn_norm.fill_(torch.nan)  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="not finite"):
        broken.generate([PROMPTS[0]] * 2, max_new_tokens=4)
    assert cache.blocks == 0
