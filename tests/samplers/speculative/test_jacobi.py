"""Jacobi windows: a naive version's forwards, every init, both policies, early exits, the greedy text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.ops.allowed import AllowedRows
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft import jacobi_window as _window
from pardec.samplers.speculative.draft.jacobi_window import fresh, slice_from
from tests.reference import naive_jacobi
from tests.samplers.ar_toys import is_greedy, picks, plain_greedy, prompts, rows, run, toy_ar

GIVEN = prompts((3, 6, 1, 9, 4, 12, 2, 7), vocab=6, seed=1)
NEW = (20, 9, 14, 1, 20, 2, 17, 11)


@pytest.mark.parametrize("window", [2, 3, 7, 40])
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.covers(1)
def test_a_window_takes_the_forwards_of_a_naive_one(seed: int, window: int) -> None:
    model = toy_ar(seed, 6, 2.0)
    picked = picks(model)
    for policy, naive in (("sliding", naive_jacobi.sliding), ("block", naive_jacobi.block)):
        done = run(model, f"jacobi:window={window},policy={policy},init=repeat", GIVEN, NEW)
        expected = [naive(picked, prompt, new, window) for prompt, new in zip(GIVEN, NEW, strict=True)]
        assert list(zip(rows(done), done.nfe, strict=True)) == expected


@pytest.mark.parametrize("exits", [{"exit_iterations": 1}, {"exit_iterations": 3}, {"exit_tokens": 2}])
def test_an_early_exit_continues_the_text_that_it_committed(exits: dict[str, int]) -> None:
    """The naive version has no cache: K/V of other tokens than the committed ones would make other picks."""
    relaxed = 0
    (name, value), window = next(iter(exits.items())), 7
    for seed in range(2):
        model = toy_ar(seed, 6, 2.0)
        picked = picks(model)
        done = run(model, f"jacobi:window={window},policy=block,init=repeat,{name}={value}", GIVEN, NEW)
        for prompt, new, text, nfe in zip(GIVEN, NEW, rows(done), done.nfe, strict=True):
            assert (text, nfe) == naive_jacobi.block(picked, prompt, new, window, **exits)
            relaxed += not is_greedy(model, text, len(prompt))
    assert relaxed > 3


def test_an_exit_after_one_forward_commits_a_window_a_forward() -> None:
    done = run(toy_ar(0, 6, 2.0), "jacobi:window=5,policy=block,exit_iterations=1", [[1, 2, 3]], 31)
    assert done.nfe[0] <= 10  # 1 token, 1 more, then four and more in each
    drafted, accepted = done.trace.drafted[0], done.trace.accepted[0]
    assert max(drafted) <= 8
    assert all(took >= 3 for took in accepted[2:-1])


@cache
def greedy() -> list[list[int]]:
    model = toy_ar(4, 6, 1.5)
    return [plain_greedy(model, *each) for each in zip(GIVEN, NEW, strict=True)]


@pytest.mark.parametrize("init", ["random", "prompt", "repeat", "ngram"])
@pytest.mark.parametrize("policy", ["sliding", "block"])
@pytest.mark.covers(1)
def test_every_window_and_init_is_plain_greedy_in_every_batch(policy: str, init: str) -> None:
    model = toy_ar(4, 6, 1.5)
    expected = greedy()
    for window in (2, 5, 16):
        spec = f"jacobi:window={window},policy={policy},init={init}"
        for count in (1, 8):
            assert rows(run(model, spec, GIVEN[:count], NEW[:count])) == expected[:count]


def test_tiny_llama_says_what_it_says_one_by_one() -> None:
    model = pardec.load("tiny-llama", device="cpu", dtype="float32")
    given = [p.prompt for p in pardec.task("lists").problems(split="heldout", n=6, seed=3)]
    plain = model.generate(given, sampler="sequential", max_new_tokens=24)
    for spec in ("jacobi", "jacobi:policy=block,init=ngram", "seeded_jacobi", "sjd", "lookahead"):
        made = model.generate(given, sampler=spec, max_new_tokens=24)
        assert made.tokens == plain.tokens
        assert sum(made.nfe) < sum(plain.nfe)


# --- parts ---


@dataclass
class Text:
    """Two rows: 4 2 7 4 2 and 9 5."""

    length = np.array([5, 2])
    prompt = np.array([3, 2])
    tokens = torch.tensor([[4, 2, 7, 4, 2], [9, 5, 0, 0, 0]])
    last = torch.tensor([2, 5])
    device = tokens.device

    def row(self, at: int) -> np.ndarray:
        return self.tokens[at, : self.length[at]].numpy()


class Chance:
    """Uniforms 0, .1, .2, ... by position."""

    def noise(self, positions: torch.Tensor, purpose: str, width: int, *, fixed: bool = False) -> torch.Tensor:
        assert (purpose, width, fixed) == ("init", 1, False)
        return (positions % 10)[..., None].double() / 10


@pytest.mark.parametrize(
    ("init", "expected"),
    [
        ("repeat", [[2, 2, 2, 2], [8, 3, 3, 3]]),
        ("random", [[10, 12, 14, 16], [8, 3, 8, 10]]),  # 20 u from position 5, and from 4 in the second row
        ("prompt", [[2, 2, 7, 7], [8, 3, 9, 5]]),
        ("ngram", [[7, 4, 2, 7], [8, 3, 3, 3]]),
    ],
)
def test_fresh_guesses_stand_after_the_known_ones(init: Any, expected: list[list[int]]) -> None:
    given, free = SimpleNamespace(conditions=()), AllowedRows(None, 1, torch.device("cpu"))
    context: Any = SimpleNamespace(text=Text(), model=SimpleNamespace(vocab_size=20), request=given, allowed=free)
    guesses = torch.tensor([[0, 0, 0, 0], [8, 3, 0, 0]])
    uniforms: Any = Chance()
    made = fresh(init, guesses, np.array([0, 2]), context, uniforms)
    assert made.tolist() == expected


def test_an_ngram_goes_on_where_two_tokens_stood_before_rather_than_one() -> None:
    assert _window._copy_source(np.array([1, 2, 9, 5, 2, 8, 1, 2])) == 2
    assert _window._copy_source(np.array([5, 2, 8, 1, 2])) == 2
    assert _window._copy_source(np.array([5, 2, 8])) == 3 - 1  # nothing: the last token again
    assert _window._copy_source(np.array([4])) == 0


def test_ahead_moves_each_row_by_its_own() -> None:
    values = torch.arange(8).view(2, 4)
    assert slice_from(values, np.array([1, 3]), 3).tolist() == [[1, 2, 3], [7, 7, 7]]


def test_only_blocks_are_left_early_and_only_by_acceptances_that_follow_picks() -> None:
    for bad in (
        "jacobi:exit_tokens=1",
        "jacobi:window=1",
        "jacobi:policy=block,exit_iterations=0",
        "jacobi:policy=block,exit_tokens=-1",
        "jacobi:policy=block,exit_tokens=1+speculative",
    ):
        with pytest.raises(SpecError):
            registry.resolve(bad, "ar")
    assert registry.resolve("jacobi:policy=block,exit_tokens=1", "ar").exact == "relaxed"
    assert registry.resolve("jacobi:policy=block", "ar").exact == "greedy"
    assert registry.resolve("jacobi", "ar", sampling=True).exact == "distribution"


def test_mutation_picks_of_the_wrong_node_change_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Guesses shifted by one node stay exact; only the comparison of forwards with the naive version detects this."""
    model = toy_ar(2, 6, 2.0)
    right = run(model, "jacobi:window=7,init=repeat", GIVEN, NEW)
    monkeypatch.setattr(_window, "slice_from", lambda values, first, width: slice_from(values, first + 1, width))
    wrong = run(model, "jacobi:window=7,init=repeat", GIVEN, NEW)
    assert rows(wrong) == rows(right)
    assert wrong.nfe != right.nfe


def test_sure_nodes_stand_whatever_the_pick_and_count_as_no_test() -> None:
    from pardec.samplers.speculative.accept.greedy import follow

    draft = Draft(
        torch.tensor([[1, 2, 3, 4]] * 2),
        np.array([4, 4]),
        np.array([0, 0]),
        preaccepted=torch.tensor([[False, True, True, False], [False] * 4]),
    )
    made = follow(draft, torch.tensor([[9, 9, 4, 5], [2, 9, 9, 9]]))
    assert made.count.tolist() == [3, 1]
    assert made.next.tolist() == [5, 9]
    assert made.tested is not None
    assert made.tested.tolist() == [[False, False, False, True], [False, True, True, False]]
