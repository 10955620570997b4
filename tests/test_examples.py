"""Every example runs in a fresh interpreter and prints what its docstring states."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests import fresh

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
NOTEBOOK = EXAMPLES / "two_samplers.ipynb"
# What each is started with; `batch_to_file` is stopped and goes on.
COMMANDS = (
    "own_prompts",
    "batch_to_file",
    "batch_to_file",
    "streaming",
    "infilling",
    "own_select",
    "image_sheet --captions 1",
    "transformers_speculative",
    "trace_with_pandas",
)
CUT = """
path = __import__("pathlib").Path("answers.jsonl")
path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]) + '{"id": "cups-')
"""
ANSWER = "18 - 4 = 14; 14 + 12 = 26; answer 26"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def output(folder: Path) -> dict[str, Any]:
    """The output of each example; for one that is started twice, the second output."""
    pieces = []
    for number, command in enumerate(COMMANDS):
        name, *arguments = command.split()
        path = str(EXAMPLES / f"{name}.py")
        again = CUT if command in COMMANDS[:number] else ""
        run = f"import runpy, sys\nsys.argv = {[path, *arguments]}\nrunpy.run_path({path!r}, run_name='__main__')"
        pieces.append({"language": "python", "code": again + run})
    pieces.append({"language": "python", "code": "\n".join(cells("code")).replace("limit=8", "limit=1")})
    results = fresh.results(pieces, folder)
    names = [*COMMANDS, NOTEBOOK.stem]
    for command, result in zip(names, results, strict=True):
        assert result["code"] == 0, f"{command}\n{result['told']}"
    return {command.split()[0]: result["told"] for command, result in zip(names, results, strict=True)}


def cells(kind: str) -> list[str]:
    """The sources of the notebook's cells of a kind."""
    notebook = json.loads(NOTEBOOK.read_text())
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["language"]) == (4, "python")
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def test_every_example_is_run_and_is_short() -> None:
    assert {command.split()[0] for command in COMMANDS} == {path.stem for path in EXAMPLES.glob("*.py")}
    for path in EXAMPLES.glob("*.py"):
        assert 20 <= len(path.read_text().splitlines()) <= 60, path
        assert f"python examples/{path.name}" in path.read_text().split('"""')[1], path


def test_own_prompts_are_scored_by_the_own_function(output: dict[str, Any]) -> None:
    rows = re.findall(r"^\| `([^`]+)` +\| \w+ +\| ([\d.]+)%", output["own_prompts"], re.MULTILINE)
    assert dict(rows) == dict.fromkeys((name for name, _ in rows), "100.0")
    assert len(rows) == 3
    assert "on the frontier: threshold:tau=0.9+eos\n" in output["own_prompts"]


def test_a_batch_that_was_cut_off_goes_on(output: dict[str, Any], folder: Path) -> None:
    assert "15 of 20 prompts to do" in output["batch_to_file"]
    rows = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == [f"cups-{cups}" for cups in range(10, 30)]
    assert {row["id"]: row["text"] for row in rows}["cups-18"] == ANSWER


def test_streamed_pieces_make_up_the_text(output: dict[str, Any]) -> None:
    *steps, finished, text = output["streaming"].splitlines()
    assert text == ANSWER
    assert "finished (stop)" in finished
    assert "".join(step.split(": ")[-1].strip("'") for step in steps) == ANSWER


def test_gaps_are_filled_and_the_rest_stays(output: dict[str, Any]) -> None:
    filled, *steps, answer = output["infilling"].splitlines()
    assert re.fullmatch(r"8 - 3 = 5 ?; answer 5", filled)
    assert len(steps) == 2
    assert answer.startswith("8")


def test_an_own_select_needs_fewer_forwards(output: dict[str, Any]) -> None:
    lines = re.findall(r"^ *(\d+) forwards  (.*)  \((.*)\)$", output["own_select"], re.MULTILINE)
    assert [spec for _, _, spec in lines] == [
        "sequential+eos",
        "doubt+eos",
        "doubt:budget=0.01+eos@dual",
        "Doubt(budget=0.1)",
    ]
    assert {text for _, text, _ in lines} == {ANSWER}
    assert all(int(forwards) < int(lines[0][0]) / 4 for forwards, _, _ in lines[1:])


def test_the_sheet_has_a_row_for_each_sampler(output: dict[str, Any], folder: Path) -> None:
    forwards = [float(number) for number in re.findall(r"([\d.]+) forwards per image", output["image_sheet"])]
    assert forwards[0] == 144
    assert max(forwards[1:]) < 72
    with Image.open(folder / "sheet.png") as sheet:
        assert sheet.height == 3 * sheet.width
        assert len(sheet.getcolors(2**20) or ()) > 10


def test_transformers_gives_the_same_tokens_in_fewer_forwards(output: dict[str, Any]) -> None:
    text = output["transformers_speculative"]
    plain, *drafted = (int(number) for number in re.findall(r"(\d+) forwards", text))
    assert len(drafted) == 2
    assert max(drafted) < plain
    assert text.count("the same tokens: cow rat bee rat owl cow rat bee") == 2


def test_the_trace_becomes_a_data_frame(output: dict[str, Any]) -> None:
    (correlation,) = re.findall(r"correlation of forward and position: (-?[\d.]+)", output["trace_with_pandas"])
    assert 0 < float(correlation) < 1
    assert '"name": "Sara"' in output["trace_with_pandas"]


def test_the_notebook_runs_from_its_first_cell_to_its_last(output: dict[str, Any], folder: Path) -> None:
    lines = output["two_samplers"].splitlines()
    assert re.fullmatch(re.escape(ANSWER) + r" in \d forwards", lines[0])
    assert [line.split()[0] for line in lines[-2:]] == ["sequential+eos", "threshold:tau=0.98+eos"]
    assert (folder / "accuracy.svg").read_text().startswith("<svg")
    assert not any(cell.get("outputs") for cell in json.loads(NOTEBOOK.read_text())["cells"])
