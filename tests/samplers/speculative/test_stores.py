"""Caches that keep older K/V in fewer bytes: what they read, and that rows, rounds and drafts do not change it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import transformers

from pardec.models.decoder import Decoder
from pardec.models.errors import ModelError, SpecError
from pardec.models.families import match
from pardec.models.kv_stores.cache import StoredCache, stored_bytes
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.cache.stored_cache import StoredKV
from pardec.samplers.speculative.loop import VerifyLoop
from tests.models.families.test_families import CAUSAL
from tests.models.toys import SMALL
from tests.reference import naive_stores as naive
from tests.samplers.ar_toys import prompts, request, rows, run, toy_ar
from tests.samplers.module_files import random_modules
from tests.samplers.picture_toys import codes, draw, features, toy_pictures

VOCAB = 8
LENGTHS, NEW = (3, 15, 1, 9), (16, 9, 18, 12)
# Small chunks, so that many are encoded in a short answer.
STORES = (
    "int8:chunk=4,residual=3",
    "kivi:bits=2,group=4,residual=3",
    "rotatekv:bits=2,group=4,chunk=4,residual=3",
    "gear:bits=2,chunk=6,rank=2,sparsity=0.1",
    "mustafar:sparsity=0.5,chunk=4,residual=3",
)


@pytest.fixture(scope="module")
def target() -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=torch.float64)


def texts() -> list[list[int]]:
    return prompts(LENGTHS, vocab=VOCAB)


def rotate_both(
    model: LanguageModel, keys: np.ndarray, values: np.ndarray, first: int
) -> tuple[np.ndarray, np.ndarray]:
    """What `rotatekv` reads: keys are encoded before rotation, in the order of those that are encoded first."""
    frequencies = np.array(model.decoder.config.frequencies)  # type: ignore[attr-defined]
    plain = naive.rotary(keys, 1, frequencies, back=True)
    order = naive.channel_order(plain[: max(first, 4)], 1)
    read = naive.rotated(2, 4, 0.8, 1, order)(plain)
    return naive.rotary(read, 1, frequencies), naive.rotated(2, 4, 0.8, 1)(values)


def in_chunks(read: naive.Read, size: int, x: np.ndarray) -> np.ndarray:
    return np.concatenate([read(x[at : at + size]) for at in range(0, len(x), size)])


@pytest.mark.parametrize("spec", STORES)
def test_each_token_is_that_of_a_loop_that_encodes_its_whole_past_from_scratch(
    spec: str, target: LanguageModel
) -> None:
    gear = [naive.gear(2, 0.1, 2, token=token) for token in (False, True)]
    encode: dict[str, naive.Encode] = {
        "int8": lambda k, v, first: (naive.int8(k), naive.int8(v)),
        "kivi": lambda k, v, first: (in_chunks(naive.by_channel(2), 4, k), naive.by_token(2, 4)(v)),
        "rotatekv": lambda k, v, first: rotate_both(target, k, v, first),
        "gear": lambda k, v, first: (in_chunks(gear[0], 6, k), in_chunks(gear[1], 6, v)),
        "mustafar": lambda k, v, first: (naive.pruned(0.5)(k), naive.pruned(0.5)(v)),
    }
    name = spec.partition(":")[0]
    chunk, residual, sinks = {"gear": (6, 1, 0), "rotatekv": (4, 3, 1)}.get(name, (4, 3, 0))

    def settled(length: int) -> int:
        chunks = (length - residual - sinks) // chunk
        return sinks + chunk * chunks if chunks > 0 else 0

    done = run(target, f"sequential@{spec}", texts(), NEW)
    for row, (prompt, new) in enumerate(zip(texts(), NEW, strict=True)):
        expected, _ = naive.decode(target, prompt, new, settled, sinks, encode[name])
        assert rows(done)[row] == expected


@pytest.mark.parametrize("spec", STORES[1:4])
def test_drafted_tokens_are_those_of_sequential_with_the_same_cache(spec: str, target: LanguageModel) -> None:
    expected = run(target, f"sequential@{spec}", texts(), NEW)
    plain = run(target, "sequential", texts(), NEW)
    assert (expected.trace.commit_score != plain.trace.commit_score).any(), "the cache changes something"
    for draft in ("lookup", "earlyexit:layers=1,k=4+beam:nodes=8"):
        done = run(target, f"{draft}@{spec}", texts(), NEW)
        assert rows(done) == rows(expected)
        assert max(done.nfe) < max(expected.nfe), "drafts are accepted"
    alone = run(target, f"lookup@{spec}", texts()[1:2], NEW[1:2])
    assert rows(alone) == rows(expected)[1:2]


@pytest.mark.slow
@pytest.mark.parametrize("spec", STORES)
def test_every_drafter_is_sequential_with_the_same_cache(
    spec: str, target: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.samplers.speculative.test_verify_contract import names, resolves

    monkeypatch.setattr(draft_models, "language_model", lambda name, device, dtype: toy_ar(4, VOCAB, layers=3))
    expected = rows(run(target, f"sequential@{spec}", texts(), NEW))
    with random_modules():
        for draft in filter(lambda draft: resolves(f"{draft}@{spec}", sampling=False), names("draft")):
            assert rows(run(target, f"{draft}@{spec}", texts(), NEW)) == expected, draft


def test_without_codes_all_numbers_are_those_of_the_plain_cache() -> None:
    model = toy_ar(3, VOCAB, 1.5, layers=3)
    for draft in ("sequential", "lookup", "earlyexit:layers=1,k=3+beam:nodes=6"):
        plain, stored = (run(model, draft + cache, texts(), NEW) for cache in ("", "@kivi:bits=16,group=4,residual=3"))
        assert rows(plain) == rows(stored)
        if draft == "sequential":
            assert (plain.trace.commit_score == stored.trace.commit_score).all()


def test_rounds_need_not_be_aligned(target: LanguageModel) -> None:
    """Then a draft reads exact what sequential decoding reads encoded, and more of it is accepted at once."""
    store = "kivi:bits=8,group=4,residual=1"
    free, aligned = (run(target, f"lookup@{store},aligned={each}", texts(), NEW) for each in ("false", "true"))
    assert sum(free.nfe) <= sum(aligned.nfe)
    widest = max(len(fed) for row in free.trace.fed for fed in row[1:])
    assert max(len(fed) for row in aligned.trace.fed for fed in row[1:]) <= 4 < widest


@pytest.mark.parametrize("spec", STORES[1:4])
def test_rows_that_join_leave_and_move_are_those_that_are_alone(spec: str, target: LanguageModel) -> None:
    sampler, given = registry.resolve(f"lookup@{spec}", "ar"), texts()

    def start(which: list[int]) -> VerifyLoop:
        source = JoinableSource([100 + at for at in which])
        asked = request([given[at] for at in which], [NEW[at] for at in which], source=source)
        loop = VerifyLoop(target, sampler, asked)
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
    expected = rows(run(target, f"sequential@{spec}", given, NEW))
    assert [ends[at] for at in range(4)] == expected


# --- families ---

FAMILIES = (
    "llama", "qwen2 with some sliding layers", "qwen3", "mistral that slides", "phi3 that slides, rotated in part",
    "gemma2", "gemma3", "qwen3-moe, one layer dense",
)  # fmt: skip
# The mean difference of a logit from those with the plain cache, in standard deviations of these.
ENOUGH = {
    "int8:chunk=4,residual=3": 0.02,
    "kivi:bits=8,group=4,residual=3": 0.02,
    "rotatekv:bits=8,chunk=4,residual=3": 0.02,
    "gear:bits=8,chunk=5": 0.02,
    "mustafar:sparsity=0,chunk=4,residual=3": 1e-5,
}


def of_family(case: str) -> LanguageModel:
    """A random model of this family, by the config that transformers publishes."""
    kind, changes = CAUSAL[case]
    config = getattr(transformers, f"{kind}Config")(**SMALL | {"num_hidden_layers": 2} | changes).to_dict()
    family = match(config)
    assert family is not None
    decoder = Decoder(family.decoder(config))
    drawn = torch.Generator().manual_seed(1)
    for name, weight in decoder.named_parameters():
        weight.data.normal_(1.0 if "norm" in name else 0.0, 0.3, generator=drawn)
    decoder.eval().requires_grad_(False)
    facts = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32}
    return LanguageModel(
        decoder, DecodingConfig(None, (), 0, None, 1, "causal"), config, None, case, family=family.name, vocab_size=61,
        layers=2, width=48, **facts,
    )  # fmt: skip


def taught(model: LanguageModel, spec: str, tokens: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    """Logits [B, steps, V] after prompts of `sizes` [B] and after each of the tokens that follow, fed singly."""
    stage = registry.resolve(f"sequential@{spec}", "ar").cache if spec else None
    batch, width = tokens.shape
    cache = model.new_cache(batch, width) if stage is None else stage.new_cache(model, batch, width)
    lengths, out = torch.tensor(sizes), []
    steps = width - max(sizes)
    order = torch.arange(max(sizes)).expand(batch, -1)
    slots = torch.where(order < lengths[:, None], order, -1)
    plan = Plan(tokens[:, : max(sizes)], slots, slots, model.visible(), lengths, lengths[:, None] - 1)
    out.append(model.forward(plan, cache).logits())
    for _ in range(steps):
        lengths = lengths + 1
        if isinstance(cache, StoredCache):
            cache.settle(lengths.numpy())
        at = lengths[:, None] - 1
        step = Plan(tokens.gather(1, at), at, at, model.visible(), lengths, torch.zeros_like(at))
        out.append(model.forward(step, cache).logits())
    return torch.cat(out, 1)


@pytest.mark.parametrize("case", FAMILIES)
def test_with_enough_bits_every_family_says_what_it_says_with_the_plain_cache(case: str) -> None:
    model = of_family(case)
    tokens = torch.randint(0, 61, (3, 20), generator=torch.Generator().manual_seed(1))
    plain = taught(model, "", tokens, [14, 1, 6])
    for spec, bound in ENOUGH.items():
        gap = (taught(model, spec, tokens, [14, 1, 6]) - plain).abs().mean() / plain.std()
        assert gap < bound, spec
        assert gap > 0 or spec.startswith("mustafar"), "something was encoded"


def test_rotation_alone_changes_nothing() -> None:
    for case in ("phi3 that slides, rotated in part", "gemma3"):
        model = of_family(case)
        tokens = torch.randint(0, 61, (2, 22), generator=torch.Generator().manual_seed(1))
        plain = taught(model, "", tokens, [9, 14])
        gap = taught(model, "rotatekv:bits=16,chunk=4,residual=2", tokens, [9, 14]) - plain
        assert gap.abs().max() < 1e-5 * plain.abs().max()


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


def test_what_is_refused_before_the_first_forward(target: LanguageModel) -> None:
    for spec, message in (
        ("kivi:bits=5", "bits is one of 2, 3, 4, 8 or 16"),
        ("gear:bits=16", "bits must be at most 8"),
        ("kivi:residual=0", "residual must be at least 1"),
        ("mustafar:sparsity=1", "sparsity must lie in"),
        ("gear:chunk=200", "chunk must lie in"),
    ):
        with pytest.raises(SpecError, match=message):
            registry.resolve(f"sequential@{spec}", "ar")
    with pytest.raises(SpecError, match="'kivi' is for autoregressive models"):
        registry.resolve("threshold@kivi", "masked")
    shared = copy.copy(target)
    shared.processes = 2
    with pytest.raises(ModelError, match="is shared by 2 processes"):
        VerifyLoop(shared, registry.resolve("sequential@int8", "ar"), request(texts(), 3))


@pytest.mark.parametrize("draft", ["sparsekv", "triforce:name=toy"])
@pytest.mark.parametrize("cache", ["kivi", "gear", "int8", "mustafar", "rotatekv"])
def test_drafters_that_copy_keys_of_the_text_take_no_encoded_ones(draft: str, cache: str) -> None:
    with pytest.raises(SpecError, match=f"{draft.split(':')[0]} copies keys and values of the text, which '{cache}'"):
        registry.resolve(f"{draft}@{cache}", "ar")
