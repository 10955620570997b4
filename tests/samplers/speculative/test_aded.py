"""Trigram counts that learn: roll-outs compared with a plain version, the counts, and a stream of one topic."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft import aded
from pardec.samplers.speculative.draft.aded import Trigrams, _Branch, last_pair, roll_out
from pardec.samplers.speculative.draft.text_history import PerRow
from pardec.samplers.speculative.draft.text_store import read_texts
from tests.reference import naive_aded
from tests.samplers.ar_toys import logits, plain_greedy, prompts, rows, run, toy_ar
from tests.samplers.drafter_checks import cyclic, drafts_alone_what_it_drafts_in_a_batch


def roll_outs_visit_the_nodes_of_a_plain_version() -> None:
    assert aded.roll_out is roll_out
    random = np.random.RandomState(0)
    deepest = 0
    for seed in range(20):
        text = random.randint(0, 4, 40).tolist()
        table = Trigrams()
        table.learn(text)
        draws = random.rand(5, 12)
        for explore, most in ((0.0, 60), (2.0, 7), (2.0, 60)):
            nodes = roll_out(table, last_pair(np.array(text)), draws, explore, most)
            paths: list[tuple[int, ...]] = [()]
            for token, parent, depth in nodes:
                paths.append((*paths[parent], token))
                assert depth == len(paths[-1])
            expected = naive_aded.tree(naive_aded.table([text]), (text[-2], text[-1]), draws.T.tolist(), explore, most)
            assert paths[1:] == expected, (seed, explore)
            deepest = max(deepest, len(paths[-1]))
    assert deepest > 3


def what_was_rarely_visited_is_tried_sooner_with_the_bonus() -> None:
    table = Trigrams()
    table.add((0, 1), [(2, 97.0), (3, 2.0), (4, 1.0)])
    draws = np.random.RandomState(1).rand(1, 30)
    assert len(roll_out(table, (0, 1), draws, 0.0, 9)) < 3
    assert len(roll_out(table, (0, 1), draws, 20.0, 9)) == 3
    table.add((7, 8), [(2, 1.0), (3, 1.0)])
    branch = _Branch.of(table, 0, (7, 8), 1.0)
    assert [branch.choose(u, 0.0) for u in (0.0, 0.499, 0.5)] == [0, 0, 1], "the first whose sum is above u"


def test_weights_fade_when_their_pair_occurs_again() -> None:
    table = Trigrams(decay=0.5)
    table.learn([7, 8, 9, 7, 8, 9, 5])
    assert table.after[(7, 8)] == {9: 1.5}
    assert table.after[(8, 9)] == {7: 0.5, 5: 1.0}
    assert table.after[(-1, -1)] == {7: 1.0}


def the_target_teaches_its_likeliest_tokens_behind_every_node() -> None:
    model = cyclic()
    sampler = registry.resolve("aded:keep=true,top=2", "ar")
    run(model, sampler, [[3, 4, 5]], 6)
    (table,) = vars(sampler.draft)["_shared"].values()
    weights = table.after[(4, 5)]
    assert max(weights, key=weights.__getitem__) == 6
    assert 1 < weights[6] <= 2 * 6  # what was committed counts 1, and each forward after it at most 1
    counted = registry.resolve("aded:keep=true,top=0", "ar")
    run(model, counted, [[3, 4, 5]], 6)
    (table,) = vars(counted.draft)["_shared"].values()
    assert table.after == naive_aded.table([[3, 4, 5, 6, 0, 1, 2, 3, 4]])


def a_node_of_a_tree_teaches_behind_its_parent_and_itself() -> None:
    """After 4 5 the nodes 6 and 7 were siblings, and 8 stood after 7; the token that was committed is 1."""
    draft = Draft(torch.tensor([[5, 6, 7, 8]]), np.array([4]), np.array([1]), torch.tensor([-1, 0, 0, 2]))
    read = {
        "probs": torch.tensor([[[0.5], [0.4], [0.3], [0.2]]]),
        "ids": torch.tensor([[[10], [11], [12], [13]]]),
        "tokens": draft.tokens,
        "parents": draft.parent,
    }
    outcome: Any = SimpleNamespace(draft=draft, before=np.array([2]), read=lambda name, make: read)
    context: Any = SimpleNamespace(text=SimpleNamespace(row=lambda at: np.array([4, 5, 1])))
    state = PerRow([Trigrams()])
    aded.Aded(top=1).observe(outcome, context, state)
    expected = {(4, 5): {10: 0.5, 1: 1.0}, (5, 6): {11: 0.4}, (5, 7): {12: 0.3}, (7, 8): {13: 0.2}}
    assert {pair: pytest.approx(weights) for pair, weights in expected.items()} == state.rows[0].after


class Spread:
    """Uniforms that lie evenly, by row, round, position and roll-out."""

    @staticmethod
    def of(row: int, number: int, position: int, which: int) -> float:
        return (row * 71 + number * 131 + position * 17 + which * 29) * 0.6180339887 % 1

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        each = [
            [[self.of(int(row), int(number), at, which) for which in range(max(width, 1))] for at in known]
            for row, number, known in zip(rows, step, positions.tolist(), strict=True)
        ]
        found = torch.tensor(each, dtype=torch.float64)
        return found if width else found[..., 0]


@pytest.mark.parametrize(("top", "decay", "nodes"), [(2, 1.0, 32), (0, 1.0, 3), (1, 0.5, 6)])
def test_every_round_of_a_ragged_batch_is_that_of_a_plain_version(top: int, decay: float, nodes: int) -> None:
    options = {"k": 4, "nodes": nodes, "rollouts": 5, "explore": 0.5, "top": top, "decay": decay}
    spec = "aded:" + ",".join(f"{name}={value}" for name, value in options.items())
    total = 0
    for seed in range(4):
        model, given, new = toy_ar(seed, vocab=4, sharp=2.0), prompts([1, 5, 3], seed=seed, vocab=4), [14, 9, 2]
        done = run(model, spec, given, new, source=Spread())
        for row, (prompt, count) in enumerate(zip(given, new, strict=True)):
            assert rows(done)[row] == plain_greedy(model, prompt, count)
            expected = naive_aded.rounds(
                lambda text, model=model: logits(model, [text])[0, -1].softmax(-1).tolist(),  # type: ignore[misc]
                prompt,
                count,
                partial(Spread.of, row),
                **options,  # type: ignore[arg-type]
            )
            assert list(done.trace.accepted[row]) == expected
            total += sum(expected)
    assert total > 10


def test_a_cycle_that_was_seen_is_drafted_as_deep_as_the_tree() -> None:
    done = run(cyclic(), "aded:k=6", [list(range(7)) * 2], 1 + 7 * 5)
    assert rows(done)[0] == [at % 7 for at in range(50)]
    assert set(done.trace.accepted[0][1:]) == {6}


def test_a_shared_table_needs_noise_that_no_draft_changes() -> None:
    model, given = toy_ar(3, vocab=11, sharp=2.0), prompts([4, 7], vocab=11)
    with pytest.raises(SpecError, match="aded: with keep=true a sampled text would depend on the requests before it"):
        run(model, "aded:keep=true", given, 5, temperature=1.0)
    sampler = registry.resolve("aded:keep=true+match:noise=seeded", "ar", sampling=True)
    first, second = (run(model, sampler, given, 20, temperature=1.0) for _ in range(2))
    assert rows(first) == rows(second) == rows(run(model, "match:noise=seeded", given, 20, temperature=1.0))
    assert sum(second.nfe) < sum(first.nfe)


def test_a_corpus_is_what_the_table_begins_with(tmp_path: Path) -> None:
    file = tmp_path / "texts.jsonl"
    file.write_text("[0, 1, 2, 3]\n\n[4, 5, 6, 0]\n")
    static = f"aded:corpus={file},update=false"
    assert run(cyclic(), static, [[0, 1]], 3).trace.accepted[0][1:] == (1,)  # 3 after 2, and nothing after 3
    for content, message in (("[99]", "neither a text nor a list of ids in 0..6"), ('"a"', "has no tokenizer")):
        file.write_text(content)
        with pytest.raises(SpecError, match=message):
            run(cyclic(), static, [[0, 1]], 3)
    with pytest.raises(SpecError, match="cannot be read"):
        run(cyclic(), "aded:corpus=nowhere.txt", [[0, 1]], 3)


@pytest.mark.parametrize(("name", "quoted"), [("texts.jsonl", '"'), ("texts.txt", "")])
def test_a_text_of_a_corpus_may_hold_line_separators_of_unicode(tmp_path: Path, name: str, quoted: str) -> None:
    file, text = tmp_path / name, "one\u2028two\x85three"
    file.write_text(f"{quoted}{text}{quoted}\n{quoted}four{quoted}\n", encoding="utf-8")
    model = pardec.load("tiny-llama", device="cpu")
    expected = [model.tokenizer.encode(each, add_special_tokens=False) for each in (text, "four")]
    assert [row.tolist() for row in read_texts("aded", str(file), model)] == expected


@pytest.mark.seeds("arXiv:2407.12021")
def test_a_stream_of_one_topic_is_accepted_ever_longer_and_longer_than_by_a_static_table(tmp_path: Path) -> None:
    """Arithmetic problems in batches of six; the static table is made of the target's texts on other problems."""
    roll_outs_visit_the_nodes_of_a_plain_version()
    what_was_rarely_visited_is_tried_sooner_with_the_bonus()
    test_weights_fade_when_their_pair_occurs_again()
    the_target_teaches_its_likeliest_tokens_behind_every_node()
    a_node_of_a_tree_teaches_behind_its_parent_and_itself()
    drafts_alone_what_it_drafts_in_a_batch("aded:k=3,rollouts=2")
    model, task = pardec.load("tiny-llama", device="cpu"), pardec.task("arithmetic")
    train = [problem.prompt for problem in task.problems(split="train", n=16, seed=3)]
    texts = model.generate(train, sampler="sequential", max_new_tokens=32)
    file = tmp_path / "texts.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in texts.tokens))
    given = [problem.prompt for problem in task.problems(split="heldout", n=24, seed=7)]
    plain = model.generate(given, sampler="sequential", max_new_tokens=32).tokens

    def lengths(spec: str) -> list[float]:
        sampler, result = registry.resolve(spec, "ar"), []
        for start in range(0, len(given), 6):
            done = model.generate(given[start : start + 6], sampler=sampler, max_new_tokens=32)
            assert done.tokens == plain[start : start + 6]
            result.append((sum(map(len, done.tokens)) - 6) / (sum(done.nfe) - 6))
        return result

    adaptive, static = (
        lengths("aded:keep=true,rollouts=24"),
        lengths(f"aded:keep=true,rollouts=24,update=false,corpus={file}"),
    )
    assert adaptive[-1] > adaptive[1] > adaptive[0]
    assert adaptive[-1] > 1.2 * static[-1]
