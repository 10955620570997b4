"""Retrieved continuations added to a model's tree: the search, the fusion, the pruning, and a mixed stream."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft import rasd
from pardec.samplers.speculative.draft.rasd import FirstDistribution, Retrieval, Store, fused, retrieved_tree
from pardec.samplers.speculative.forward import VerifyForward
from tests.samplers.ar_toys import rows, run
from tests.samplers.drafter_checks import WORDS, drafts_alone_what_it_drafts_in_a_batch
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, named, near, nodes, target

SPEC = 'rasd:model="model:name=near,k=4"'


def naive_continuations(text: list[int], texts: list[list[int]], longest: int, count: int) -> list[list[int]]:
    """Found by a full search: the row from its end, then the store from its beginning."""
    for size in range(min(longest, len(text)), 0, -1):
        ending = text[-size:]
        starts = [at for at in range(len(text) - size - 1, -1, -1) if text[at : at + size] == ending]
        own = [text[at + size :][:count] for at in starts]
        stored = [
            each[at + size :][:count]
            for each in texts
            for at in range(len(each) - size)
            if each[at : at + size] == ending
        ]
        if own or stored:
            return own + stored
    return []


def the_longest_suffix_is_searched_as_a_plain_version_does() -> None:
    assert rasd.Retrieval is Retrieval
    random = np.random.RandomState(0)
    sizes = set()
    for _ in range(60):
        texts = [random.randint(0, 5, size).tolist() for size in random.randint(0, 12, 4)]
        store = Store([np.array(each, dtype=np.int64) for each in texts], 4)
        retrieval, text = Retrieval(store, 4), list[int]()
        for _ in range(6):
            fresh = random.randint(0, 6, 2).tolist()
            retrieval.extend(fresh)
            text += fresh
            continuations = retrieval.continuations(3, 99)
            assert continuations == naive_continuations(text, texts, 4, 3)
            assert retrieval.continuations(3, 2) == continuations[:2]
            sizes.add(len(continuations))
    assert len(sizes) > 4


def test_without_a_store_the_text_alone_is_searched() -> None:
    retrieval = Retrieval(None, 3)
    assert retrieval.continuations(4, 9) == []
    retrieval.extend([1, 2, 3, 1, 2])
    assert retrieval.continuations(4, 9) == [[3, 1, 2]]


def what_more_continuations_share_comes_first() -> None:
    assert retrieved_tree([[4], [5, 6], [5, 7]], 2) == [(5, 0, 1), (4, 0, 1)]
    assert retrieved_tree([[5, 6, 7]], 2) == [(5, 0, 1), (6, 1, 2)]


# --- the fusion ---


def random_draft(random: np.random.RandomState, batch: int) -> Draft:
    """Trees of unequal sizes in which siblings differ."""
    sizes = random.randint(1, 7, batch)
    table = np.zeros((3, batch, int(sizes.max())), dtype=np.int64)
    table[1, :, 0] = -1
    for row, size in enumerate(sizes):
        taken = set()
        for node in range(1, size):
            while (edge := (random.randint(0, node), random.randint(0, 6))) in taken:
                pass
            taken.add(edge)
            table[:, row, node] = edge[1], edge[0], table[2, row, edge[0]] + 1
    tokens, parents, depths = torch.from_numpy(table)
    return Draft(tokens, sizes, np.zeros_like(sizes), parents, depths)


def all_paths(tree: list[tuple[int, int, int]]) -> set[tuple[int, ...]]:
    result: list[tuple[int, ...]] = [()]
    for token, parent, _ in tree:
        result.append((*result[parent], token))
    return set(result[1:])


def test_the_fused_tree_has_the_paths_of_both_each_of_them_once() -> None:
    random = np.random.RandomState(1)
    shared = 0
    for _ in range(40):
        draft = random_draft(random, 3)
        trees = [
            retrieved_tree([random.randint(0, 3, 4).tolist() for _ in range(random.randint(0, 5))], 99)
            for _ in range(3)
        ]
        result = fused(draft, trees, 99)
        again = fused(result, trees, 99)
        for row, tree in enumerate(trees):
            own, retrieved, paths = nodes(draft, row), all_paths(tree), nodes(result, row)
            assert paths[: len(own)] == own  # the model's nodes stay where they are
            assert len(set(paths)) == len(paths)
            assert set(paths) == set(own) | retrieved
            assert nodes(again, row) == paths
            assert all(result.depth[row, at] == len(path) for at, path in enumerate(paths, 1))
            shared += len(set(own) & retrieved)
    assert shared > 10


def the_budget_cuts_what_was_retrieved_and_never_the_model_s_nodes() -> None:
    random = np.random.RandomState(2)
    for most in range(8):
        draft = random_draft(random, 4)
        trees = [retrieved_tree([random.randint(7, 9, 3).tolist() for _ in range(3)], 99) for _ in range(4)]
        result = fused(draft, trees, most)
        for row in range(4):
            own, paths = nodes(draft, row), nodes(result, row)
            assert paths[: len(own)] == own
            assert len(paths) == min(max(most, len(own)), len(own) + len(trees[row]))
            assert all(path[:-1] in {(), *paths} for path in paths)


def test_added_nodes_are_point_masses_after_sampled_siblings() -> None:
    q = torch.zeros(2, 2, 6)
    q[:, 1, 2:4] = 0.5
    draft = Draft(torch.tensor([[0, 2], [0, 3]]), np.array([2, 1]), np.zeros(2, dtype=np.int64), q=q)
    result = fused(draft, [[(2, 0, 1), (4, 1, 2)], [(2, 0, 1)]], 9)
    assert result.sizes.tolist() == [3, 2]
    assert result.tokens.tolist() == [[0, 2, 4], [0, 2, 0]]
    assert result.parent[0].tolist() == [-1, 0, 1]
    assert result.is_point_mass is not None
    assert result.is_point_mass.tolist() == [[False, False, True], [False, True, False]]
    assert result.ignores_length_controller is not None
    assert result.ignores_length_controller.tolist() == [True, True]


def branches_that_the_model_rules_out_are_pruned() -> None:
    drafts: list[tuple[Draft, list[int]]] = []
    verify = VerifyForward.verify

    def watched(self: VerifyForward, draft: Draft) -> Any:
        drafts.append((draft, self.text.row(0).tolist()))
        return verify(self, draft)

    widths = []
    for least in (0.0, 1.0, 0.3, 0.31):
        drafts.clear()
        probs = FirstDistribution.probs if least in (0, 1) else lambda _, at, tokens: [0.3] * len(tokens)
        with (
            named(near=near()),
            patch.object(VerifyForward, "verify", watched),
            patch.object(FirstDistribution, "probs", probs),
        ):
            done = run(target(), f'rasd:model="model:name=near,k=1",least={least}', [RAGGED[3]], 20)
            plain = run(target(), "sequential", [RAGGED[3]], 20)
        assert rows(done) == rows(plain)
        widths.append(sum(draft.width - 1 for draft, _ in drafts if draft.levels != 0) / len(drafts))
    assert widths[1] <= 1 < widths[0]  # nothing is certain: the model's own token alone is left
    assert widths[2:] == widths[:2]  # .3 is enough where .3 is asked for


def nothing_is_drafted_deeper_than_the_row_has_room() -> None:
    """Texts that repeat have long continuations, and 6 tokens after each prompt have room for fewer and fewer."""
    propose, depths = rasd.Rasd.propose, list[tuple[int, int]]()

    def watched(self: Any, context: Any, remaining: np.ndarray, uniforms: Any, state: Any) -> Draft:
        draft = propose(self, context, remaining, uniforms, state)
        depths.extend(zip(draft.depth.amax(1).tolist(), remaining.tolist(), strict=True))
        return draft

    with named(near=near()), patch.object(rasd.Rasd, "propose", watched):
        run(target(), 'rasd:model="model:name=near,k=1",least=0', [[1, 2, 3] * 5, [4, 0] * 6], [6, 9])
    assert all(depth <= room for depth, room in depths)
    assert (4, 4) in depths, "cut to the room"


# --- a decode ---


def test_a_drafter_with_a_head_over_some_ids_prunes_by_these(tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text("[0, 2, 3]")
    with named(near=near()):
        spec = f'rasd:model="model:name=near,k=3,vocab=\\"{tmp_path / "ids.json"}\\""'
        assert rows(run(target(), spec, RAGGED, NEW)) == greedy()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rasd", "rasd: model is missing"),
        ("rasd:model=lookup", "rasd: model must be the spec of one drafting model, got 'lookup'"),
        (f'rasd:model="{SPEC}"'.replace('"model:name=near,k=4"', '\\"model:name=near\\"'), "one drafting model"),
        ("rasd:model=earlyexit", "rasd: earlyexit drafts within every verify forward"),
        ('rasd:model="model:name=near",least=2', "rasd: least must lie in"),
        ('rasd:model="model:name=near",nodes=0', "rasd: nodes must be at least 1"),
        ('rasd:model="model:name=near",suffix=65', "rasd: suffix must be at most 64"),
    ],
)
def test_specs_that_cannot_be(spec: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        registry.resolve(spec, "ar")
    assert message in str(error.value)


@pytest.mark.seeds("arXiv:2503.03434")
def test_questions_about_documents_are_accepted_longer_than_by_either_source(tmp_path: Path) -> None:
    """Lists, which the prompt contains, and records, of which the store has others; a high cost disables the model."""
    the_longest_suffix_is_searched_as_a_plain_version_does()
    what_more_continuations_share_comes_first()
    test_added_nodes_are_point_masses_after_sampled_siblings()
    with named(near=near()):
        drafts_alone_what_it_drafts_in_a_batch('rasd:model="model:name=near,k=2"')
    the_budget_cuts_what_was_retrieved_and_never_the_model_s_nodes()
    branches_that_the_model_rules_out_are_pruned()
    nothing_is_drafted_deeper_than_the_row_has_room()
    model = pardec.load("tiny-llama", device="cpu")
    lists = pardec.task("lists").problems(split="heldout", n=30, seed=7)
    records = pardec.task("records")
    given = [each.prompt for each in lists if each.prompt.startswith(WORDS["copy"])][:6]
    given += [each.prompt for each in records.problems(split="heldout", n=6, seed=7)]
    documents = [each.answer for each in records.problems(split="train", n=20, seed=3)]
    store = tmp_path / "documents.jsonl"
    store.write_text("\n".join(map(json.dumps, documents)))
    plain = model.generate(given, sampler="sequential", max_new_tokens=32).tokens

    def length(spec: str) -> float:
        done = model.generate(given, sampler=spec, max_new_tokens=32)
        assert done.tokens == plain
        return (sum(map(len, done.tokens)) - len(given)) / (sum(done.nfe) - len(given))

    drafter = "model:name=tiny-llama-draft,k=3"
    both = f'rasd:model="{drafter}",store={store}'
    fusion, alone, retrieved = length(both), length(drafter), length(f"{both}+goodput:c=1000")
    assert fusion > max(alone, retrieved)
    assert min(alone, retrieved) > 1.2
