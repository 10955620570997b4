"""The command line: stdout and stderr, exit codes, prompt files, and resuming an interrupted run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

import pardec
from pardec.cli import main
from pardec.cli.listing import table
from pardec.models.files.sources import digest
from pardec.samplers import registry
from pardec.samplers.traits import Trait

Cli = Callable[..., tuple[int, str, str]]
TEXT = "Tom has 3 cups."
SHORT = ("-n", "6", "--device", "cpu")


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    file = tmp_path / "problems.jsonl"
    lines = [{"prompt": "Tom has 3 cups.", "id": "a"}, {"messages": [{"role": "user", "content": "Ann"}]}, "Sara"]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def rows_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_stdout_has_the_text_and_nothing_else(cli: Cli, folder: Path, model: pardec.Model) -> None:
    code, out, err = cli("generate", folder, "-p", TEXT, "-p", "Ann", *SHORT)
    expected = model.generate([TEXT, "Ann"], max_new_tokens=6).text
    assert code == 0
    assert expected is not None
    assert out.splitlines() == expected
    assert "random-dream: dream by model_type 'Dream'" in err
    assert "tokens per forward" in err


def test_quiet_says_nothing_and_stream_draws_on_stderr(cli: Cli, folder: Path) -> None:
    _, loud, shown = cli("generate", folder, "-p", TEXT, *SHORT, "--stream")
    code, out, err = cli("generate", folder, "-p", TEXT, *SHORT, "--stream", "--quiet")
    assert (code, err) == (0, "")
    assert out == loud
    assert "step   1" in shown


@pytest.mark.parametrize("sampler", ["leftmost", "random", "threshold:tau=0.02+eos"])
def test_a_pipe_gets_the_text_of_one_prompt_as_it_settles(
    cli: Cli, folder: Path, model: pardec.Model, monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    written: list[str] = []
    real = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: written.append(text) or real(text))
    code, out, _ = cli("generate", folder, "-p", TEXT, *SHORT, "-s", sampler, "--stream", "--quiet")
    text = model.generate(TEXT, max_new_tokens=6, sampler=sampler).text
    assert code == 0
    assert out == text[0] + "\n"
    pieces = [piece for piece in written if piece.strip("\n")]
    assert "".join(pieces) == text[0]
    if sampler == "leftmost":
        assert len(pieces) > 3
    written.clear()
    for more in (("-p", "Ann"), ("--json",)):  # of several prompts, and for a program, the whole at once
        _, whole, _ = cli("generate", folder, "-p", TEXT, *SHORT, "-s", sampler, "--stream", "--quiet", *more)
        assert text[0] in (json.loads(whole)["rows"][0]["text"] if "--json" in more else whole.splitlines())
        assert whole.count("\n") == 2 or "--json" in more


def test_a_terminal_gets_the_canvas_and_the_text_once(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    written: list[str] = []
    real = sys.stdout.write
    monkeypatch.setattr(sys.stdout, "write", lambda text: written.append(text) or real(text))
    _, loud, _ = cli("generate", folder, "-p", TEXT, *SHORT, "-s", "leftmost")
    once = len(written)
    code, out, err = cli("generate", folder, "-p", TEXT, *SHORT, "-s", "leftmost", "--stream")
    assert (code, out) == (0, loud)
    assert len(written) == 2 * once
    assert "\x1b[" in err


def test_json_is_one_document_with_the_documented_fields(cli: Cli, folder: Path, problems: Path) -> None:
    code, out, _ = cli("generate", folder, "--prompts", problems, *SHORT, "--json", "--batch-size", 2, "--seed", 4)
    document = json.loads(out)
    assert code == 0
    page = (Path(__file__).parents[3] / "docs" / "reference" / "output.md").read_text()
    for name in (*document, *document["rows"][0], *document["timing"]):
        assert f"`{name}`" in page, f"{name} is not in the table of output fields"
    assert set(document) == {"model", "spec", "exact", "settings", "environment", "timing", "rows"}
    assert [row["id"] for row in document["rows"]] == ["a", 1, 2]
    assert document["settings"]["max_new_tokens"] == 6


def test_batch_size_changes_no_token(cli: Cli, folder: Path, problems: Path) -> None:
    render = [
        cli("generate", folder, "--prompts", problems, *SHORT, "--temperature", 1, "--batch-size", size)[1]
        for size in (1, 2, 3)
    ]
    assert render[0] == render[1] == render[2]


def test_rows_are_kept_as_they_finish_and_printed_in_the_order_of_the_prompts(
    cli: Cli, folder: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("generate", folder, "--prompts", problems, *SHORT, "--batch-size", 2)
    _, whole, _ = cli("generate", folder, "--prompts", problems, *SHORT, "--batch-size", 3)
    real = pardec.Model.serve

    def backwards(self: pardec.Model, calls: Any, **more: Any) -> Any:
        return nullcontext(reversed(list(real(self, calls, **more))))

    monkeypatch.setattr(pardec.Model, "serve", backwards)
    code, out, _ = cli(*command)
    assert (code, out) == (0, whole)
    output = tmp_path / "rows.jsonl"
    assert cli(*command, "-o", output)[0] == 0
    assert [row["id"] for row in rows_of(output)] == [2, 1, "a"]


def test_prompts_come_from_a_pipe(cli: Cli, folder: Path, model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = model.generate([TEXT, "Ann"], max_new_tokens=6).text
    for sent in ("Tom has 3 cups.\nAnn\n", '{"prompt": "Tom has 3 cups."}\n{"prompt": "Ann"}\n'):
        end, start = os.pipe()
        os.write(start, sent.encode())
        os.close(start)
        with os.fdopen(end) as pipe:
            monkeypatch.setattr(sys, "stdin", pipe)
            code, out, err = cli("generate", folder, *SHORT, "--quiet")
        assert (code, out.splitlines(), err) == (0, expected, "")


def test_a_text_file_has_a_prompt_a_line(cli: Cli, folder: Path, tmp_path: Path, model: pardec.Model) -> None:
    (tmp_path / "p.txt").write_text("Tom has 3 cups.\n\nAnn\n")
    _, out, _ = cli("generate", folder, "--prompts", tmp_path / "p.txt", *SHORT, "--chat")
    assert out.splitlines() == model.generate([TEXT, "Ann"], max_new_tokens=6).text


def test_rows_are_appended_and_a_second_run_makes_only_what_is_missing(
    cli: Cli, folder: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "rows.jsonl"
    command = ("generate", folder, "--prompts", problems, *SHORT, "--temperature", 1, "-o", output)
    code, out, _ = cli(*command)
    whole = output.read_text()
    assert (code, out) == (0, "")
    assert [row["id"] for row in rows_of(output)] == ["a", 1, 2]
    lines = whole.splitlines(keepends=True)

    output.write_text(lines[0] + lines[2] + lines[1][:20])  # row 1 was cut short by a crash
    code, _, err = cli(*command)
    assert code == 0
    assert "dropping the last line" in err
    assert "has 2 of 3 rows already" in err
    assert sorted(output.read_text().splitlines()) == sorted(whole.splitlines())

    _, _, err = cli(*command[:-1], tmp_path / "other.jsonl", "--seed", 5)
    assert "rows of other" not in err
    _, _, err = cli(*command[:-1], tmp_path / "other.jsonl", "--seed", 6)
    assert "other.jsonl keeps 3 rows of other prompts or seeds" in err
    assert len(rows_of(tmp_path / "other.jsonl")) == 6

    monkeypatch.setattr(pardec.Model, "run", lambda *_, **__: pytest.fail("nothing was left to do"))
    code, out, err = cli(*command, "--json")
    assert (code, len(json.loads(out)["rows"])) == (0, 3)
    assert "every row was finished already" in err


def test_other_settings_are_refused_with_the_difference_unless_overwritten(
    cli: Cli, folder: Path, problems: Path, tmp_path: Path
) -> None:
    output = tmp_path / "rows.jsonl"
    command = ("generate", folder, "--prompts", problems, "--device", "cpu", "-o", output)
    cli(*command, "-n", 6)
    before = output.read_text()
    code, _, err = cli(*command, "-n", 4, "-s", "sequential")
    assert code == 2
    assert "--max-new-tokens 6 there, 4 now" in err
    assert "sequential" in err
    assert "--overwrite" in err
    assert output.read_text() == before
    code, _, _ = cli(*command, "-n", 4, "--overwrite")
    assert code == 0
    assert [len(row["tokens"]) <= 4 for row in rows_of(output)] == [True] * 3


def test_rows_of_another_checkpoint_of_the_same_name_are_refused(cli: Cli, folder: Path, tmp_path: Path) -> None:
    moved, other = (Path(shutil.copytree(folder, tmp_path / part / folder.name)) for part in "ab")
    weights = load_file(other / "model.safetensors")
    save_file({**weights, "model.norm.weight": 2 * weights["model.norm.weight"]}, other / "model.safetensors")
    output = tmp_path / "rows.jsonl"
    more = ("-p", TEXT, *SHORT, "-o", output)
    assert cli("generate", folder, *more)[0] == 0
    for command, said in (((other, *more), "checkpoint "), ((folder, *more, "--shift", 0), "shift None")):
        code, _, err = cli("generate", *command)
        assert code == 2
        assert f"has rows of other settings: {said}" in err
    (row,) = rows_of(output)
    assert row["run"].pop("checkpoint") == digest(folder)
    assert "has 1 of 1 rows already" in cli("generate", moved, *more)[2]
    output.write_text(json.dumps(row) + "\n")  # a file of an earlier version
    assert "has 1 of 1 rows already" in cli("generate", folder, *more)[2]


def test_a_foreign_file_is_left_alone(cli: Cli, folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "data.jsonl"
    output.write_text('{"mine": 1}\n{"mine": 2}\n')
    code, _, err = cli("generate", folder, "-p", TEXT, *SHORT, "-o", output)
    assert code == 2
    assert "line 1 is not a row of a run" in err
    assert output.read_text() == '{"mine": 1}\n{"mine": 2}\n'


def test_an_interrupt_before_a_command_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pardec.cli.app", Interrupting("pardec.cli.app"))
    with pytest.raises(SystemExit) as ended:
        main(["list", "tasks"])
    assert (ended.value.code, capsys.readouterr().err) == (130, "error: interrupted\n")


def test_an_interrupt_of_a_command_that_saves_nothing_is_one_line(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pardec.api.load", interrupted)
    assert cli("check", folder, "-s", "sequential", "-p", TEXT) == (130, "", "error: interrupted\n")


def test_a_reader_that_has_enough_ends_a_command_without_an_error() -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-m", "pardec", "list", "tasks"], stdout=write, stderr=subprocess.PIPE, text=True
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, "")


class Interrupting(ModuleType):
    """A module whose import is interrupted."""

    def __getattr__(self, name: str) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_keeps_finished_rows_and_says_how_to_go_on(
    cli: Cli, folder: Path, problems: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = tmp_path / "rows.jsonl"
    command = ("generate", folder, "--prompts", problems, *SHORT, "-o", output, "--batch-size", 1)
    real = pardec.Model.run

    def interrupted(self: pardec.Model, call: Any, **_: Any) -> Iterator[pardec.Event]:
        if output.exists() and len(rows_of(output)) == 2:
            raise KeyboardInterrupt
        yield from real(self, call)

    monkeypatch.setattr(pardec.Model, "run", interrupted)
    code, _, err = cli(*command)
    assert code == 130
    assert "interrupted: 2 of 3 rows are finished" in err
    assert "the same command resumes" in err
    monkeypatch.undo()
    assert cli(*command)[0] == 0
    assert len(rows_of(output)) == 3


def test_a_saved_run_is_viewed(cli: Cli, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    assert cli("generate", folder, "-p", TEXT, *SHORT, "-o", run)[0] == 0
    targets = {kind: tmp_path / f"run.{kind}" for kind in ("html", "gif", "png")}
    code, out, err = cli("view", run, *(x for kind, file in targets.items() for x in (f"--{kind}", file)))
    assert (code, out) == (0, "")
    assert all(str(file) in err and file.stat().st_size > 500 for file in targets.values())
    code, out, _ = cli("view", run)
    assert code == 0
    assert "Tom has 3 cups." in out
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"key": "a"}\n{"key": "b"}\n')
    code, _, err = cli("view", rows)
    assert (code, err.splitlines()[0]) == (1, f"error: {rows} holds rows, not a saved result")


def test_more_prompts_than_a_batch_go_to_a_rows_file(cli: Cli, folder: Path, problems: Path, tmp_path: Path) -> None:
    code, _, err = cli("generate", folder, "--prompts", problems, "-o", tmp_path / "run.json", "--batch-size", 2)
    assert code == 2
    assert "3 prompts do not fit in" in err
    assert not (tmp_path / "run.json").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("generate", "MODEL", "-p", "a", "-s", "threshhold"), 2, "did you mean 'threshold'"),
        (("generate", "MODEL", "-p", "a", "-s", "threshold+fixed"), 2, "2 select methods"),
        (("generate", "MODEL", "-p", "a", "-n", "0"), 2, "--max-new-tokens"),
        (("generate", "MODEL", "-p", ""), 2, "prompt 0 is empty"),
        (("generate", "MODEL", "-p", "a", "--max-tokens", "3"), 2, "No such option"),
        (("generate", "MODEL", "-p", "a", "--batch-size", "0"), 2, "'--batch-size': must be at least 1, got '0'"),
        (("generate", "MODEL", "-p", "a", "--batch-size=x"), 2, "must be a whole number, got 'x'"),
        (("generate", "MODEL", "-p", "a", "--temperature", "hot"), 2, "must be a number, got 'hot'"),
        (("generate", "MODEL", "-p", "a", "--temperature", "inf"), 2, "--temperature must be a finite number"),
        (("generate", "MODEL", "-p", "a", "--prompts", "x.txt"), 2, "-p and --prompts"),
        (("generate", "MODEL", "--prompts", "nowhere.txt"), 2, "cannot read prompts from nowhere.txt"),
        (("generate", "tiny-dreem", "-p", "a", "--offline"), 2, "tiny-dreem"),
        (("generate",), 2, "MODEL"),
        (("decode",), 2, "No such command"),
        (("compare", "MODEL", "--latex"), 2, 'run "pardec compare --help"'),
        (("list", "sampler"), 2, "samplers"),
        (("list", "samplers", "--stage", "selekt"), 2, "did you mean 'select'"),
        (("list", "models", "--stage", "select"), 2, "--stage, --family and --markdown are for samplers"),
        (("show", "treshold"), 2, "did you mean 'threshold'"),
        (("view", "nowhere.json"), 1, "cannot read a result from nowhere.json"),
    ],
)
def test_misuse_is_two_lines_and_no_traceback(
    cli: Cli, folder: Path, arguments: tuple[str, ...], code: int, said: str
) -> None:
    found, out, err = cli(*(str(folder) if word == "MODEL" else word for word in arguments))
    assert (found, out) == (code, "")
    assert said in err
    lines = [line for line in err.splitlines() if not line.startswith("random-dream: ")]
    assert len(lines) == 2
    assert lines[0].startswith("error: ")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "is a list, not an object"),
        ('{"text": "a"}', "neither or both"),
        ('{"prompt": 3}', "the prompt is int"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(cli: Cli, folder: Path, tmp_path: Path, line: str, said: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "a"}\n' + line)
    code, _, err = cli("generate", folder, "--prompts", file)
    assert code == 2
    assert said in err


def test_debug_shows_the_traceback(cli: Cli, folder: Path) -> None:
    _, _, err = cli("generate", folder, "-p", "a", "-s", "threshhold", "--debug")
    assert "Traceback" in err
    assert err.splitlines()[-2].startswith("error: ")


def test_a_defect_is_called_one(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pardec.Model, "prepare", lambda *_, **__: {}["x"])
    code, _, err = cli("generate", folder, "-p", "a")
    assert code == 1
    assert "this is a bug" in err


def test_lists_in_text_and_json(cli: Cli) -> None:
    for kind, name in (
        ("samplers", "threshold"),
        ("models", "tiny-llama"),
        ("tasks", "arithmetic"),
        ("presets", "llada"),
    ):
        code, out, _ = cli("list", kind)
        assert code == 0
        assert any(line.startswith(name + " ") for line in out.splitlines())
        found = json.loads(cli("list", kind, "--json")[1])
        assert name in [entry["name"] for entry in found]
    stages = {entry["stage"] for entry in json.loads(cli("list", "samplers", "--stage", "cache", "--json")[1])}
    assert stages == {"cache"}


CAPTURED = dict.fromkeys(
    [("masked", kind) for kind in ("propose", "select", "widen", "logits")], (Trait.NEEDS_NO_HOST, "step")
) | {
    ("ar", "accept"): (Trait.NEEDS_NO_HOST, "round"),
    ("ar", "draft"): (Trait.OBSERVES_TOKENS, "round"),
    ("ar", "length"): (Trait.OBSERVES_TOKENS, "round"),
}


def test_show_says_whether_a_stage_can_be_in_a_captured_step(cli: Cli) -> None:
    """One method of each stage and answer."""
    cards = {}
    for card in registry.cards():
        if (kind := (card.family, card.stage)) in CAPTURED and all("default" in each for each in card.parameters):
            trait, what = CAPTURED[kind]
            said = f"part of a captured {what}" if trait in card.make().provides else "needs the host"
            cards.setdefault((*kind, said), card.name)
    assert len({said for *_, said in cards}) > 2
    for (*_, said), name in cards.items():
        assert f"CUDA graphs: {said}" in cli("show", name)[1], name
    assert "CUDA graphs" not in cli("show", "dual")[1]


def test_show_tells_what_a_model_is_taken_for(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(pardec.load("tiny-dream", device="cpu").path, folder)
    out = cli("show", str(folder))[1]
    assert "family: dream (Dream, Dream-Coder, DiffuCoder)\nloads: natively\nknown by: model_type 'Dream'" in out
    assert "mask: 4 (from config.json)" in out
    assert "shift: 1 (from the family dream)" in out
    assert json.loads(cli("show", str(folder), "--json")[1])["attention"] == "bidirectional (from the family dream)"
    assert "\nend tokens: 3 (generation_config.json)\n" in out
    (folder / "config.json").write_text(json.dumps({"model_type": "starcoder2"}))
    refused = cli("show", str(folder))
    assert refused[0] == 1
    assert "mask_token_id" in refused[2]  # of generation_config.json: a masked model, run as an autoregressive one
    (folder / "generation_config.json").unlink()
    assert "loads: through transformers: no native family for model_type starcoder2" in cli("show", str(folder))[1]
    (folder / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    assert cli("show", str(folder))[::2] == (1, cli("generate", str(folder), "-p", "a")[2])
    assert "there is no folder" in cli("show", str(tmp_path / "none"))[2]
    embedded = cli("show", "tiny-dream")[1]
    assert embedded.startswith("name: tiny-dream\nloads: natively")
    assert re.search(r"^  threshold:tau=0.9 +chains +\d+\.\d% of \d+ +[\d.]+ forwards$", embedded, re.MULTILINE)


def test_what_a_checkpoint_says_is_overridden(cli: Cli) -> None:
    code, _, err = cli("generate", "tiny-dream", "-p", "a", "--attention", "causl")
    assert (code, "did you mean 'causal'" in err) == (2, True)
    assert "tiny-dream" in cli("generate", "tiny-dream", "-p", "a", "-n", "2", "--shift", "0", "--json")[1]
    assert "--block 3 was given" in cli("generate", "tiny-llama", "-p", "a", "--block", "3")[2]


def test_show_tells_the_rule_the_parameters_and_the_source(cli: Cli) -> None:
    code, out, _ = cli("show", "threshold")
    assert code == 0
    assert "tau" in out
    assert "default 0.9" in out
    assert "arXiv:2505.22618" in out
    assert "threshold.py:" in out
    assert json.loads(cli("show", "threshold", "--json")[1])["stage"] == "select"
    for name in ("tiny-llama", "arithmetic", "fast-dllm", "preset:fast-dllm"):
        assert name.removeprefix("preset:") in cli("show", name)[1]
    assert "preset:eagle3  eagle:name=tiny-llama-eagle,k=8+beam" in cli("show", "eagle")[1]
    assert "presets" not in cli("show", "lookup")[1]
    assert cli("show", "preset:prophet")[1].startswith("name: prophet")  # and not the sampler of that name
    assert "unknown preset 'preset:edit'" in cli("show", "preset:edit")[2]
    said = cli("list", "families")[2]
    assert "'families' is not one of" in said
    assert "Value error" not in said


def test_env_names_versions(cli: Cli) -> None:
    found = json.loads(cli("env", "--json")[1])
    assert found["pardec"] == pardec.__version__
    assert "torch" in cli("env")[1]


def test_help_and_version(cli: Cli) -> None:
    assert cli("--version") == (0, f"pardec {pardec.__version__}\n", "")
    assert cli()[1] == cli("--help")[1]
    for command in ("generate", "list", "show", "view", "env"):
        code, out, _ = cli(command, "--help")
        assert code == 0
        assert "--debug" in out


def test_a_table_cell_escapes_its_bars() -> None:
    card = {"name": "a", "stage": "b", "paper": "", "exact": "no", "verdict": "level", "checked": [], "parameters": []}
    assert table([card | {"summary": "x | y"}]).splitlines()[-1].endswith("| x \\| y |")


def test_rows_are_written_in_order_where_asked(cli: Cli, tmp_path: Path) -> None:
    """The first prompt gets the most tokens, and is finished last."""
    file, output = tmp_path / "p.jsonl", tmp_path / "rows.jsonl"
    lines = [{"prompt": f"Tom has {at} cups.", "max_new_tokens": 60 if at == 0 else 2} for at in range(6)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = ("generate", "tiny-llama", "--prompts", file, "--batch-size", 3, "--device", "cpu", "-o", output)

    def ids() -> list[str]:
        return [json.loads(line)["prompt"] for line in output.read_text().splitlines() if "prompt" in json.loads(line)]

    assert cli(*command)[0] == 0
    assert ids() != [line["prompt"] for line in lines]
    finished = sorted(output.read_text().splitlines())
    assert cli(*command, "--in-order", "--overwrite")[0] == 0
    assert ids() == [line["prompt"] for line in lines]
    assert sorted(output.read_text().splitlines()) == finished
    assert "every row" in cli(*command, "--in-order")[2]
    assert cli(*command[:-2], "--in-order")[0] == 2


def test_the_help_of_serve_has_the_default_length_of_a_server(cli: Cli) -> None:
    _, out, _ = cli("serve", "--help")
    words = " ".join(out.replace("│", " ").split())
    assert "by default 1024; of masked models" in words
    assert "Tokens to generate, by default 64." not in words
