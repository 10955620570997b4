"""A task declares the length of its answers, and cut answers are counted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import pardec
from pardec.comparison import tuning
from pardec.requests.answer_warnings import is_cut

Cli = Callable[..., tuple[int, str, str]]
QUIET = {"references": False, "progress": False, "device": "cpu"}


def test_compare_decodes_the_length_that_each_task_declares() -> None:
    table = pardec.compare("tiny-dream", ["chains", "lists"], "threshold+eos", limit=1, **QUIET)
    rows = {row["task"]: row for row in table.run.rows}
    assert len(rows["chains"]["tokens"]) > 64
    assert [row["score"] for row in table.run.rows if row["task"] == "chains"] == [1.0]
    assert table.rows[0]["cut"] == 0
    assert not any("cut" in note for note in table.notes)
    assert {task["name"]: task["tokens"] for task in table.run.config["tasks"]} == {"chains": 256, "lists": 64}


def test_compare_counts_cut_answers() -> None:
    table = pardec.compare(
        "tiny-dream", "chains", ["threshold+eos", "sequential+eos"], limit=2, max_new_tokens=16, **QUIET
    )
    assert [row["cut"] for row in table.rows] == [2, 2]
    assert sum("2 of 2 answers were cut at 16 tokens" in note for note in table.notes) == 2
    assert "| cut " in table.to_markdown()


def test_an_explicit_length_and_that_of_a_preset_win() -> None:
    assert tuning.preview("tiny-dream", "chains", samplers=["threshold+eos"])["arguments"] == {"max_new_tokens": 256}
    for given, expected in (({}, 256), ({"max_new_tokens": 32}, 32)):
        plan = pardec.comparison.preview("tiny-dream", "chains", "threshold", limit=1, **given)
        [entry] = [entry for entry in plan["samplers"] if not entry["reference"]]
        assert entry["arguments"].get("max_new_tokens", plan["tasks"][0]["tokens"]) == expected


@pytest.mark.parametrize(("finish", "generated", "ids", "cut"), [
    ("length", 8, [3], True), ("length", 5, [3], False), ("stop", 8, [3], False), ("length", 8, [], False),
])  # fmt: skip
def test_is_cut(finish: str, generated: int, ids: list[int], cut: bool) -> None:
    row = {"finish": finish, "generated": generated, "tokens": [7] * 8}
    assert is_cut(row, {"max_new_tokens": 8, "stop_ids": ids}) == cut


def test_generate_says_when_an_answer_was_cut(cli: Cli, tmp_path: Path) -> None:
    command = ("generate", "tiny-llama", "-p", "Tom has 8 cups. He loses 3. How many cups does Tom have now?")
    assert "the answer was cut at 4 tokens; a larger -n gives more" in cli(*command, "-n", 4)[2]
    assert "cut" not in cli(*command)[2]
    rows = ("--prompts", tmp_path / "p.txt", "-n", 4, "-o", tmp_path / "rows.jsonl")
    (tmp_path / "p.txt").write_text(f"{command[3]}\n{command[3]} \n")
    for _ in range(2):  # also of rows that were finished before
        assert "2 of 2 answers were cut at 4 tokens" in cli(*command[:2], *rows)[2]
