"""The judge's trainer on a target that counts: AutoJudge's labels, by what the target's own continuation comes to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import train_judge
from train_judge import PENALTIES, Answer, Label, auc, fit, mine, states_of, threshold, trained

from tests.samplers.ar_toys import rows, run
from tests.samplers.two_spellings_model import counting, guess, right

__all__ = ["auc", "fit", "states_of"]
LENGTH = 8  # of an answer


def drafted(texts: list[list[int]]) -> list[list[int]]:
    """The drafter's guess after each token, the same for the same text."""
    return [
        [guess(token, np.random.RandomState([at, *text[: at + 1]]).rand()) for at, token in enumerate(text)]
        for text in texts
    ]


def finished(texts: list[list[int]]) -> list[list[int]]:
    whole = rows(run(counting(), "sequential", texts, LENGTH))
    return [row[len(text) :] for row, text in zip(whole, texts, strict=True)]


def answer(prompt: list[int]) -> Answer:
    """An answer that counts on from the prompt; either spelling of every digit is right."""

    def score(tokens: object) -> float:
        text = [prompt[-1], *tokens]  # type: ignore[misc]
        return float(len(text) > LENGTH and all(map(right, text, text[1 : LENGTH + 1])))

    return Answer(prompt, finished([prompt])[0], score, LENGTH)


@pytest.mark.seeds("arXiv:2504.20039")
def test_mined_labels_tell_another_spelling_from_a_wrong_digit() -> None:
    """Without annotators: a token is important iff the target's continuation after it is no longer right."""
    mining_by_hand()
    test_the_auc_and_the_threshold_by_hand()
    with pytest.MonkeyPatch.context() as patches:
        test_the_penalty_of_the_best_order_on_held_back_problems_is_chosen(patches)
    answers = [answer([start, *more]) for start in range(4) for more in ([], [(start + 1) % 4], [(start + 5) % 8])]
    labels = mine(answers, drafted, finished, frozenset())
    flat = [label for each in labels for label in each]
    assert len(flat) > 20
    for label in flat:
        assert label.important is not right(label.ids[-2], label.ids[-1])
        assert label.ids[-1] != (label.ids[-2] + 1) % 4, "only what the answer does not have is asked for"
    assert {label.important for label in flat} == {True, False}
    for each, own in zip(answers, labels, strict=True):
        assert each.score(each.tokens) == 1, "unimportant tokens stay in the answer, important ones do not"
        assert [len(label.ids) for label in own] == sorted({len(label.ids) for label in own})
    states = states_of(counting(), [label.ids for label in flat])
    important = torch.tensor([label.important for label in flat])
    assert auc(fit(states, important, 1e-4)(states), important) > 0.9
    share = float(fit(states, important, 10.0)(states).mean())
    assert share == pytest.approx(float(important.float().mean()), abs=1e-3), "the bias has no penalty"


def test_the_penalty_of_the_best_order_on_held_back_problems_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve numbers, of which the first says a little: every fourth problem is held back."""
    drawn = torch.Generator().manual_seed(1)
    states = torch.randn(80, 12, generator=drawn)
    important = states[:, 0] + 2 * torch.randn(80, generator=drawn) > 0
    monkeypatch.setattr("train_judge.states_of", lambda model, texts: states[[ids[0] for ids in texts]])
    lines = [{"labels": [[[at], int(important[at])] for at in (2 * line, 2 * line + 1)]} for line in range(40)]
    given = SimpleNamespace(validation=0.25, recall=0.9)
    head, about = trained(counting(), lines, given)  # type: ignore[arg-type]
    held = torch.arange(80) // 2 % 4 == 0
    heads = [fit(states[~held], important[~held], penalty) for penalty in PENALTIES]
    areas = [auc(each(states[held]), important[held]) for each in heads]
    assert min(areas) < max(areas) - 0.01
    assert about["auc"] == pytest.approx(max(areas), abs=1e-4)
    assert any(torch.equal(head.w, each.w) for each, area in zip(heads, areas, strict=True) if area == max(areas))
    assert (about["examples"]["learning"], about["examples"]["held_back"]) == (60, 20)


def mining_by_hand() -> None:
    """The drafter has 7 for 2, which is right, and then 0 for 3, which is not; 5 for the end is too long."""
    choices = {(1, 2, 3, 9): [7, 0, 0, 0], (1, 7, 3, 9): [7, 0, 5, 0]}
    told = Answer([1], [2, 3, 9], lambda tokens: float(list(tokens)[:2] in ([2, 3], [7, 3])), 3)
    labels = mine(
        [told],
        lambda texts: [choices[tuple(text)] for text in texts],
        lambda texts: [{2: [3, 9], 3: [9], 4: [5, 9]}[len(text)] for text in texts],
        frozenset({9}),
    )
    important = [([1, 7], False), ([1, 7, 0], True), ([1, 7, 3, 5], True)]
    assert labels == [[Label(ids, important=flag) for ids, flag in important]]
    assert told.tokens == [7, 3, 9]


def test_the_auc_and_the_threshold_by_hand() -> None:
    scores, important = torch.tensor([0.9, 0.4, 0.4, 0.1]), torch.tensor([True, True, False, False])
    assert auc(scores, important) == pytest.approx((1 + 1 + 0.5 + 1) / 4)
    many = torch.arange(1, 101) / 100
    assert threshold(many, torch.ones(100, dtype=torch.bool), 0.75) == pytest.approx(0.26), "75 are not below it"


def test_mining_goes_on_after_the_last_whole_line_and_with_its_drafter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def mined(*_: Any, known: int, **__: Any) -> Iterator[dict[str, Any]]:
        return iter({"id": at, "task": "lists", "labels": []} for at in range(known, 3))

    monkeypatch.setattr(train_judge, "mined", mined)
    labels, model = tmp_path / "labels.jsonl", SimpleNamespace(name="counting")
    given = SimpleNamespace(drafter="2", seed=0, batch=1, problems=3)
    labels.write_text(json.dumps({"id": 0, "task": "lists", "labels": []}) + '\n{"id": 1, "ta')
    for _ in range(2):
        lines = train_judge.collect(model, given, ["lists"], labels)  # type: ignore[arg-type]
        assert [line["id"] for line in lines] == [0, 1, 2]
        assert [json.loads(line)["id"] for line in labels.read_text().splitlines()] == [0, 1, 2]
    given.drafter = "tiny-llama-draft"
    with pytest.raises(SystemExit, match="was mined with drafter 2, not tiny-llama-draft"):
        train_judge.collect(model, given, ["lists"], labels)  # type: ignore[arg-type]
