"""The command that trains drafters: its texts and its options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import train_draft

ROW = {"prompt": [2, 160, 300], "answer": [103, 104, 3]}


def command(folder: Path, *more: str) -> list[str]:
    where = ["--state", str(folder / "state"), "--out", str(folder / "out"), "--device", "cpu"]
    return ["tiny-llama", "--kind", "medusa", "--steps", "1", "--validation", "1", *where, *more]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot read rows"),
        ("", "has no answer of two tokens or more"),
        (json.dumps(ROW) + '\n{"prompt": [2\n', "line 2 is not JSON"),
        (json.dumps({"prompt": [2, 999], "answer": [3, 4]}) + "\n", "outside the vocabulary of 361"),
    ],
)
def test_rows_that_cannot_be_read_are_said_in_one_line(text: str | None, message: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    if text is not None:
        rows.write_text(text)
    with pytest.raises(SystemExit, match=f"^error: .*{message}"):
        train_draft.main(command(tmp_path, "--rows", str(rows)))


def test_a_last_row_without_a_line_break_counts(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(ROW) + "\n" + json.dumps(ROW | {"prompt": [2, 33]}))
    run = train_draft.start(train_draft.parser().parse_args(command(tmp_path, "--rows", str(rows))))
    assert len(run.states.texts) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--task", "lists", "--prompts", "x"), "one of --rows, --task and --prompts"),
        (("--unroll", "3"), "--unroll is an option of eagle, mtp"),
        (("--mask-id", "0"), "--mask-id is an option of dflash, idlm"),
        (("--own-head",), "--own-head is an option of eagle"),
        (("--batch", "0"), "--batch: must be at least 1"),
        (("--ramp", "0.7-0.3"), "--ramp: must be two rising shares"),
    ],
)
def test_options_that_would_not_count_are_refused(
    options: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        train_draft.main(command(tmp_path, *options))
    assert message in capsys.readouterr().err
