"""`suffix`: drafts by hand and by a naive search, the store of earlier texts, and fewer forwards than `lookup`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.draft.suffix import Places, Store, Suffix
from tests.reference import naive_lookup
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.copying_model import induction
from tests.samplers.drafter_checks import drafts_alone_what_it_drafts_in_a_batch, greedy_holds


def drafted(rule: Suffix, text: list[int], store: Store | None = None, remaining: int = 99) -> list[int]:
    return [token for token, _, _ in rule.guess(np.array(text), Places(), store, remaining)]


def drafts_are_those_of_a_naive_search() -> None:
    lengths = []
    for seed in range(150):
        drawn = random.Random(seed)
        alphabet = drawn.choice([1, 2, 3, 5])
        texts = [[drawn.randrange(alphabet) for _ in range(drawn.randint(1, 20))] for _ in range(drawn.randint(0, 4))]
        k, depth = drawn.randint(1, 8), drawn.randint(1, 9)
        least, factor, offset = drawn.choice([0.0, 0.1, 0.4]), drawn.choice([0.5, 1.0, 2.0]), drawn.choice([0.0, 1.5])
        rule, store = Suffix(k, depth, factor, offset, least), Store(1000)
        for text in texts:
            store.add(text)
        own, text = Places(), [drawn.randrange(alphabet) for _ in range(drawn.randint(1, 15))]
        for _ in range(4):  # the row's places grow with its text
            found = [token for token, _, _ in rule.guess(np.array(text), own, store, 99)]
            assert found == naive_lookup.suffix(text, texts, k, least, depth, factor, offset), seed
            lengths.append(len(found))
            text += [*found[: drawn.randint(0, len(found))], drawn.randrange(alphabet)]
    assert len(set(lengths)) > 5


def test_a_worked_example() -> None:
    """After 1 2, 3 follows twice and 4 once, so that p(3) = 2/3; after 1 2 3, 5 and 6 follow: the later one, 1/3.

    The match of two tokens scores 2/3 + 1/3; that of the last token alone, of one drafted token, 2/3.
    """
    text = [1, 2, 3, 5, 0, 1, 2, 4, 0, 1, 2, 3, 6, 9, 1, 2]
    assert drafted(Suffix(), text) == [3, 6]
    assert drafted(Suffix(), text, remaining=1) == [3]
    assert drafted(Suffix(least=0.5), text) == [3]
    assert drafted(Suffix(k=1), text) == [3]
    likely = [1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 3, 5, 1, 2, 4, 1, 2]  # p(3) = p(3 5) = 3/4 after 1 2, and p(4) = 1/4
    assert Suffix(k=2, depth=2, tree=True).guess(np.array(likely), Places(), None, 9) == [(3, 0, 1), (5, 1, 2)]
    tree = Suffix(tree=True, factor=2).guess(np.array(text), Places(), None, 9)
    assert sorted(tree) == sorted([(3, 0, 1), (4, 0, 1), (6, 1, 2), (5, 1, 2)])
    # The last token of a row may be any of several.
    assert Suffix(tree=True, factor=2).guess(np.array(text), Places(), None, 1) == [(3, 0, 1), (4, 0, 1)]
    assert Suffix(tree=True).guess(np.array(text), Places(), None, 0) == []


def test_a_longer_match_is_followed_further() -> None:
    text = [*range(10, 20), 1, *range(10, 15)]
    assert drafted(Suffix(), text) == [15, 16, 17, 18, 19]
    assert drafted(Suffix(depth=2), text) == [15, 16]
    assert drafted(Suffix(factor=0.0), text) == []


def test_of_equal_scores_the_longer_match_is_taken() -> None:
    """After 1 2 come 5 and 6, each with 1/2, the later one first; after 2 alone comes 7, with 1/2 too."""
    text = [1, 2, 5, 1, 2, 6, 9, 2, 7, 8, 2, 7, 1, 2]
    assert drafted(Suffix(factor=0.5, offset=0.5), text) == [6]


def test_a_path_s_children_are_drafted_after_it() -> None:
    seeded = random.Random(0)
    text = [seeded.randrange(3) for _ in range(60)]
    nodes = Suffix(tree=True, factor=4).guess(np.array(text), Places(), None, 12)
    assert all(parent < at for at, (_, parent, _) in enumerate(nodes, 1))
    assert all(depth == (nodes[parent - 1][2] if parent else 0) + 1 for _, parent, depth in nodes)
    assert len({(token, parent) for token, parent, _ in nodes}) == len(nodes)
    assert len(nodes) > 4


@pytest.mark.parametrize("options", ["", ":tree=true,factor=2", ":keep=true", ":depth=3,offset=2"])
def test_greedy_decoding_is_unchanged(options: str) -> None:
    if "keep" not in options:  # whose rounds depend on the rows before
        assert greedy_holds(f"suffix{options}") > 1.0
    model, given = toy_ar(3, vocab=11, sharp=2.0), [[5, 6, 7, 5], [9], [2] * 6]
    sampler = registry.resolve(f"suffix{options}", "ar", sampling=False)
    for _ in range(2):
        assert rows(run(model, sampler, given, 20)) == [plain_greedy(model, prompt, 20) for prompt in given]


def test_a_text_enters_the_store_when_it_is_complete_after_the_prompt_s_last_tokens() -> None:
    model = toy_ar(3, vocab=11, sharp=2.0)
    sampler = registry.resolve("suffix:keep=true,depth=2", "ar", sampling=False)
    first = run(model, sampler, [[5, 6, 7], [9]], [12, 7])
    store = vars(sampler.draft)["_stores"][model.decoder]
    written = [text[at:] for text, at in zip(rows(first), (1, 0), strict=True)]  # a prompt of three and one of one
    assert store.ids[: store.length].tolist() == [*written[1], -1, *written[0], -1]  # the shorter one ends first
    second = run(model, sampler, [[5, 6, 7], [9]], [12, 7])
    assert rows(second) == rows(first)
    assert sum(second.nfe) < sum(first.nfe)
    assert not vars(registry.resolve("suffix", "ar", sampling=False).draft)["_stores"]


def test_the_oldest_texts_leave_a_full_store() -> None:
    store, whole = Store(20), list[list[int]]()
    for number in range(12):
        text, before = list(range(10 * number, 10 * number + 2 + number * 5 % 7)), len(store.sizes)
        store.add(text)
        whole.append([*text, -1])
        assert len(store.sizes) == before + 1 or store.length <= 15, "a quarter is free"
        assert store.length <= 20
        assert store.ids[: store.length].tolist() == [token for each in whole[-len(store.sizes) :] for token in each]
        assert all(store.ids[at - 1] == token for token, places in store.after.items() for at in places)
    assert 0 not in store.after
    store.add(list(range(500, 530)))
    assert 500 not in store.after


def test_texts_do_not_run_into_each_other() -> None:
    store = Store(100)
    store.add([1, 2, 3])
    store.add([4, 5])
    assert drafted(Suffix(offset=5), [9, 3], store) == []
    assert drafted(Suffix(offset=5), [9, 2], store) == [3]
    assert drafted(Suffix(offset=5), [9, -1], store) == []


def test_a_store_goes_with_drawn_samples_only_if_these_ignore_the_drafts() -> None:
    model = toy_ar(3, vocab=11)
    with pytest.raises(SpecError, match="with keep=true a sampled text would depend on the requests before it"):
        run(model, "suffix:keep=true", [[1, 2]], 6, temperature=1.0)
    run(model, "suffix:keep=true+match:noise=seeded", [[1, 2]], 6, temperature=1.0)


def forwards(model: Any, sampler: Any, prompts: Sequence[Any], count: int) -> tuple[int, list[list[int]]]:
    """The forwards over all prompts, without those of the prompts, and the tokens."""
    if isinstance(model, pardec.Model):
        done = model.generate(prompts, sampler=sampler, max_new_tokens=count)
        return sum(done.nfe) - len(prompts), done.tokens
    made = run(model, sampler, prompts, count)
    return sum(made.nfe) - len(prompts), rows(made)


def edited(seed: int, edits: int) -> list[int]:
    """A text of 160 tokens, its copy with `edits` of them replaced, and the beginning of a third one."""
    seeded = np.random.RandomState(seed)
    text = seeded.permutation(400)[:160]
    copy = text.copy()
    copy[seeded.permutation(150)[:edits] + 5] = 400 + seeded.permutation(90)[:edits]
    return [*text.tolist(), *copy.tolist(), *copy[:3].tolist()]


@pytest.mark.seeds("arXiv:2411.04975")
def test_fewer_forwards_than_lookup_where_edited_texts_are_repeated_and_on_a_second_pass() -> None:
    test_a_worked_example()  # the rule by hand
    test_a_longer_match_is_followed_further()
    test_of_equal_scores_the_longer_match_is_taken()
    drafts_are_those_of_a_naive_search()
    drafts_alone_what_it_drafts_in_a_batch("suffix")
    test_the_oldest_texts_leave_a_full_store()
    test_a_text_enters_the_store_when_it_is_complete_after_the_prompt_s_last_tokens()
    test_texts_do_not_run_into_each_other()
    model, given = induction(), [edited(seed, seed) for seed in range(6)]
    lookup, same = forwards(model, "lookup", given, 140)
    ours, tokens = forwards(model, "suffix", given, 140)
    assert tokens == same
    assert ours < 0.7 * lookup
    tiny = pardec.load("tiny-llama", device="cpu")
    prompts = [one.prompt for one in pardec.task("chains").problems(split="heldout", n=20, seed=7)]
    lookup, same = forwards(tiny, "lookup", prompts, 64)
    kept = registry.resolve("suffix:keep=true", "ar")
    first, again = (forwards(tiny, kept, prompts, 64) for _ in range(2))
    assert first[1] == again[1] == same
    assert again[0] < 0.7 * lookup
