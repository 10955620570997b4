"""Lookahead: a naive version's pool and forwards, the layout of trees, the text and distribution of plain decoding."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import RoundUniforms as Round
from pardec.samplers.speculative.draft import lookahead
from pardec.samplers.speculative.draft.lookahead import Lookahead, LookaheadState, Pool, trie
from pardec.samplers.speculative.loop import VerifyLoop
from tests.reference import naive_jacobi
from tests.samplers.ar_toys import picks, plain_greedy, prompts, request, rows, run, speculation, toy_ar
from tests.samplers.drafter_checks import forwards_a_token
from tests.samplers.joint_distributions import WORLDS, measure, worst

GIVEN = prompts((3, 6, 1, 9, 4, 12, 2, 7), vocab=6, seed=1)
NEW = (24, 9, 18, 1, 24, 2, 17, 11)
SHAPES = [(7, 5, 7), (3, 3, 2), (4, 2, 3), (1, 4, 3), (2, 6, 1)]  # window, ngram, guesses


class Middle:
    """Every number is 1/2, so that fresh guesses are the middle of the prompt."""

    def uniform(
        self, rows: np.ndarray, step: np.ndarray, positions: torch.Tensor, purpose: str, width: int = 0
    ) -> torch.Tensor:
        return torch.full((*positions.shape, width) if width else positions.shape, 0.5, dtype=torch.float64)


@pytest.mark.parametrize(("window", "ngram", "guesses"), SHAPES)
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_take_the_forwards_of_a_naive_one(seed: int, window: int, ngram: int, guesses: int) -> None:
    model = toy_ar(seed, 6, 2.0)
    spec = f"lookahead:window={window},ngram={ngram},guesses={guesses},pool_from_prompt=false"
    done = run(model, spec, GIVEN[:5], NEW[:5], source=Middle())
    for prompt, new, text, nfe in zip(GIVEN, NEW, rows(done), done.nfe, strict=False):
        filler = prompt[len(prompt) // 2]
        assert (text, nfe) == naive_jacobi.lookahead(picks(model), prompt, new, window, ngram, guesses, filler)


@cache
def greedy() -> tuple[LanguageModel, list[list[int]]]:
    """A model and its greedy texts."""
    model = toy_ar(4, 6, 1.5)
    return model, [plain_greedy(model, *each) for each in zip(GIVEN, NEW, strict=True)]


@pytest.mark.parametrize("more", ["", "pool_from_prompt=false", "init=random", "reference=true"])
@pytest.mark.parametrize(("window", "ngram", "guesses"), SHAPES)
@pytest.mark.covers(1)
def test_every_window_is_plain_greedy_in_every_batch(window: int, ngram: int, guesses: int, more: str) -> None:
    model, expected = greedy()
    spec = f"lookahead:window={window},ngram={ngram},guesses={guesses},{more}".rstrip(",")
    for count in (1, 8):
        assert rows(run(model, spec, GIVEN[:count], NEW[:count])) == expected[:count]


def test_the_window_is_laid_down_beside_the_guesses() -> None:
    """Two lines of three columns; the pool has 4 -> 5 6 and 4 -> 5 1 after the text's last token 4."""
    drafter = Lookahead(window=3, ngram=3, guesses=2, pool_from_prompt=False)
    loop = VerifyLoop(toy_ar(0, 8), speculation(drafter, "greedy"), request([[3, 2, 7, 4]], 9, source=Middle()))
    loop.memory[id(drafter)] = state = drafter.start(loop.context)
    state.grid, state.lines, state.known = np.array([[[0, 1, 2], [5, 6, 7]]]), np.array([2]), np.array([3])
    state.pools.rows[0].learn(np.array([4, 5, 6]), 3)
    state.pools.rows[0].learn(np.array([4, 5, 1]), 3)
    uniforms = Round(Middle(), loop.text.rows, loop.text.nfe, loop.text.device)
    draft = drafter.propose(loop.context, np.array([8]), uniforms, state)
    assert draft.tokens.tolist() == [[4, 1, 2, 5, 6, 7, 5, 6, 1]]
    assert draft.parent.tolist() == [[-1, 0, 1, 0, 1, 2, 0, 6, 6]]
    assert draft.depth.tolist() == [[0, 1, 2, 1, 2, 3, 1, 2, 2]]
    assert draft.tested.tolist() == [[False] * 6 + [True] * 3]
    assert draft.deepest == 2
    # Room for one more token before the bonus: places further than two are of no use, nor is a second guessed token.
    draft = drafter.propose(loop.context, np.array([1]), uniforms, state)
    assert draft.tokens.tolist() == [[4, 1, 2, 5, 6, 5]]
    assert state.nodes.tolist() == [[3, 4, -1]]
    assert drafter.propose(loop.context, np.array([0]), uniforms, state).tokens.tolist() == [[4]]


def test_the_published_code_drafts_a_token_less() -> None:
    model = toy_ar(2, 6, 2.0)
    for spec, most in (("lookahead:ngram=4", 3), ("lookahead:ngram=4,reference=true", 2)):
        done = run(model, spec, GIVEN, NEW)
        assert max(max(row) for row in done.trace.accepted) == most


def test_a_prompt_that_repeats_itself_is_drafted_from_at_once() -> None:
    model, given = toy_ar(0, 6, 2.0), [[1, 2]]
    text = plain_greedy(model, given[0], 20)
    again = [[*text, *text[:5]]]  # not what greedy decoding says, but what the pool may have of it is right or wrong
    with_prompt = run(model, "lookahead", again, 12)
    without = run(model, "lookahead:pool_from_prompt=false", again, 12)
    assert rows(with_prompt) == rows(without)
    assert with_prompt.trace.drafted[0][1] > without.trace.drafted[0][1] == 0


def test_the_default_decodes_what_is_shipped_in_less_than_six_tenths_of_a_forward_a_token() -> None:
    """Without n-grams of the prompt in the pool it took 1.14 forwards per token on lists to copy."""
    assert forwards_a_token("lookahead") < 0.6 < 1 < forwards_a_token("lookahead:pool_from_prompt=false")


@pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 3, 4, 5]])
def test_every_run_of_the_text_enters_the_pool_also_across_rounds(prompt: list[int]) -> None:
    loop = VerifyLoop(toy_ar(2, 6, 2.0), registry.resolve("lookahead:guesses=50", "ar"), request([prompt], 20))
    for _ in range(6):
        loop.round()
    text = loop.text.row(0).tolist()
    (state,) = (each for each in loop.memory.values() if isinstance(each, LookaheadState))
    pool = state.pools.rows[0]
    assert len(text) > 9
    for at in range(len(text) - 4):
        assert tuple(text[at + 1 : at + 5]) in pool.continuations(text[at])


def test_a_pool_forgets_what_was_added_longest_ago() -> None:
    pool = Pool(2)
    for following in ((1, 2), (3, 4), (1, 2), (5, 6)):
        pool.add(7, following)
    assert pool.continuations(7) == ((1, 2), (5, 6))
    assert pool.continuations(8) == ()
    pool.learn(np.array([7, 3, 4, 7, 3, 4]), 3)
    assert pool.continuations(7) == ((5, 6), (3, 4))
    assert pool.continuations(3) == ((4, 7),)
    assert trie([(5, 6), (5,), (5, 6), (4, 6)], 3) == [(5, 0, 1), (6, 3, 2), (4, 0, 1), (6, 5, 2)]


def test_what_cannot_be_is_refused() -> None:
    for bad in ("window=0", "ngram=1", "guesses=0", "init=repeat"):
        with pytest.raises(SpecError):
            registry.resolve(f"lookahead:{bad}", "ar")


@pytest.mark.slow  # test_exact_joint.py has the default settings
def test_the_joint_distribution_is_the_target_s() -> None:
    world = WORLDS["3 tokens, length 6"]
    assert worst(measure("lookahead:window=3,ngram=3,guesses=3", world, 4000)) < 3.5


def test_mutation_branches_that_see_each_other_are_told_by_the_forwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines attached to the wrong column stay exact; only the comparison with the naive version detects this."""
    model, spec = toy_ar(0, 6, 2.0), "lookahead:window=3,ngram=3,guesses=2,pool_from_prompt=false"
    right = run(model, spec, GIVEN, NEW, source=Middle())
    compact = lookahead.compact

    def crossed(tokens: torch.Tensor, parents: torch.Tensor, *rest: torch.Tensor) -> object:
        parents = parents.clone()
        parents[:, 3:6] = parents[:, 3:6].clamp(max=0)  # the second line, all below the text
        return compact(tokens, parents, *rest)

    monkeypatch.setattr(lookahead, "compact", crossed)
    wrong = run(model, spec, GIVEN, NEW, source=Middle())
    assert rows(wrong) == rows(right)
    assert wrong.nfe != right.nfe
