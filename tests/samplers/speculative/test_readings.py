"""Readings: what they choose, what they are as caches, and that drafting through them changes nothing."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.caches.compact_cache import CompactCache, text_keys
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.cache.retrieval import Retrieval
from pardec.samplers.speculative.contracts import DecodeContext, Draft, TargetDistributions, Uniforms, Verdict
from pardec.samplers.speculative.draft.triforce import TriForce
from pardec.samplers.speculative.loop import VerifyLoop
from pardec.samplers.speculative.sparse_kv import CommittedSlots
from pardec.tasks import task
from tests.reference.naive_window import naive
from tests.samplers.ar_toys import g_test, logits, prompts, request, rows, run, toy_ar
from tests.samplers.joint_distributions import SMALL, WORLDS, drafting, measure

VOCAB = 8
GIVEN, NEW = prompts((3, 6, 1, 9, 40), vocab=VOCAB), (20, 12, 30, 25, 20)
LOSSY = ("retrieval:budget=8,chunk=2,refresh=2", "streaming:sink=2,window=6", "lminfinite:sink=2,window=6")
WHOLE = ("retrieval:budget=64", "retrieval:budget=66,chunk=11,refresh=1", "streaming:sink=4,window=60")


def target(dtype: torch.dtype = torch.float32) -> LanguageModel:
    return toy_ar(3, VOCAB, 1.5, layers=3, dtype=dtype)


# --- what is chosen ---


def naive_chunks(q: Tensor, k: Tensor, size: int, budget: int) -> list[list[int]]:
    """Of each head of keys, the chunks that are seen: q [H, D], k [S, K, D]."""
    kv, share = k.shape[1], len(q) // k.shape[1]
    chosen = []
    for head in range(kv):
        total = [0.0] * (len(k) // size)
        for query in q[head * share : (head + 1) * share]:
            means = [k[size * at : size * (at + 1), head].mean(0) for at in range(len(total))]
            weights = [float((query @ mean / len(query) ** 0.5).exp()) for mean in means]
            total = [old + weight / sum(weights) for old, weight in zip(total, weights, strict=True)]
        best = sorted(range(1, len(total)), key=lambda at: -total[at])
        chosen.append(sorted([0, *best[: budget // size - 1]]))
    return chosen


def test_retrieval_chooses_the_chunks_of_the_plain_version() -> None:
    rng, lengths = np.random.RandomState(0), np.array([23, 7, 2, 12])
    cache = KVCache(layers=2, batch=4, capacity=24, kv_heads=2, head_dim=4, dtype=torch.float64)
    queries = tuple(torch.from_numpy(rng.standard_normal((4, 1, 6, 4))) for _ in range(2))
    for k in cache.k:
        k.copy_(torch.from_numpy(rng.standard_normal(k.shape)))
        for row, length in enumerate(lengths):
            k[row, length:] = torch.nan  # after the text
    choice = Retrieval(budget=9, chunk=3).choose(CommittedSlots(cache, np.arange(4), lengths, queries))
    assert choice.first.tolist() == [21, 6, 0, 12]
    for layer, slots in enumerate(choice.chosen):
        for row, length in enumerate(lengths // 3 * 3):
            wanted = naive_chunks(
                queries[layer][row, 0], text_keys(cache, layer, torch.arange(4), 24)[row, :length], 3, 9
            )
            for head, chunks in enumerate(wanted if length else [[], []]):
                expected = [3 * chunk + at for chunk in chunks for at in range(3)]
                assert [slot for slot in slots[row, :, head].tolist() if slot >= 0] == expected


# --- as caches ---


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
    """The rows 0 .. 2, whose first to end is replaced by row 3, are as expected."""
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


@pytest.mark.parametrize("drafter", ["lookup:k=3", "layerskip:k=3+template:widths=2-2-1"])
@pytest.mark.parametrize("cache", LOSSY[1:])
@pytest.mark.covers(1)
def test_every_drafter_gives_what_sequential_gives_through_the_same_window(drafter: str, cache: str) -> None:
    """Each query sees its own window, whatever else is fed: the plain version says what that gives."""
    model = target(torch.float64)
    done = run(model, f"{drafter}@{cache}", GIVEN, NEW)
    assert rows(done) == rows(run(model, f"sequential@{cache}", GIVEN, NEW))
    text = rows(done)[1]
    truth = naive(model.decoder, text, 2, 6, "offsets" if "lminfinite" in cache else None)
    assert truth[len(GIVEN[1]) - 1 : -1].argmax(-1).tolist() == text[len(GIVEN[1]) :]


@pytest.mark.parametrize("cache", LOSSY)
def test_what_a_reading_leaves_out_may_be_nan(cache: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All slots of the compact cache but those that were filled, or written since, and the whole text between fills."""
    plain = rows(run(target(), f"sequential@{cache}", GIVEN, NEW))
    fill = CompactCache.fill

    def poisoned(compact: Any, source: KVCache, some: np.ndarray, *rest: Any) -> None:
        for store in (*compact.k, *compact.v):
            store[torch.from_numpy(some)] = torch.nan
        fill(compact, source, some, *rest)

    monkeypatch.setattr(CompactCache, "fill", poisoned)
    assert rows(run(target(), f"sequential@{cache}", GIVEN, NEW)) == plain


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
        ("layerskip:skip=search@streaming", "feeds tokens again"),
        ("layerskip:skip=search@lminfinite", "feeds tokens again"),
        ("sequential@retrieval:budget=4", "budget must be at least 8"),
        ("sequential+streaming", "must follow '@'"),
        ('sparsekv:read="lminfinite"', "one sparse cache"),
        ('sparsekv:read="lookup"', "one sparse cache"),
        ("triforce", "name is missing"),
    ):
        with pytest.raises(SpecError, match=reason) as error:
            registry.resolve(spec, "ar")
        assert error.value.hint
    windowed = toy_ar(0)
    object.__setattr__(windowed.decoder.config, "attention_cap", 5.0)  # type: ignore[attr-defined]
    for spec in ("sequential@retrieval", "sequential@streaming", "sequential@lminfinite", "sparsekv"):
        with pytest.raises(ModelError, match="caps its attention scores"):
            run(windowed, spec, [[1]], 2)


# --- as drafters ---


class Ratios:
    """Notes how likely each tested node was accepted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gaps: list[float] = []
        accept = registry.resolve("lookup+speculative", "ar").accept.__class__.accept

        def noted(
            rule: Any, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: Any
        ) -> Verdict:
            verdict = accept(rule, draft, distributions, uniforms, state)
            if draft.q is not None:
                behind = distributions.probs[:, :-1] - draft.q[:, 1:]
                self.gaps.extend(behind[draft.tested[:, 1:]].abs().flatten().tolist())
            return verdict

        monkeypatch.setattr(registry.resolve("lookup+speculative", "ar").accept.__class__, "accept", noted)


@pytest.mark.parametrize("read", WHOLE[1:])
@pytest.mark.parametrize("drafter", ["sparsekv:k=3", "triforce:name=toy,k=2,gamma=3"])
@pytest.mark.covers(1)
def test_with_room_for_the_whole_text_every_draft_is_accepted(
    drafter: str, read: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its distributions are the target's."""
    ratios = Ratios(monkeypatch)
    with drafting(VOCAB):
        done = run(target(torch.float64), f'{drafter},read="{read}"+speculative', GIVEN, NEW, temperature=1.0)
    assert done.trace.accepted == done.trace.drafted
    assert ratios.gaps
    assert max(ratios.gaps) < 1e-6  # probabilities are float32


@pytest.mark.parametrize("drafter", ["sparsekv", "triforce"])
def test_garbage_in_the_compact_cache_costs_acceptance_alone(drafter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fill = CompactCache.fill
    rng = torch.Generator().manual_seed(0)

    def spoiled(compact: Any, *rest: Any) -> None:
        fill(compact, *rest)
        for store in (*compact.k, *compact.v):
            store.normal_(std=3, generator=rng)

    monkeypatch.setattr(CompactCache, "fill", spoiled)
    with drafting(VOCAB):
        done = run(target(), SMALL[drafter], GIVEN, NEW)
    assert rows(done) == rows(run(target(), "sequential", GIVEN, NEW))
    for reading in measure(f"{SMALL[drafter]}+speculative", WORLDS["5 tokens, length 4"], 600):
        assert reading.z < 4


def test_what_leaves_the_inner_loop_has_the_middle_models_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first two tokens of the first draft, over all pairs, against masked forwards of the target; V is 4."""
    model, text, count = toy_ar(3, 4), [1, 3, 0, 2, 1, 1], 3000
    drafts: list[Draft] = []
    propose = TriForce.propose

    def kept(drafter: Any, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: Any) -> Draft:
        drafts.append(propose(drafter, context, room, uniforms, state))
        return drafts[-1]

    monkeypatch.setattr(TriForce, "propose", kept)
    spec = 'triforce:name=toy,read="streaming:sink=1,window=2",k=2,gamma=2'
    with drafting(4):
        done = run(model, spec, [text] * count, 4, temperature=1.0)
    first = done.tokens[:, len(text)]  # what the prompt's forward gave, after which the draft stands
    draft = drafts[0]
    for token in range(4):
        some = draft.tokens[torch.from_numpy(np.asarray(first) == token)]
        ends = list(product(range(4), repeat=2))
        whole = torch.tensor([[*text, token, *end] for end in ends])
        order = torch.arange(whole.shape[1])
        seen = (order <= order[:, None]) & ((order < 1) | (order >= len(text) - 2) | (order[:, None] < len(text)))
        made = model.forward(Plan.full(whole, Visible.mask(seen.expand(len(whole), -1, -1)))).logits()
        probs = made[:, len(text) : -1].double().softmax(-1).gather(-1, torch.tensor(ends)[..., None])[..., 0].prod(1)
        counts = np.zeros((4, 4), dtype=np.int64)
        np.add.at(counts, tuple(some[:, 1:3].numpy().T), 1)
        assert g_test(counts, probs.numpy().reshape(4, 4)) < 4
    plain = logits(model, [text])[0, -1].softmax(-1).numpy()
    assert np.abs(np.bincount(first, minlength=4) / count - plain).max() < 0.04


# --- what the papers show ---


def accepted(done: Finished) -> float:
    """The share of drafted tokens that is accepted."""
    taken, all_of = (sum(map(sum, each)) for each in (done.trace.accepted, done.trace.drafted))
    return taken / all_of


@pytest.mark.seeds("arXiv:2404.11912")
def test_retrieval_drafts_better_than_a_window_of_its_size_and_both_levels_are_exact() -> None:
    model = load("tiny-llama", device="cpu")
    problems = task("records").problems("heldout", 60)
    assert model.tokenizer is not None
    texts = []
    for at in range(4):  # the fact first, and other people's after it
        others = [other.prompt.split(":", 1)[1] for other in problems[20 + 10 * at : 30 + 10 * at]]
        texts.append(model.tokenizer(problems[at].prompt + "".join(others))["input_ids"])
    budgets = {
        read: f'sparsekv:read="{read}",k=4' for read in ("retrieval:budget=64,chunk=4", "streaming:sink=4,window=60")
    }
    assert min(map(len, texts)) > 64
    shares = [accepted(run(model, spec, texts, 16, temperature=1.0)) for spec in budgets.values()]
    assert shares[0] > shares[1]
    for reading in measure(f"{SMALL['triforce']}+speculative", WORLDS["5 tokens, length 4"], 1000, seed=3):
        assert reading.z < 4


@pytest.mark.seeds("arXiv:2309.17453")
def test_a_query_reads_the_first_tokens_and_its_window_in_memory_of_constant_size() -> None:
    """As a mask over all keys and values gives it, on a trained model; plain attention while the text fits."""
    network = pardec.load("tiny-llama", device="cpu").language_model
    stage = registry.resolve("sequential@streaming:sink=4,window=20", "ar").cache
    assert stage is not None
    text = torch.from_numpy(np.random.RandomState(0).randint(0, 300, (2, 90)))
    order = torch.arange(90)
    seen = (order <= order[:, None]) & ((order < 4) | (order > order[:, None] - 20))
    with torch.inference_mode():
        cache = stage.new_cache(network, 2, 90)
        read = network.forward(Plan.full(text, Visible.causal()), cache).logits()
        masked = network.forward(Plan.full(text, Visible.mask(seen.expand(2, -1, -1)))).logits()
        plain = network.forward(Plan.full(text, Visible.causal())).logits()
    torch.testing.assert_close(read, masked, rtol=0, atol=1e-4)
    torch.testing.assert_close(read[:, :20], plain[:, :20], rtol=0, atol=1e-4)
    assert (read[:, 40:] - plain[:, 40:]).abs().max() > 0.5
    assert cache.nbytes == stage.new_cache(network, 2, 900).nbytes


@pytest.mark.seeds("arXiv:2308.16137")
def test_at_capped_distances_a_long_text_is_read_as_a_short_one(tmp_path: Any) -> None:
    """How far the sinks lie does not matter any more, where sinks that keep their distance do change what is said."""
    model = toy_ar(6, VOCAB, layers=2, dtype=torch.float64)
    beginning, ending = prompts((4, 13), vocab=VOCAB, seed=1)
    texts = [[*beginning, *middle, *ending] for middle in prompts((9, 40, 400), vocab=VOCAB, seed=2)]
    made: dict[str, list[Tensor]] = {"lminfinite:sink=4,window=6": [], "streaming:sink=4,window=6": []}
    for spec, each in made.items():
        stage = registry.resolve(f"sequential@{spec}", "ar").cache
        assert stage is not None
        for text in texts:
            cache = stage.new_cache(model, 1, len(text))
            each.append(model.decoder(Plan.full(torch.tensor([text]), Visible.causal()), cache).logits()[0, -1])
    capped, others = made.values()
    for one, other in zip(capped[1:], others[1:], strict=True):
        torch.testing.assert_close(one, capped[0], rtol=0, atol=1e-5)
        assert (other - others[0]).abs().max() > 0.05
    short = [*texts[0], *ending]
    assert len(short) == 39
    plain, read = (run(model, spec, [short], 20) for spec in ("sequential", "sequential@lminfinite:window=60"))
    assert rows(read) == rows(plain)
