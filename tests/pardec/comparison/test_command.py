"""`pardec compare` as a command: stdout, stderr, exit codes, and modules that it must not import."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.comparison.report.commands import python, shell
from pardec.comparison.table import FIELDS

Cli = Callable[..., tuple[int, str, str]]
SHORT = ("-n", 4, "--device", "cpu", "--limit", 3)


def test_json_is_one_document_with_the_documented_fields(cli: Cli, folder: Path, prompts: Path) -> None:
    options = ("--prompts", prompts, "--scorer", "number", "-s", "threshold", "-s", "sequential")
    code, out, err = cli("compare", folder, *options, *SHORT, "--json")
    document = json.loads(out)
    assert (code, err) == (0, "")
    assert [tuple(row) for row in document["rows"]] == [FIELDS, FIELDS]
    assert [row["sampler"] for row in document["rows"]] == ["threshold", "sequential"]
    assert document["config"]["generate"] == {"max_new_tokens": 4}
    assert document["config"]["seeds"] == [0]


def test_a_run_is_written_shown_and_resumed(cli: Cli, folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("compare", folder, "--task", "lists", "-s", "threshold", *SHORT, "--out", out)
    code, shown, err = cli(*command)
    assert code == 0
    assert shown == (out / "report.md").read_text()
    assert "report.html" in err
    assert {entry.name for entry in out.iterdir()} == {
        *("config.json", "environment.json", "rows.jsonl", "traces"),
        *(f"report.{kind}" for kind in ("csv", "html", "json", "md")),
    }
    assert cli(*command)[0] == 2
    code, again, err = cli(*command, "--resume", "--quiet")
    assert (code, again, err) == (0, shown, "")


def test_lines_of_progress_go_to_stderr_and_quiet_has_none(cli: Cli, folder: Path) -> None:
    command = ("compare", folder, "--task", "lists", "-s", "threshold", *SHORT, "--no-references")
    assert "3 of 3 rows in 0:" in cli(*command)[2]
    assert cli(*command, "--quiet")[2] == ""


def test_progress_says_whose_the_rows_are(cli: Cli, folder: Path) -> None:
    """Three problems with one sampler are three rows; its references decode six more."""
    err = cli("compare", folder, "--task", "lists", "-s", "threshold", *SHORT)[2]
    assert "9 of 9 rows (6 of references) in 0:" in err


def test_a_run_in_which_everything_failed_exits_1(cli: Cli, folder: Path) -> None:
    code, out, _ = cli("compare", folder, "--task", "lists", "-s", "threshold@block", *SHORT)
    assert code == 1
    assert "3 rows failed" in out


def test_a_run_in_which_one_sampler_failed_exits_1(cli: Cli, folder: Path, tmp_path: Path) -> None:
    command = ("compare", folder, "--task", "lists", "-s", "threshold", "-s", "threshold@block", *SHORT)
    code, out, err = cli(*command, "--quiet", "--out", tmp_path / "run")
    assert (code, err) == (1, "3 rows failed: --resume --retry-failed decodes them again\n")
    assert "threshold@block: 3 rows failed" in out
    assert "with --out RUN" in cli(*command)[2]


def test_an_interrupt_says_how_to_go_on(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pardec.Model, "serve", interrupted)
    command = ("compare", folder, "--task", "lists", "-s", "threshold", *SHORT)
    code, out, err = cli(*command, "--out", tmp_path / "run")
    assert (code, out) == (130, "")
    assert "0 rows are finished" in err
    assert "with --resume" in err
    assert "--out RUN" in cli(*command)[2]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-s", "thresold"), "did you mean 'threshold'"),
        ((), "no sampler is named"),
        (("-s", "threshold", "--seeds", "a"), "--seeds takes whole numbers"),
        (("-s", "threshold", "--resume"), "needs the folder of a run"),
    ],
)
def test_misuse_exits_2_with_a_hint(cli: Cli, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    code, out, err = cli("compare", folder, "--task", "lists", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 2


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "tiny-dream", "--task", "lists", "-s", "threshold", *SHORT),
        ("tune", "tiny-dream", "--task", "lists", "--device", "cpu"),
        ("image", "tiny-llamagen", "-p", "a red circle", "-o", "never.png", "--device", "cpu"),
    ],
)
def test_recorded_forwards_are_asked_for_and_need_a_gpu(cli: Cli, command: tuple[object, ...]) -> None:
    code, out, err = cli(*command, "--cuda-graphs")
    assert (code != 0, out) == (True, "")
    assert "--cuda-graphs needs a CUDA device" in err


def test_a_run_with_recorded_forwards_says_so_in_its_commands() -> None:
    config = {"model": "tiny-dream", "generate": {}, "tasks": [], "samplers": [], "where": {"cuda_graphs": True}}
    assert "  --cuda-graphs \\" in shell(config)
    assert "    cuda_graphs=True," in python(config)
