"""Files of prompts as tasks: fields, order, scoring, and errors for wrong lines."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pardec
from pardec.io.prompt_files import read_text
from pardec.models.errors import SpecError, UnknownNameError
from pardec.tasks import FileTask, Problem, expand, list_tasks, task
from pardec.tasks.functions import ScoreError

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(*lines: Any, name: str = "problems.jsonl") -> Path:
        file = tmp_path / name
        text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        file.write_text(text, encoding="utf-8")
        return file

    return made


# --- reading ---


def test_problems_come_in_the_order_of_the_file_whatever_split_and_seed(write: Write) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    file = write({"prompt": "a", "answer": "A"}, "", {"id": "x", "messages": chat, "answers": ["B", "b"]}, '"c"')
    made = FileTask(file)
    whole = [Problem("0", "a", "A"), Problem("x", chat, ["B", "b"]), Problem("2", "c", None)]
    assert made.problems() == made.problems("train", 50, 3) == made.problems(split="nowhere", n=None) == whole
    assert made.problems(n=2) == whole[:2]
    assert len(made) == 3
    assert made.name == "problems"
    assert made.summary == "3 prompts of problems.jsonl, 2 with an answer, scored by exact"
    for n in (0, -1, True, "3"):
        with pytest.raises(SpecError, match="problems: n must lie in"):
            made.problems(n=n)  # type: ignore[arg-type]


def test_all_but_fifty_are_handed_out_when_asked(write: Write) -> None:
    made = FileTask(write(*({"prompt": f"p{i}"} for i in range(120))))
    assert [len(made.problems()), len(made.problems(n=100)), len(made.problems(n=None))] == [50, 100, 120]


def test_a_text_file_has_a_prompt_a_line_and_no_answers(write: Write) -> None:
    made = FileTask(write("one", "", '{"prompt": "two"}\r', name="p.txt"), scorer="number", name="mine")
    assert made.problems() == [Problem("0", "one", None), Problem("1", '{"prompt": "two"}', None)]
    assert made.name == "mine"
    assert made.score(made.problems()[0], "1") is None
    assert made.lenient(made.problems()[0], "1") is None


def test_a_byte_order_mark_and_line_separators_inside_json_are_no_ends_of_lines(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_bytes('\ufeff{"prompt": "a\u2028b"}\r\n{"prompt": "c\x85"}'.encode())
    assert [p.prompt for p in FileTask(tmp_path / "p.jsonl").problems()] == ["a\u2028b", "c\x85"]


@settings(max_examples=50)
@given(st.lists(st.text().filter(str.strip), min_size=1))
def test_any_prompts_written_as_json_lines_are_read_back(prompts: list[str]) -> None:
    for ascii_only in (True, False):
        content = "\n".join(json.dumps({"prompt": prompt}, ensure_ascii=ascii_only) for prompt in prompts)
        assert [item.prompt for item in read_text(content, "here", json_lines=True)] == prompts


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 3 is not JSON"),
        ("[" * 100_000, "line 3 is not JSON"),
        ("[1]", "line 3 is a list, not an object"),
        ({"prompt": "a", "messages": []}, "line 3 has neither or both"),
        ({"prompt": 3}, "line 3: the prompt is int"),
        ({"prompt": " "}, "line 3: the prompt is empty"),
        ({"messages": []}, "line 3: the prompt is empty"),
        ({"messages": [{"role": "user"}]}, 'line 3: a message has no "role" or no "content"'),
        ({"messages": ["Hi"]}, 'line 3: a message has no "role" or no "content"'),
        ({"prompt": "b", "answer": "1", "answers": ["1"]}, 'line 3 has both of "answer" and "answers"'),
        ({"prompt": "b", "answers": []}, 'line 3: "answers" is not a list'),
        ({"prompt": "b", "answers": "1"}, 'line 3: "answers" is not a list'),
        ({"prompt": "b", "answer": True}, "line 3: the answer True is neither text nor a number"),
        ({"prompt": "b", "answers": ["1", {}]}, "line 3: the answer ['1', {}] is neither text nor a number"),
        ({"prompt": "b", "answer": []}, "line 3: the answer [] is neither text nor a number"),
        ({"prompt": "b", "answer": "none"}, "line 3: the answer 'none' holds no number, which number needs"),
        ({"prompt": "b", "answers": ["1", "x"]}, "holds no number"),
        ({"prompt": "b", "id": 0}, "line 3: the id '0' is already that of line 1"),
    ],
)
def test_a_bad_line_is_named_by_number(write: Write, line: Any, said: str) -> None:
    with pytest.raises(SpecError, match=re.escape(said)) as caught:
        FileTask(write({"prompt": "a"}, "", line), scorer="number")
    assert caught.value.hint


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for name, content, said in (
        ("none.jsonl", None, "cannot read prompts from .*none.jsonl: No such file"),
        ("binary.jsonl", b"\xff\xfe\x00", "it is not UTF-8 text"),
        ("empty.jsonl", b"\n \n", "has no prompt"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(SpecError, match=said):
            FileTask(tmp_path / name)


# --- scoring ---


def test_exact_takes_any_accepted_answer_and_any_white_space(write: Write) -> None:
    made = FileTask(write({"prompt": "a", "answers": ["two  words", 4]}, {"prompt": "b", "answer": ""}))
    several, nothing = made.problems()
    assert [made.score(several, t) for t in (" two\nwords ", "4", "4.0", "two word", "")] == [1, 1, 0, 0, 0]
    assert [made.score(nothing, t) for t in (" \n", "x")] == [1, 0]


def test_a_function_gets_problem_and_text_and_its_result_counts(write: Write, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n"
        "@dataclass\nclass Kept:\n    n: int\n\n"
        "def grade(problem, text):\n"
        "    return {'half': 0.5, 'yes': True, 'no': False, 'pass': None, 'same': problem.answer == {'of': [1]},\n"
        "            'prompt': text == problem.prompt}[text]\n"
    )
    made = FileTask(write({"prompt": "prompt", "answer": {"of": [1]}}, {"prompt": "b"}), f"{tmp_path}/mine.py:grade")
    problem, without = made.problems()
    texts = ("half", "yes", "no", "pass", "same", "prompt")
    assert [made.score(problem, text) for text in texts] == [0.5, 1.0, 0.0, None, 1.0, 1.0]
    assert made.score(without, "same") == 0.0


def test_numpy_numbers_are_numbers(write: Write, tmp_path: Path) -> None:
    (tmp_path / "n.py").write_text(
        "import numpy as np\n\n"
        "def grade(p, t):\n    return {'f': np.float32(0.5), 'b': np.bool_(True), 'a': np.ones(2)}[t]\n"
    )
    made = FileTask(write({"prompt": "a"}), f"{tmp_path}/n.py:grade")
    assert [made.score(made.problems()[0], text) for text in "fb"] == [0.5, 1.0]
    with pytest.raises(ScoreError, match="returned array"):
        made.score(made.problems()[0], "a")


@pytest.mark.parametrize("value", ["'1'", "2", "-0.1", "float('nan')", "[1]", "{}", "1j", "'x' * 1000"])
def test_a_result_that_is_no_score_is_an_error(write: Write, tmp_path: Path, value: str) -> None:
    (tmp_path / "bad.py").write_text(f"def grade(problem, text):\n    return {value}\n")
    made = FileTask(write({"prompt": "a"}), f"{tmp_path}/bad.py:grade")
    with pytest.raises(ScoreError, match="returned .* for problem 0") as caught:
        made.score(made.problems()[0], "t")
    assert "0..1" in str(caught.value.hint)
    assert len(str(caught.value)) < 400


def test_an_exception_in_a_function_names_problem_and_line(write: Write, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("def grade(problem, text):\n    return 1 / 0\n")
    made = FileTask(write({"prompt": "a", "id": "q7"}), f"{tmp_path}/fails.py:grade")
    with pytest.raises(ScoreError, match="failed on problem q7: ZeroDivisionError: division by zero") as caught:
        made.score(made.problems()[0], "t")
    assert caught.value.hint == "it was raised at fails.py, line 2"


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ("exct", r"unknown scorer 'exct' \(did you mean 'exact'\?\)"),
        ("", "unknown scorer ''"),
        ("nowhere.py:grade", "names a file that does not exist"),
        ("{}/s.py:grad", r"has no function 'grad' \(did you mean 'grade'\?\)"),
        ("{}/s.py:", "has no function ''"),
        ("{}/s.py:LIMIT", "has no function 'LIMIT'"),
        ("{}/s.py:one", "cannot take two arguments"),
        ("{}/s.py:named", "cannot take two arguments"),
        ("{}/broken.py:grade", "cannot be loaded: SyntaxError"),
        ("{}/raises.py:grade", "cannot be loaded: ModuleNotFoundError"),
        ("{}/notes.txt:grade", "is not a Python file"),
    ],
)
def test_scorers_that_cannot_be_loaded_are_refused(write: Write, tmp_path: Path, scorer: str, said: str) -> None:
    (tmp_path / "s.py").write_text(
        "LIMIT = 3\ndef grade(p, t): return 1\ndef one(p): return 1\ndef named(p, *, text): return 1\n"
    )
    (tmp_path / "broken.py").write_text("def grade(p, t:\n")
    (tmp_path / "raises.py").write_text("import no_module_of_that_name\n")
    (tmp_path / "notes.txt").write_text("grade\n")
    with pytest.raises(SpecError, match=said) as caught:
        FileTask(write({"prompt": "a"}), scorer.format(tmp_path))
    assert caught.value.hint
    assert "\n" not in str(caught.value)


def test_a_changed_function_is_loaded_again(write: Write, tmp_path: Path) -> None:
    file, scores = write({"prompt": "a"}), []
    for value in (0.25, 0.75):
        (tmp_path / "s.py").write_text(f"def grade(p, t): return {value}\n")
        made = FileTask(file, f"{tmp_path}/s.py:grade")
        scores.append(made.score(made.problems()[0], ""))
    assert scores == [0.25, 0.75]


def test_a_task_travels_to_another_folder_and_process(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write({"prompt": "a", "answer": "1"})
    (tmp_path / "s.py").write_text("def grade(p, t): return p.answer == t\n")
    monkeypatch.chdir(tmp_path)
    made = FileTask("problems.jsonl", "s.py:grade", name="n")
    monkeypatch.chdir("/")
    again = pickle.loads(pickle.dumps(made))
    assert (again.problems(), again.name, again.summary) == (made.problems(), "n", made.summary)
    assert [again.score(again.problems()[0], t) for t in "12"] == [1.0, 0.0]


# --- by name ---


def test_task_takes_a_path_and_names_stay_names(write: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = write({"prompt": "a", "answer": "1"})
    for path in (file, str(file)):
        made = pardec.task(path)
        assert isinstance(made, FileTask)
        assert made.score(made.problems()[0], "1") == 1.0
    assert expand(str(file)) == [str(file)]
    assert not {"problems", "parallel", str(file)} & set(list_tasks())
    write("x", name="sort")  # a file that is called what a task is called
    write("x", name="prompts")
    monkeypatch.chdir(tmp_path)
    assert not isinstance(task("sort"), FileTask)
    assert isinstance(task("prompts"), FileTask)


def test_unknown_names_and_groups_say_what_would_work() -> None:
    for look in (task, expand):
        with pytest.raises(UnknownNameError, match=r"unknown task 'paralel' \(did you mean 'parallel'"):
            look("paralel")
        with pytest.raises(SpecError, match="cannot read prompts from nowhere.jsonl"):
            task("nowhere.jsonl")
    with pytest.raises(UnknownNameError, match="'parallel' is a group of tasks") as caught:
        task("parallel")
    assert caught.value.hint == "one of them: insert, remove, shuffle, replace, sort"
    with pytest.raises(UnknownNameError, match="unknown task None"):
        task(None)  # type: ignore[arg-type]


def test_the_command_line_lists_and_shows_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    from pardec.cli import run

    assert run(["list", "tasks", "--json"]) == 0
    found = {entry["name"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert set(found) == {*list_tasks(), "parallel"}
    assert found["parallel"]["tasks"] == expand("parallel")
    example = found["remove"]["example"]
    assert task("remove").score(Problem("p", example["prompt"], None), example["answer"]) == 1.0
    assert run(["show", "shuffle"]) == 0
    shown = capsys.readouterr().out
    assert "of the group parallel" in shown
    assert found["shuffle"]["example"]["prompt"] in shown
    assert run(["show", "parallel"]) == 0
    assert "insert, remove, shuffle, replace, sort" in capsys.readouterr().out
    assert run(["show", "lists", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lenient"] == "the same"
