"""Prompts passed in memory, and the user's own scoring functions, in Python."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import pardec
from pardec.comparison import sources
from pardec.comparison.report.commands import python, shell
from pardec.models.errors import SpecError
from pardec.tasks import FileTask, Problem
from pardec.tasks.functions import ScoreError, importable
from pardec.tasks.scorers import scorer

Small = Callable[..., pardec.Table]


def rate(problem: Problem, text: str) -> float:
    return 0.25 if problem.answer == "3" else 1.0


def test_a_function_scores_prompts_of_a_file_and_of_memory(small: Small, prompts: Path) -> None:
    table = small(scorer=rate, limit=4, references=False)
    assert [row["score"] for row in sorted(table.run.rows, key=lambda row: row["index"])[::2]] == [1.0, 1.0, 1.0, 0.25]
    arguments = [
        "Ann.",
        {"prompt": "Tom.", "answer": 3},
        {"messages": [{"role": "user", "content": "Hi"}], "answers": ["3"]},
    ]
    made = sources.tasks(None, arguments[:2], lambda problem, text: problem.answer == 3)["prompts"]
    assert [made.score(problem, "") for problem in made.problems()] == [0.0, 1.0]
    listed = sources.tasks(None, arguments[1:], "exact")["prompts"].problems()
    assert (listed[1].prompt, listed[1].answer) == (arguments[2]["messages"], ["3"])
    mean = small(prompts=arguments[:2], scorer=partial(rate), limit=2, references=False).rows[0]["accuracy"]
    assert mean == 1.0


def test_a_run_goes_on_with_the_same_function_only(small: Small, tmp_path: Path) -> None:
    out = {"out": tmp_path / "run", "limit": 1, "references": False}
    table = small(scorer=rate, **out)
    (calls,) = table.run.config["tasks"]
    assert calls["scorer"].endswith("test_own_scorers.rate")
    assert small(scorer=rate, resume=True, **out).rows[0]["accuracy"] == 1.0
    with pytest.raises(SpecError, match="holds a run with other settings"):
        small(scorer=lambda problem, text: 0.0, resume=True, **out)
    assert shell(table.run.config) == []
    assert any("scorer=scorer,  # " in line for line in python(table.run.config))


def test_tune_takes_functions_and_objects() -> None:
    advice = pardec.tune(
        "tiny-dream",
        prompts=[f"Tom has {n} cups." for n in range(12)],
        scorer=lambda problem, text: 1.0,
        samplers=[pardec.sampler("threshold", tau=0.5) | pardec.sampler("eos")],
        device="cpu",
        budget=12,
        confirm=5,
        max_new_tokens=4,
    )
    assert advice.spec == "threshold:tau=0.5+eos"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda text: 1.0, "cannot take two arguments"),
        (3, "a scorer must be a name or a function, got int"),
    ],
)
def test_what_is_no_scorer_is_refused(arguments: object, message: str, prompts: Path) -> None:
    with pytest.raises(SpecError, match=message):
        FileTask(prompts, scorer=arguments)  # type: ignore[arg-type]


def test_a_function_that_fails_says_where(prompts: Path) -> None:
    def broken(problem: Problem, text: str) -> float:
        raise KeyError("cups")

    with pytest.raises(pardec.PardecError, match=r"broken' failed on problem 1: KeyError") as caught:
        scorer(broken).score(Problem("1", "a", "b"), "c")
    assert "test_own_scorers.py, line" in str(caught.value.hint)


def test_other_processes_take_what_they_can_import(prompts: Path) -> None:
    assert importable("exact")
    assert importable(sources.config)
    assert not importable(lambda problem, text: 1.0)
    with pytest.raises(SpecError, match="which cannot import") as caught:
        pardec.compare("tiny-dream", None, "threshold", prompts=prompts, scorer=lambda p, t: 1.0, executor="ray")
    assert "file.py:function" in str(caught.value.hint)


def test_a_scorer_that_fails_on_the_first_row_ends_the_run(small: Small, tmp_path: Path) -> None:
    for result, message in ((2.0, "returned 2.0 for problem"), (None, "failed on problem")):
        rated: list[str] = []

        def wrong(problem: Problem, text: str, result: float | None = result, rated: list[str] = rated) -> float:
            rated.append(problem.id)
            return result if result is not None else len(text) / 0

        with pytest.raises(ScoreError, match=message) as caught:
            small(scorer=wrong, limit=8, out=tmp_path / message[:6], references=False, samplers=["threshold"])
        assert len(rated) == 1
        assert caught.value.hint
        assert not (tmp_path / message[:6] / "rows.jsonl").exists()


def test_a_scorer_that_fails_later_makes_failed_rows(small: Small) -> None:
    calls: list[str] = []

    def fragile(problem: Problem, text: str) -> float:
        calls.append(problem.id)
        return 1.0 if len(calls) < 3 else 2.0

    [row] = small(scorer=fragile, limit=4, references=False, samplers=["threshold"]).rows
    assert 0 < row["failed"] < 4


def test_a_scorer_that_returns_none_is_said(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    table = small(scorer=lambda problem, text: None, limit=3, references=False, samplers=["threshold"])
    assert "returned None for problem" in capsys.readouterr().err
    assert any("no problem has a score, since the scorer returned None" in note for note in table.notes)
    assert table.rows[0]["accuracy"] is None


def test_prompts_without_answers_are_said_before_decoding(small: Small, capsys: pytest.CaptureFixture[str]) -> None:
    table = small(prompts=["Ann.", "Tom."], references=False, samplers=["threshold"])
    assert capsys.readouterr().err.startswith("warning: no prompt of prompts has an answer")
    assert any("no problem has a score, since the prompts have no answer" in note for note in table.notes)
    with pytest.raises(SpecError, match="prompt 1 of prompts has no answer, so that it has no score"):
        pardec.tune("tiny-dream", prompts=[{"prompt": "Ann.", "answer": "3"}, "Tom."], samplers=["threshold"])


def test_the_table_names_the_scorer(small: Small, prompts: Path) -> None:
    table = small(scorer=None, limit=2, references=False, samplers=["threshold"])
    assert any("answers are scored by 'exact', which wants the answer's text" in note for note in table.notes)
