"""CopySpec compared with a search of the whole text that follows the pointer by comparing."""

from __future__ import annotations

import random

import numpy as np
import pytest

from pardec.models.errors import SpecError
from pardec.samplers.speculative.draft.copyspec import Copy, CopySpec
from pardec.samplers.speculative.draft.text_history import repeated
from tests.reference import naive_lookup
from tests.samplers.ar_toys import is_greedy, rows, run
from tests.samplers.drafter_checks import cyclic, drafts_alone_what_it_drafts_in_a_batch, forwards_a_token, gained


def drafts_are_those_of_a_search_of_the_whole_text() -> None:
    continued = 0
    for seed in range(80):
        drawn = random.Random(seed)
        k, suffix, alphabet = drawn.randint(1, 8), drawn.randint(1, 5), drawn.choice([1, 2, 3, 6])
        copy, naive = Copy(suffix), naive_lookup.Copying(k, suffix)
        text = [drawn.randrange(alphabet) for _ in range(drawn.randint(1, 12))]
        for _ in range(12):
            before = naive.source
            expected = naive.draft(text)
            position = copy.position(np.array(text))
            assert (position is None) == (not expected)
            drafted = [] if position is None else repeated(np.array(text), position, k).tolist()
            assert drafted == expected
            continued += before is not None and naive.source is not None
            # The model accepts some of the draft, often all, and says a token of its own, often the copy's.
            kept = drawn.choice([0, len(drafted) // 2, len(drafted), len(drafted)])
            whole = naive_lookup.on(text, position, k + 1) if position is not None and drawn.random() < 0.7 else None
            text = text + drafted[:kept] + [whole[kept] if whole else drawn.randrange(alphabet)]
    assert continued > 200


def a_copy_goes_on_where_it_stood_though_its_ending_stands_later_too() -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8, 2, 3, 9, 9, 1, 2]
    copy = Copy(2)
    assert copy.position(np.array(text)) == 2  # after the first 1 2
    assert copy.position(np.array([*text, 3, 4])) == 4  # 3 4 were right
    assert copy.position(np.array([*text, 3, 4, 2, 3])) == 15  # 2 was not: 2 3 stood last before 4
    assert Copy(2).position(np.array([*text, 3])) == 10  # anew, the last 2 3 is taken


def a_shorter_ending_is_no_match() -> None:
    assert Copy(3).position(np.array([5, 1, 2, 6, 1, 2])) is None
    assert Copy(2).position(np.array([5, 1, 2, 6, 1, 2])) == 3


def test_a_period_is_taken_in_whole_drafts() -> None:
    k, new = 6, 1 + 21 * 7
    done = run(cyclic(), f"copyspec:k={k}", [[*range(7), 0, 1]], new)
    assert rows(done)[0] == [i % 7 for i in range(9 + new)]
    assert done.nfe[0] == 1 + (new - 1) // (k + 1)


def test_copying_a_list_gains_two_tokens_a_forward_at_least() -> None:
    assert gained("copyspec", "lists", "copy") > 3


def test_the_default_decodes_what_is_shipped_in_half_a_forward_a_token() -> None:
    """With the paper's suffix it takes 0.78 forwards per token."""
    assert forwards_a_token("copyspec") < 0.55 < 0.7 < forwards_a_token("copyspec:suffix=3")


@pytest.mark.parametrize("name", ["k", "suffix"])
def test_nothing_to_copy_is_refused(name: str) -> None:
    with pytest.raises(SpecError, match=f"copyspec: {name} must be at least 1, got 0"):
        CopySpec(**{name: 0})


@pytest.mark.seeds("arXiv:2502.08923")
def test_copies_are_greedy_in_half_the_forwards_and_found_at_one_look_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (CopySpec().k, CopySpec().suffix) == (10, 1)
    drafts_are_those_of_a_search_of_the_whole_text()
    a_copy_goes_on_where_it_stood_though_its_ending_stands_later_too()
    a_shorter_ending_is_no_match()
    drafts_alone_what_it_drafts_in_a_batch("copyspec:k=3")
    test_a_period_is_taken_in_whole_drafts()  # from the first round on: the prompt is copied, too
    model, period = cyclic(), [*range(7), 0, 1]
    done = run(model, "copyspec", [period, period[2:] * 2], 60)
    assert all(is_greedy(model, text, size) for text, size in zip(rows(done), (9, 14), strict=True))
    assert sum(done.nfe) < 0.5 * 2 * 60
    looks = Looks()
    copy = Copy(3)
    text = [random.Random(1).randrange(500) for _ in range(4000)]
    monkeypatch.setattr(copy.grams, "starts", looks)
    each = []
    for size in range(10, 4000):
        before = looks.count
        copy.position(np.array(text[:size]))
        each.append(looks.count - before)
    assert max(each[100:]) <= max(each[:100]) + 1  # as many at 4000 tokens as at 100


class Looks(dict[tuple[int, ...], int]):
    """A table that counts its reads and writes."""

    count = 0

    def __getitem__(self, key: tuple[int, ...]) -> int:
        self.count += 1
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.count += 1
        return super().__contains__(key)

    def update(self, items: object) -> None:  # type: ignore[override]
        for key, value in items:  # type: ignore[attr-defined]
            self.count += 1
            self[key] = value
