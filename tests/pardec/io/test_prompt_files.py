"""Prompt files: settings of a line are followed or refused by name, and tables have a header."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.io.prompt_files import COMPARED, GENERATED, PER_PROMPT, read_file
from pardec.models.errors import SpecError
from pardec.requests import line_calls
from pardec.tasks import FileTask

Cli = Callable[..., tuple[int, str, str]]
CUPS = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"


def write(folder: Path, *lines: Any, name: str = "p.jsonl") -> Path:
    file = folder / name
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def tiny() -> pardec.Model:
    return pardec.load("tiny-dream", device="cpu")


LINES: list[dict[str, Any]] = [
    {"prompt": CUPS},
    {"prompt": CUPS, "max_new_tokens": 2},
    {"prompt": CUPS, "stop": "5"},
    {"prompt": CUPS, "allowed": {"0": ["9"]}, "max_new_tokens": 4},
    {"messages": [{"role": "user", "content": CUPS}], "seed": 7},
    {"input_ids": [5, 6, 7], "max_new_tokens": 3},
]


@pytest.mark.parametrize("batch", [1, 4])
def test_lines_decode_as_serve_batch_decodes_them(cli: Cli, tiny: pardec.Model, tmp_path: Path, batch: int) -> None:
    file, output = write(tmp_path, *LINES), tmp_path / "rows.jsonl"
    served = [dict(line) for line in LINES]
    served[3]["allowed"] = {0: ["9"]}
    expected = {row.index: row.result.tokens[0] for row in tiny.serve_batch(served, max_new_tokens=16)}
    command = ("generate", "tiny-dream", "--device", "cpu", "--prompts", file, "-n", 16, "--batch-size", batch)
    code, _, err = cli(*command, "-o", output)
    assert code == 0, err
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    by_id = {row["id"]: row["tokens"] for row in rows if "tokens" in row}
    assert by_id == expected
    assert "has 6 of 6 rows already" in cli(*command, "-o", output)[2]


def test_a_changed_line_is_decoded_again(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    command = ("generate", "tiny-dream", "--device", "cpu", "--prompts", tmp_path / "p.jsonl", "-o", output)
    write(tmp_path, LINES[0], LINES[1])
    assert cli(*command)[0] == 0
    write(tmp_path, LINES[0], LINES[1] | {"max_new_tokens": 3})
    assert "has 1 of 2 rows already" in cli(*command)[2]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ({"prompt": "a", "bogus": 1}, "line 1 has an unknown field 'bogus'"),
        ('{"prompt": "a", "prompt": "b"}', "line 1 is not JSON: it has 'prompt' twice"),
        ({"prompt": "a", "max_tokens": 5}, "unknown field 'max_tokens'"),
        ({"prompt": "a", "temperature": 1}, "unknown field 'temperature'"),
        ({"prompt": "a", "max_new_tokens": 0}, "line 1: "),
        ({"prompt": "a", "seed": [1, 2]}, "line 1: seed must be one whole number"),
        ({"prompt": "a", "label": 3}, "line 1 sets label"),
        ({"prompt": "a", "allowed": {"x": ["5"]}}, "index 'x'"),
    ],
)
def test_a_line_that_cannot_be_followed_is_named(cli: Cli, tmp_path: Path, line: Any, words: str) -> None:
    code, out, err = cli("generate", "tiny-dream", "--device", "cpu", "--prompts", write(tmp_path, line))
    assert (code, out) == (2, "")
    assert words in err


def test_settings_of_lines_need_rows(cli: Cli, tmp_path: Path) -> None:
    command = ("generate", "tiny-dream", "--prompts", write(tmp_path, LINES[1]), "-o", tmp_path / "run")
    assert "some lines have other settings" in cli(*command)[2]


def test_compare_follows_lines_and_refuses_the_rest(tmp_path: Path) -> None:
    run: dict[str, Any] = {"samplers": "threshold", "device": "cpu", "references": False, "progress": False}
    lines = [{"prompt": CUPS, "max_new_tokens": 2}, {"prompt": CUPS, "stop": "5"}, {"prompt": CUPS, "answer": "5"}]
    for prompts in (write(tmp_path, *lines), lines):
        rows = sorted(pardec.compare("tiny-dream", prompts=prompts, **run).run.rows, key=lambda row: row["index"])
        assert len(rows[0]["tokens"]) == 2
        assert "5" not in rows[1]["text"]
        assert "answer 5" in rows[2]["text"]
    for field, words in (("seed", "sets seed, which is not taken"), ("tempature", "unknown field 'tempature'")):
        with pytest.raises(SpecError, match=words):
            pardec.compare("tiny-dream", prompts=[{"prompt": CUPS, field: 1}], **run)


def test_bench_and_image_refuse_settings_of_lines(cli: Cli, tmp_path: Path) -> None:
    file = write(tmp_path, {"prompt": "a red circle", "max_new_tokens": 3})
    for command in (("bench", "decode", "tiny-llama"), ("image", "tiny-llamagen", "-o", tmp_path / "a.png")):
        code, _, err = cli(*command, "--prompts", file)
        assert (code, "sets max_new_tokens" in err) == (2, True)


def test_a_table_is_read_by_its_header(tmp_path: Path) -> None:
    text = 'id,prompt,answer,max_new_tokens\nx,"Tom, who has 3 cups.\nHow many?",3,8\n\ny,Ann.,,\n'
    made = FileTask(write(tmp_path, text, name="p.csv"), scorer="number").problems()
    assert [(p.id, p.prompt, p.answer, p.settings) for p in made] == [
        ("x", "Tom, who has 3 cups.\nHow many?", "3", {"max_new_tokens": 8}),
        ("y", "Ann.", None, None),
    ]
    [item] = read_file(write(tmp_path, "prompt\tanswer\na, b\t5", name="p.tsv"))
    assert (item.prompt, item.fields) == ("a, b", {"answer": "5"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("question,answer\nhow many?,3", "has no column prompt; its header is question, answer"),
        ("prompt,note\na,b", "unknown field 'note'"),
        ("prompt,answer\na,b,c", "line 2 has 3 cells, but the header has 2"),
        ("prompt,prompt\na,b", "two columns 'prompt'"),
        ("prompt,max_new_tokens\na,many", "line 2: max_new_tokens is not JSON"),
        ("prompt,answer\n", "has no prompt"),
    ],
)
def test_a_table_that_cannot_be_read_is_said(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(SpecError, match=words):
        read_file(write(tmp_path, text, name="p.csv"))


def test_other_formats_are_not_read_line_by_line(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="prompts are not read from .yaml files"):
        read_file(write(tmp_path, "- prompt: a", name="p.yaml"))


def test_lines_take_what_serve_batch_takes() -> None:
    images = {"label", "prompt_embeds"}
    assert {*GENERATED, "prompt", "messages"} - {"answer", "answers"} == set(PER_PROMPT) - images
    assert set(COMPARED) < set(GENERATED)


def test_calls_without_own_settings_are_one(tiny: pardec.Model, tmp_path: Path) -> None:
    items = read_file(write(tmp_path, "a", "b", name="p.txt"))
    assert not isinstance(line_calls.prepare(tiny, items, {}, "p.txt"), line_calls.LineCalls)
