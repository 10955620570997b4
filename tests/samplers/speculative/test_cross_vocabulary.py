"""A drafter with another tokenizer: the map of tokens, the re-encoded text, its cache, and acceptance."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from unittest.mock import patch

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.draft.cross_vocabulary import CrossVocabularyState, DrafterText, TokenMap, _Row
from tests.samplers.ar_toys import counted, g_test, joint, logits, plain_greedy, rows, run, toy_ar
from tests.samplers.fake_draft_model import LENGTHS, named

WORDS = ("a", "b", "ab", "ba", "bab")  # the target's tokens
LETTERS = ("b", "<end>", "a")  # the drafter's
SPEC = "model:name=letters,k=3,map=text"
PROMPTS = [[0, 1, 2], [3], [2, 2, 0, 4, 1, 0], [1, 4]]
NEW = [12, 15, 9, 14]


def tokenizer(tokens: tuple[str, ...]) -> PreTrainedTokenizerFast:
    """A BPE tokenizer of letters and of tokens that are merges of two other tokens."""
    merges = [(one, token[len(one) :]) for token in tokens for one in tokens if token[len(one) :] in tokens]
    merges = [(one, other) for one, other in merges if (one + other) in tokens and other]
    backend = Tokenizer(models.BPE({token: at for at, token in enumerate(tokens)}, merges))
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@cache
def target() -> LanguageModel:
    model = toy_ar(3, len(WORDS), 2.0)
    model.tokenizer = tokenizer(WORDS)
    return model


@cache
def letters() -> LanguageModel:
    model = toy_ar(10, len(LETTERS), 2.0)
    model.tokenizer = tokenizer(LETTERS)
    return model


@pytest.fixture(autouse=True)
def toys() -> Iterator[None]:
    with named(letters=letters(), nameless=toy_ar()):
        yield


# --- tokens ---


def the_longest_run_wins_and_what_may_still_grow_waits() -> None:
    tokens = TokenMap(letters(), target())
    assert tokens.direct == {0: 1, 2: 0}
    assert tokens.first([2, 0]) == (0, 1)  # nothing is known but equal strings
    tokens.learn(2)  # ab
    tokens.learn(4)  # bab
    tokens.learn(1)  # b, which is one token of the drafter: no run
    assert tokens.grams == {(2, 0): 2, (0, 2, 0): 4}
    assert tokens.first([2]) is None
    assert tokens.first([2, 0]) == (2, 2)
    assert tokens.first([0, 2]) is None  # bab may come
    assert tokens.first([0, 2, 2]) == (1, 1)  # it does not: b, then a
    assert tokens.first([0, 2, 0, 0]) == (4, 3)
    assert tokens.first([1]) == (-1, 0)  # no token of the target
    assert tokens.first([]) is None
    nested = tokens.copy()
    nested.grams[2, 0, 2] = 3
    assert nested.first([2, 0, 2]) == (3, 3)  # and not the run of two that it begins with
    ending = (
        replace(model, decoding_config=replace(model.decoding_config, eos_ids=ends))
        for model, ends in ((letters(), (1,)), (target(), (3, 4)))
    )
    assert TokenMap(*ending).direct == {0: 1, 1: 3, 2: 0}  # an end is an end, however it is spelled
    other = tokens.copy()
    other.learn(3)
    assert len(other.grams) == len(tokens.grams) + 1
    fixed = TokenMap(letters(), target(), runs=False)
    fixed.learn(2)
    assert fixed.grams == {}


@pytest.mark.parametrize("names", [("tiny-llama-bytes", "tiny-llama"), ("tiny-llama", "tiny-llama-bytes")])
def test_what_was_read_spells_the_text_however_it_grew(names: tuple[str, str]) -> None:
    drafter, model = (load(name, device="cpu") for name in names)
    assert model.tokenizer is not None
    text = "Tom has 18 cups. He loses 4. He finds 12 cups, and Ann's dog has none! How many cups does Tom have now?"
    ids = model.tokenizer(text)["input_ids"]
    tokens = TokenMap(drafter, model)
    whole = DrafterText(tokens, drafter, model)
    whole.extend(ids)
    assert whole.text.decode() == text
    random = np.random.RandomState(0)
    for _ in range(5):
        grown, size = DrafterText(tokens, drafter, model), 0
        while size < len(ids):
            size = min(size + random.randint(1, 6), len(ids))
            grown.extend(ids[:size])
            spelled = b"".join(tokens.drafter.tokens[token] for token in grown.ids)
            assert spelled.removeprefix(b" ") == grown.text
            assert grown.ends[-1] - grown.ends[0] == len(spelled)
        assert grown.text == whole.text
        assert [token for token in grown.ids if token in tokens.drafter.special] == [2]  # the beginning's
    if names[0] == "tiny-llama-bytes":
        assert grown.ids == whole.ids == drafter.tokenizer(text)["input_ids"]  # type: ignore[misc]


# --- decoding ---


def an_id_is_the_likeliest_behind_all_before_it_without_a_cache() -> None:
    compared = 0
    feed = CrossVocabularyState._run

    def watched(self: CrossVocabularyState, at: list[int], width: int) -> None:
        nonlocal compared
        feed(self, at, width)
        for row in (self.rows[index] for index in at):
            expected = logits(letters(), [row.ids[:-1]])[0, -1]
            assert row.ids[-1] == int(expected.argmax())
            assert row.pending[-1][1] == pytest.approx(float(expected.softmax(-1).max()), abs=1e-5)
            compared += 1

    with patch.object(CrossVocabularyState, "_run", watched):
        run(target(), SPEC, PROMPTS, NEW)
        run(target(), SPEC, PROMPTS, NEW, temperature=1.0)
    assert compared > 60


@pytest.mark.parametrize("more", [f"{('text', 'direct')[at % 2]}{length}" for at, length in enumerate(LENGTHS[:4])])
def test_greedy_decoding_is_kept_in_a_ragged_batch_and_alone(more: str) -> None:
    spec = f"model:name=letters,k=3,map={more}"
    done = run(target(), spec, PROMPTS, NEW)
    assert rows(done) == [plain_greedy(target(), prompt, new) for prompt, new in zip(PROMPTS, NEW, strict=True)]
    assert sum(map(sum, done.trace.accepted)) > 0
    for at, prompt in enumerate(PROMPTS[:2]):
        alone = run(target(), spec, [prompt], NEW[at])
        assert (rows(alone)[0], alone.nfe[0], alone.trace.fed[0]) == (rows(done)[at], done.nfe[at], done.trace.fed[at])


@pytest.mark.parametrize("accept", ["speculative", "match"])
def test_draws_have_the_joint_distribution_of_the_target(accept: str) -> None:
    given, count = [0, 2, 3], 3000
    done = run(target(), f"{SPEC}+{accept}", [given] * count, 3, temperature=1.0, seeds=range(count))
    assert g_test(counted(done, 3, 3, len(WORDS)), joint(target(), given, 3)) < 4
    assert sum(map(sum, done.trace.accepted)) > count / 10


def test_a_shared_map_needs_noise_that_no_draft_changes() -> None:
    with pytest.raises(SpecError, match="model: with keep=true a sampled text would depend on the requests before it"):
        run(target(), f"{SPEC},keep=true", PROMPTS, 4, temperature=1.0)
    sampler = registry.resolve(f"{SPEC},keep=true", "ar")
    first, second = (run(target(), sampler, PROMPTS, NEW) for _ in range(2))
    assert rows(first) == rows(second)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(SpecError, match="with map=text the draft is a chain"):
        registry.resolve(f"{SPEC}+beam", "ar")
    with pytest.raises(ModelError, match="map=text needs tokenizers, and toy has no tokenizer"):
        run(target(), "model:name=nameless,map=text", PROMPTS, 4)
    with pytest.raises(ModelError, match="do not share their tokens"):
        run(target(), "model:name=letters", PROMPTS, 4)


@pytest.mark.seeds("arXiv:2507.02659")
def test_acceptance_rises_over_a_stream_as_the_map_fills() -> None:
    """The drafter's tokens are bytes, the target's are words; equal strings alone reach a lower acceptance."""
    the_longest_run_wins_and_what_may_still_grow_waits()
    a_run_is_as_likely_as_all_of_its_tokens()
    what_has_been_read_may_still_change_but_not_before_a_special_token()
    drafts_end_with_the_budget_and_with_the_drafter_s_positions()
    an_id_is_the_likeliest_behind_all_before_it_without_a_cache()
    for length, most in (("unsure:tau=1", 1), ("fallback:below=1", 0)):  # an unsure token is drafted, or is not
        assert max(map(max, run(target(), f"{SPEC}+{length}", PROMPTS, NEW).trace.drafted)) == most
    test_what_was_read_spells_the_text_however_it_grew(("tiny-llama-bytes", "tiny-llama"))
    model, spelling = pardec.load("tiny-llama", device="cpu"), load("tiny-llama-bytes", device="cpu")
    given = [each.prompt for each in pardec.task("arithmetic").problems(split="heldout", n=16, seed=7)]
    plain = model.generate(given, sampler="sequential", max_new_tokens=32).tokens

    def lengths(spec: str) -> list[float]:
        sampler, result = registry.resolve(f"model:name=spelling,k=4,{spec}", "ar"), []
        for start in range(0, 16, 4):
            with named(spelling=spelling):
                done = model.generate(given[start : start + 4], sampler=sampler, max_new_tokens=32)
            assert done.tokens == plain[start : start + 4]
            result.append((sum(map(len, done.tokens)) - 4) / (sum(done.nfe) - 4))
        return result

    direct, filling = lengths("map=direct"), lengths("map=text,keep=true")
    assert np.mean(filling[2:]) > 1.1 * filling[0] > 1.1 * max(direct)
    assert np.mean(filling[2:]) > 2 * np.mean(direct)


def a_run_is_as_likely_as_all_of_its_tokens() -> None:
    """a .5 and b .4 are the target's ab with .2; the b after them stays."""
    tokens = TokenMap(letters(), target())
    tokens.learn(2)  # ab
    row = _Row(tokens, letters(), target())
    row.live, row.pending = True, [(2, 0.5), (0, 0.4), (0, 0.3)]
    assert row.next_token() == (2, pytest.approx(0.2))
    assert row.pending == [(0, 0.3)]
    assert row.next_token() == (1, pytest.approx(0.3))
    assert row.next_token() is None
    assert row.live
    row.pending = [(1, 0.9), (0, 0.8)]
    assert row.next_token() is None, "the target has no such token: what comes after it is of no use"
    assert not row.live
    row.fed = [2, 0, 2]
    row.follow([0, 1, 0])
    assert (row.ids, row.fed) == ([2, 0, 2], [2, 0]), "the last id is fed again, for its logits"


def what_has_been_read_may_still_change_but_not_before_a_special_token() -> None:
    """The drafter's words are the target's here, so that b after a makes ab of both; an end closes the text before."""
    tokens = TokenMap(target(), letters())
    read = DrafterText(tokens, target(), letters())
    for row, ids in (([2], [0]), ([2, 0], [2]), ([2, 0, 0], [2, 1])):
        read.extend(row)
        assert read.ids == ids
    drafter, model = (load(name, device="cpu") for name in ("tiny-llama-bytes", "tiny-llama"))
    assert model.tokenizer is not None
    ids, end = model.tokenizer("Tom has 18 cups", add_special_tokens=False)["input_ids"], model.tokenizer.eos_token_id
    tokens = TokenMap(drafter, model)
    grown = DrafterText(tokens, drafter, model)
    for size in range(1, 2 * len(ids) + 2):
        grown.extend([*ids, end, *ids][:size])
    spelled, space = (tokens.drafter.encode(text) for text in (b"Tom has 18 cups", b" "))
    assert grown.ids[1:] == [*spelled, tokens.same[end], *space, *spelled]


def drafts_end_with_the_budget_and_with_the_drafter_s_positions() -> None:
    """The third draft position needs ids up to the limit: a text of n letters is fed whole if the limit is n."""
    done = run(target(), SPEC, PROMPTS, NEW)
    for new, gained, drafted in zip(NEW, done.trace.gained, done.trace.drafted, strict=True):
        left = new - np.cumsum((0, *gained[:-1]))
        assert all(count < room for count, room in zip(drafted, left, strict=True))
    given = [4] * 16
    size = sum(len(WORDS[token]) for token in plain_greedy(target(), given, 1))
    for short, count in ((1, 0), (0, 1), (-1, 2)):
        with named(letters=replace(letters(), limit=size - short)):
            done = run(target(), "model:name=letters,k=3,map=direct", [given], 5)
        assert done.trace.drafted[0][1] == count
