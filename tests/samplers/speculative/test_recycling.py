"""Token Recycling: the matrix compared with a dictionary, the tree with a recursion, and shared tables."""

from __future__ import annotations

import gc
import itertools
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.batching import take_rows
from pardec.samplers.speculative.draft import recycling
from pardec.samplers.speculative.draft.recycling import Matrix
from pardec.samplers.speculative.loop import VerifyLoop
from pardec.samplers.speculative.ops.trees import Template, compact, ranked
from tests.reference.naive_lookup import Recycled
from tests.samplers.ar_toys import is_greedy, plain_greedy, prompts, request, rows, run, toy_ar
from tests.samplers.drafter_checks import RAGGED, cyclic, drafts_alone_what_it_drafts_in_a_batch, gained, greedy_holds

PUBLISHED = (8, 21, 25, 15, 8, 3)


def paths(tree: Template) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for parent, rank in zip(tree.parents.tolist()[1:], tree.ranks.tolist()[1:], strict=True):
        found.append((*found[parent], rank))
    return found[1:]


# --- the tree ---


def test_the_tree_has_the_published_numbers_of_nodes() -> None:
    tree = ranked(PUBLISHED, 8)
    assert len(tree.parents) == 81
    assert [level.stop - level.start for level in tree.levels] == list(PUBLISHED)
    assert all((tree.depths[level] == depth).all() for depth, level in enumerate(tree.levels, 1))
    assert recycling.Recycling().width(toy_ar()) == 81


def test_a_node_comes_with_its_ancestors_and_with_all_of_lower_rank() -> None:
    nodes = set(paths(ranked(PUBLISHED, 8)))
    for path in nodes:
        assert path[:-1] in nodes | {()}
        assert all(lower in nodes for lower in itertools.product(*(range(rank + 1) for rank in path)))


def the_tree_by_hand() -> None:
    # Products of rank + 1 at depth 2: 00 is 1; 01 and 10 are 2; 02 is 3; 11 is 4.
    assert paths(ranked((2, 3, 1), 3)) == [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]


def test_a_tree_of_paths_holds_the_nodes_on_the_way() -> None:
    tree = Template.of([(1, 2), (0,)])
    assert paths(tree) == [(0,), (1,), (1, 2)]
    assert tree.levels == (slice(1, 3), slice(3, 4))


def test_nodes_that_fall_away_close_the_ranks() -> None:
    tree = Template.of([(0, 0), (1, 0), (1, 1, 0)])  # nodes: 0 | 1 2 | 3 4 5 | 6, below 0 0 1 2 2 5
    tokens = torch.arange(10, 17)[None].expand(2, -1)
    kept = torch.tensor([[1, 0, 1, 0, 0, 1, 1], [1, 0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    found, parents, depths, sizes = compact(tokens, tree.parents, tree.depths, kept)
    assert sizes.tolist() == [4, 1]
    assert found[0].tolist() == [10, 12, 15, 16]
    assert parents[0].tolist() == [-1, 0, 1, 2]
    assert depths[0].tolist() == [0, 1, 2, 3]
    assert (found[1, 0], parents[1, 0]) == (10, -1)


# --- the matrix ---


@pytest.mark.parametrize("shared", [False, True])
def test_the_matrix_is_a_dictionary_of_what_each_token_was_last_followed_by(shared: bool) -> None:
    drawn = torch.Generator().manual_seed(0)
    batch, vocab, k = 3, 9, 4
    matrix = Matrix(None if shared else batch, vocab, k, torch.device("cpu"))
    naive = [Recycled()] * batch if shared else [Recycled() for _ in range(batch)]
    for _ in range(8):
        tokens = torch.randint(0, vocab, (batch, 6), generator=drawn)  # with equal ones among them
        distributions = torch.randn(batch, 6, vocab, generator=drawn)
        sizes = torch.randint(1, 7, (batch,), generator=drawn)
        matrix.write(torch.arange(batch), tokens, distributions, torch.arange(6) < sizes[:, None])
        for row, size in enumerate(sizes.tolist()):
            naive[row].update(tokens[row, :size].tolist(), distributions[row, :size].tolist(), k)
        if not shared and batch == 3:
            keep = np.array([2, 0])
            take_rows(matrix, keep)
            naive, batch = [naive[2], naive[0]], 2
        asked = torch.arange(-1, vocab).repeat_interleave(k).expand(batch, -1)
        found = matrix.read(asked, torch.arange(k).repeat(vocab + 1))
        for row in range(batch):
            known = [naive[row].followers.get(token, [-1] * k) for token in range(-1, vocab)]
            assert found[row].view(-1, k).tolist() == known


def test_fewer_tokens_than_candidates_leave_the_rest_unknown() -> None:
    matrix = Matrix(1, 3, 8, torch.device("cpu"))
    matrix.write(torch.tensor([0]), torch.tensor([[1]]), torch.tensor([[[0.1, 0.5, 0.3]]]), torch.tensor([[True]]))
    assert matrix.read(torch.tensor([[1] * 8]), torch.arange(8)).tolist() == [[1, 2, 0, -1, -1, -1, -1, -1]]


# --- a decode ---


def watched(spec: str, given: list[list[int]], new: int) -> tuple[list[Any], VerifyLoop]:
    """Every draft of one decode, with each row's text and remaining tokens at that time."""
    made = registry.resolve(spec, "ar")
    loop = VerifyLoop(toy_ar(3, vocab=11, sharp=2.0), made, request(given, new))
    seen = []
    while len(loop.text):
        before = [loop.text.row(at).tolist() for at in range(len(loop.text))]
        drafted = []
        original = type(made.draft).propose

        def propose(
            self: Any, context: Any, room: Any, *rest: Any, original: Any = original, out: Any = drafted
        ) -> Any:
            draft = original(self, context, room, *rest)
            out.append((draft, room.copy()))
            return draft

        type(made.draft).propose = propose  # type: ignore[method-assign]
        try:
            loop.round()
        finally:
            type(made.draft).propose = original  # type: ignore[method-assign]
        seen.append((before, drafted[0] if drafted else None))
        list(loop.retire())
    return seen, loop


@pytest.mark.parametrize("prefill", ["true", "false"])
def test_drafts_are_the_trees_of_what_was_fed_before(prefill: str) -> None:
    model, prompt = toy_ar(3, vocab=11, sharp=2.0), RAGGED[3]
    naive, nodes = Recycled(), paths(ranked((4, 6, 3), 4))

    def distributions(text: list[int]) -> list[list[float]]:
        from tests.samplers.ar_toys import logits

        found: list[list[float]] = logits(model, [text])[0].tolist()
        return found

    compared = 0
    for before, drafted in watched(f"recycling:k=4,tree=4-6-3,prefill={prefill}", [prompt], 20)[0]:
        text = before[0]
        if drafted is None:
            start = 0 if prefill == "true" else len(prompt) - 1
            naive.update(prompt[start:], distributions(prompt)[start:], 4)
            continue
        draft, room = drafted
        tokens, parents = draft.tokens[0].tolist(), draft.parent[0].tolist()
        chains: list[list[int]] = [[]]
        for token, parent in zip(tokens[1:], parents[1:], strict=True):
            chains.append([*chains[parent], token])
        assert tokens[0] == text[-1]
        assert len(chains[1:]) == len({tuple(chain) for chain in chains[1:]})
        assert {tuple(chain) for chain in chains[1:]} == naive.tree(text[-1], nodes, int(room[0]))
        naive.update(tokens, [distributions([*text, *chain])[-1] for chain in chains], 4)
        compared += len(chains) > 5
    assert compared > 3


@pytest.mark.parametrize("more", ["", ":prefill=false", ":k=3,tree=3-4-2"])
def test_greedy_decoding_is_unchanged(more: str) -> None:
    assert greedy_holds(f"recycling{more}") > 1.5


def test_a_cycle_seen_once_is_taken_six_levels_at_a_time() -> None:
    new = 1 + 7 * 10
    done = run(cyclic(), "recycling", [list(range(7))], new)
    assert rows(done)[0] == [i % 7 for i in range(7 + new)]
    assert done.nfe == (11,)
    assert set(done.trace.accepted[0][1:]) == {6}


def test_the_prompt_s_distributions_are_made_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(toy_ar(3, vocab=11), "recycling", RAGGED, 12)
    monkeypatch.setattr(recycling, "_LOGITS", 2 * 11 * len(RAGGED))
    from pardec.models.plan import Hidden

    asked: list[int] = []
    original = Hidden.logits

    def logits(self: Hidden, positions: Any = None, **how: Any) -> Any:
        if positions is not None:
            asked.append(positions.shape[1])
        return original(self, positions, **how)

    monkeypatch.setattr(Hidden, "logits", logits)
    parts = run(toy_ar(3, vocab=11), "recycling", RAGGED, 12)
    assert max(asked) <= 2 * len(RAGGED)  # groups of fewer rows take longer parts
    assert sum(asked) >= max(map(len, RAGGED))
    assert (parts.nfe, parts.tokens_fed, parts.tokens.tolist()) == (whole.nfe, whole.tokens_fed, whole.tokens.tolist())


@pytest.mark.parametrize(("task", "operation"), [("lists", "copy"), ("lists", "replace"), ("records", None)])
def test_what_repeats_gains_half_a_token_a_forward_at_least(task: str, operation: str | None) -> None:
    assert gained("recycling", task, operation, count=40 if operation else 12) > 1.5


# --- one matrix for several requests ---


def test_a_kept_matrix_is_warm_for_the_next_request_and_changes_no_token() -> None:
    model, given = toy_ar(3, vocab=11, sharp=2.0), prompts([4, 7], vocab=11)
    kept = registry.resolve("recycling:keep=true,prefill=false", "ar")
    first, second = run(model, kept, given, 20), run(model, kept, given, 20)
    assert rows(first) == rows(second) == [plain_greedy(model, prompt, 20) for prompt in given]
    assert sum(second.nfe) < sum(first.nfe)
    again = run(model, registry.resolve("recycling:keep=true,prefill=false", "ar"), given, 20)
    assert again.nfe == first.nfe  # another object remembers nothing of this one


def test_a_kept_matrix_goes_with_its_model() -> None:
    made: Any = registry.resolve("recycling:keep=true", "ar")
    model = toy_ar(3, vocab=11)
    run(model, made, [[1, 2]], 4)
    run(toy_ar(4, vocab=6), made, [[1, 2]], 4)
    gc.collect()
    assert len(vars(made.draft)["_matrices"]) == 1
    del model
    gc.collect()
    assert len(vars(made.draft)["_matrices"]) == 0


def test_sampling_keeps_a_matrix_only_where_draws_do_not_depend_on_drafts() -> None:
    model, given = toy_ar(3, vocab=11), prompts([4, 7], vocab=11)
    for accept in ("speculative", "match"):
        with pytest.raises(SpecError, match="keep=true a sampled text would depend on the requests before it") as error:
            run(model, f"recycling:keep=true+{accept}", given, 5, temperature=1.0)
        assert "match:noise=seeded" in (error.value.hint or "")
    kept = registry.resolve("recycling:keep=true+match:noise=seeded", "ar", sampling=True)
    done = [rows(run(model, kept, given, 20, temperature=1.0)) for _ in range(2)]
    assert done[0] == done[1]
    assert done[0] == rows(run(model, "match:noise=seeded", given, 20, temperature=1.0))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("k=0", "recycling: k must be at least 1, got 0"),
        ("tree=8-x", "recycling: tree lists the number of nodes of each depth, joined by '-', got '8-x'"),
        ("tree=9", "recycling: tree=9 has 9 nodes below 1, but a node has at most k=8"),
        ("tree=2-17", "recycling: tree=2-17 has 17 nodes below 2, but a node has at most k=8"),
        ("tree=8-0", "recycling: tree=8-0 has 0 nodes below 8"),
    ],
)
def test_a_tree_that_cannot_be_is_refused(spec: str, said: str) -> None:
    with pytest.raises(SpecError) as error:
        registry.resolve(f"recycling:{spec}", "ar")
    assert said in str(error.value)
    assert error.value.hint


def padding_of_a_prompt_teaches_nothing() -> None:
    seen = list[Any]()
    with patch.object(Matrix, "write", lambda self, rows, tokens, distributions, real: seen.append(real)):
        run(toy_ar(3, vocab=11), "recycling:k=2,tree=2-2", [[1, 2, 3, 4], [5, 6, 7]], 1)
    assert seen[0].tolist() == [[True] * 4, [True] * 3 + [False]]


@pytest.mark.seeds("arXiv:2408.08696")
def test_fifty_greedy_rows_are_kept_and_loops_are_taken_in_long_steps_with_a_small_matrix() -> None:
    the_tree_by_hand()
    padding_of_a_prompt_teaches_nothing()
    test_the_tree_has_the_published_numbers_of_nodes()
    drafts_alone_what_it_drafts_in_a_batch("recycling:k=2,tree=2-2")
    test_a_cycle_seen_once_is_taken_six_levels_at_a_time()  # in the prompt, which fills the matrix too
    test_the_matrix_is_a_dictionary_of_what_each_token_was_last_followed_by(False)
    for prefill in ("false", "true"):
        test_drafts_are_the_trees_of_what_was_fed_before(prefill)
    model, made = toy_ar(3, vocab=11, sharp=2.0), registry.resolve("recycling:keep=true", "ar")
    given = prompts([1 + at % 9 for at in range(50)], vocab=11)
    done = run(model, made, given, 24)
    assert all(is_greedy(model, text, len(prompt)) for text, prompt in zip(rows(done), given, strict=True))
    accepted = sum(map(sum, done.trace.accepted)) / (sum(done.nfe) - len(given))
    assert accepted + 1 > 1.5  # tokens a verify forward: these texts go round in short circles
    (matrix,) = vars(made.draft)["_matrices"].values()
    own = matrix.table[:-2]  # two more lines of the table only take masked reads and writes
    assert own.nbytes == 11 * made.draft.k * 4  # vocabulary * k * bytes of an id
