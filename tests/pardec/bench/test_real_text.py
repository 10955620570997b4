"""The benchmark on real prompts: the chosen prompts, the comparison, and resuming an interrupted run."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest

from tests.models.loading.gguf_files import write_gguf

ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "real_text.py"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    file = tmp_path / "questions.jsonl"
    kinds = ["writing", "writing", "roleplay", "qa", "qa", "rag"]
    lines = [{"question_id": i, "category": kind, "turns": [f"the {i}", "again"]} for i, kind in enumerate(kinds)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_prompts_are_the_first_turns_of_each_kind(questions: Path) -> None:
    read = runpy.run_path(str(SCRIPT))["read_prompts"]
    found = [(prompt.id, prompt.kind, prompt.text) for prompt in read(questions, 2)]
    assert found == [
        (0, "conversation", "the 0"),
        (2, "conversation", "the 2"),
        (3, "questions", "the 3"),
        (4, "questions", "the 4"),
        (5, "retrieval", "the 5"),
    ]


def test_a_run_compares_with_transformers_and_goes_on(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARDEC_KERNELS", "auto")
    file = write_gguf(tmp_path / "toy.gguf")
    command = ["real_text.py", "--model", str(file), "--prompts", str(questions), "--count", "1", "--timed", "1"]
    command += ["--max-new-tokens", "6", "--specs", "sequential", "lookup:k=2"]
    command += ["--run", str(tmp_path / "run"), "--out", str(tmp_path / "out")]
    monkeypatch.setattr(sys, "argv", command)
    runpy.run_path(str(SCRIPT), run_name="__main__")
    rows = {name: (tmp_path / "run" / f"{name}.jsonl").read_text() for name in ("checks", "timed")}
    result = json.loads((tmp_path / "out.json").read_text())
    assert [(row["prompts"], row["equal"]) for row in result["equality"]] == [(3, 3), (3, 3)]
    assert [row["arm"] for row in result["runs"]["bfloat16"]][:3] == [
        *("transformers", "transformers, prompt lookup", "transformers, assisted")
    ]
    assert {row["equal"] for row in result["runs"]["float32"]} == {3}
    assert result["runs"]["float32, C"][3]["acceptance_length"] == 1.0
    page = (tmp_path / "out.md").read_text()
    assert "| `lookup:k=2` | 3 | 3 |  |" in page
    assert str(tmp_path) not in page
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert {name: (tmp_path / "run" / f"{name}.jsonl").read_text() for name in rows} == rows
    monkeypatch.setattr(sys, "argv", [*command, "--max-new-tokens", "7"])
    with pytest.raises(SystemExit, match="was written with other settings"):
        runpy.run_path(str(SCRIPT), run_name="__main__")
