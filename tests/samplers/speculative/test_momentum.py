"""Momentum decoding compared with the rule of its page, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from pardec.api import Model
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers.registry import resolve
from pardec.samplers.speculative.compatibility import check
from pardec.samplers.speculative.logits.momentum import Momentum
from tests.samplers.ar_toys import logits, plain_greedy, request, rows, run, toy_ar
from tests.samplers.drafter_checks import RAGGED, cyclic

DRAFTERS = ["sequential", "lookup:k=4", "lookahead", "jacobi"]


def depth(text: Sequence[int], token: int, most: int = 5) -> int:
    """The length of the longest end of "text, token", up to `most`, that occurs in the text."""
    whole = [*text, token]
    found = 0
    for length in range(1, min(most, len(text)) + 1):
        if any(list(text[at : at + length]) == whole[-length:] for at in range(len(text) - length + 1)):
            found = length
    return found


def naive(text: Sequence[int], scores: np.ndarray, alpha: float, k: int, f: Sequence[float]) -> np.ndarray | int:
    """The next token, or p after the penalty above temperature 0: the page's two cases, one text at a time."""
    p = np.exp(scores - scores.max())
    p /= p.sum()
    order = sorted(range(len(p)), key=lambda token: (-p[token], token))
    if order[0] not in text:
        return p
    margin = {token: p[token] - alpha * (0, *f)[depth(text, token, len(f))] for token in order[:k]}
    left = np.array([max(margin.get(token, 0), 0) for token in range(len(p))])
    return left / left.sum() if left.any() else max(sorted(margin), key=lambda token: margin[token])


def naive_text(model: LanguageModel, prompt: Sequence[int], new: int) -> list[int]:
    text = list(prompt)
    for _ in range(new):
        left = naive(text, logits(model, [text])[0, -1].numpy(), 0.2, 5, (1, 3, 4, 5, 6))
        text.append(left if isinstance(left, int) else int(left.argmax()))
    return text


def repeats(text: Sequence[int], size: int = 4) -> float:
    """The share of pieces of `size` tokens that occurred before in the text."""
    pieces = [tuple(text[at : at + size]) for at in range(len(text) - size + 1)]
    return 1 - len(set(pieces)) / len(pieces)


@pytest.mark.seeds("arXiv:2212.02175")
def test_it_leaves_loops_at_one_forward_a_token_and_is_greedy_where_there_are_none() -> None:
    test_every_drafter_gives_the_tokens_of_the_plain_rule_in_a_ragged_batch("recycling:k=3,tree=3-4-2")
    what_is_left_to_sample_from_is_the_positive_part_of_the_margin()
    margins_of_zero_and_filtered_candidates_leave_the_highest()
    straight = cyclic(16)  # says x + 1: no circuit within 12 tokens
    assert rows(run(straight, "momentum", [[3], [0, 1]], 12)) == [list(range(3, 16)), list(range(14))]
    model, given, new = toy_ar(3, vocab=11, sharp=0.7), RAGGED, 60
    plain = run(model, "sequential", given, new)
    done = run(model, "momentum", given, new)
    assert done.nfe == plain.nfe == (new,) * len(given)
    before, after = ([repeats(text) for text in rows(each)] for each in (plain, done))
    assert min(before) > 0.35  # greedy decoding goes round and round
    assert all(less < more / 2 for less, more in zip(after, before, strict=True))


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_drafter_gives_the_tokens_of_the_plain_rule_in_a_ragged_batch(drafter: str) -> None:
    model, counts = toy_ar(3, vocab=11, sharp=1.0), [20, 17, 9, 14, 12]
    done = run(model, f"{drafter}+momentum", RAGGED, counts)
    assert rows(done) == [naive_text(model, prompt, new) for prompt, new in zip(RAGGED, counts, strict=True)]
    assert rows(done) != [plain_greedy(model, prompt, new) for prompt, new in zip(RAGGED, counts, strict=True)]
    alone = run(model, f"{drafter}+momentum", [RAGGED[1]], [17])
    assert (rows(alone)[0], alone.nfe[0]) == (rows(done)[1], done.nfe[1])


def what_is_left_to_sample_from_is_the_positive_part_of_the_margin() -> None:
    drawn = np.random.RandomState(0)
    kinds = set()
    for vocab, k, f in ((4, 2, (9.0,)), (9, 5, (0.0, 0.2)), (6, 20, (1.0, 3.0, 4.0, 5.0, 6.0))):
        stage = Momentum(alpha=0.2, k=k, resistance="-".join(map(str, f)))
        ids = torch.from_numpy(drawn.randint(0, vocab - 1, (40, 7)))
        scores = torch.from_numpy(drawn.standard_normal((40, vocab)) * 2).float()
        made = stage.scores(ids, scores, torch.zeros(40, dtype=torch.int64)).softmax(-1).numpy()
        for text, row, got in zip(ids.tolist(), scores.numpy(), made, strict=True):
            left = naive(text, row, 0.2, k, f)
            kinds.add(type(left))
            expected = np.eye(vocab)[left] if isinstance(left, int) else left
            np.testing.assert_allclose(got, expected, atol=1e-5)
    assert kinds == {int, np.ndarray}


def margins_of_zero_and_filtered_candidates_leave_the_highest() -> None:
    """By hand: of four equal tokens p - alpha f is 0, or less for the one that would close a longer circuit."""
    stage, prompt, gone = Momentum(alpha=0.25, k=4, resistance="1-3"), torch.zeros(1, dtype=torch.int64), -torch.inf

    def left(ids: list[int], scores: list[float]) -> list[float]:
        found: list[float] = stage.scores(torch.tensor([ids]), torch.tensor([scores]), prompt).softmax(-1)[0].tolist()
        return found

    assert left([0, 1, 2, 3], [0.0] * 4) == [1 / 4] * 4  # all are highest
    assert left([0, 1, 0, 2, 3, 0], [0.0] * 4) == [1 / 2, 0, 0, 1 / 2]  # "0, 1" and "0, 2" are in the text
    # p = 1/2 each. Tokens 0 and 3, which a filter removed, stay out though token 3 is new, and nothing is positive.
    assert left([0, 1, 2, 0, 2, 0], [gone, 0.0, 0.0, gone]) == [0, 1 / 2, 1 / 2, 0]
    assert left([0, 1, 3, 2, 3], [gone, 0.0, 0.0, gone]) == [0, 1, 0, 0]  # 1/4 and, after "3, 2", -1/4
    stage = Momentum(alpha=0.25, k=1)
    assert left([0, 1, 0], [0.0] * 4) == [
        1,
        0,
        0,
        0,
    ]  # of equal ones the lowest, which is in the text, is the candidate


def test_sampled_rows_are_the_same_alone_and_off_is_plain_sampling() -> None:
    model, seeds = toy_ar(3, vocab=11, sharp=1.0), [5, 6, 7, 8, 9]
    options: dict[str, Any] = {"temperature": 0.8, "top_p": 0.9}
    done = run(model, "recycling+momentum", RAGGED, 15, seeds=seeds, **options)
    for row, text in enumerate(rows(done)):
        assert rows(run(model, "recycling+momentum", [RAGGED[row]], 15, seeds=[seeds[row]], **options)) == [text]
    plain = [
        rows(run(model, spec, RAGGED, 15, seeds=seeds, **options)) for spec in ("lookup", "lookup+momentum:alpha=0")
    ]
    assert plain[0] == plain[1]
    assert plain[0] != rows(run(model, "lookup+momentum", RAGGED, 15, seeds=seeds, **options))


def test_rows_that_join_a_running_batch_are_those_that_stand_alone() -> None:
    model = Model(toy_ar(3, vocab=11, sharp=1.0))
    options: dict[str, Any] = {"sampler": "lookup+momentum", "max_new_tokens": 12, "stop_ids": []}
    served = model.serve_batch(({"input_ids": row} for row in RAGGED), batch_size=2, **options)
    tokens = {row.index: row.tokens for row in served}
    assert served.waits is None  # they do join
    assert tokens == {at: model.generate(input_ids=[row], **options).tokens[0] for at, row in enumerate(RAGGED)}


def test_candidates_are_the_tokens_that_the_request_allows() -> None:
    model = Model(toy_ar(3, vocab=11, sharp=1.0))
    some = [4, 7]
    result = model.generate(input_ids=[[4, 7]], sampler="momentum", max_new_tokens=12, stop_ids=[], allowed=[some] * 12)
    assert set(result.tokens[0]) == {4, 7}


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Momentum(alpha=-1), "alpha must be at least 0"),
        (lambda: check(resolve("momentum", "ar"), request=request([[1]], 2, conditions=(object(),))), "is for text"),
        (lambda: Momentum(k=0), "k must be at least 1"),
        (lambda: Momentum(resistance="1-x"), "numbers joined by '-'"),
        (lambda: Momentum(resistance="1-nan"), "at least 0"),
    ],
)
def test_what_cannot_work_is_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        make()
