"""Terminal and HTML commands in the text of files and models are displayed, never executed."""

from __future__ import annotations

import io
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import pardec
from pardec.cli.common import dump, say, show
from pardec.comparison.report import page as report
from pardec.comparison.run import Run
from pardec.comparison.table import Table
from pardec.io.saving import ResultError
from pardec.models.errors import SpecError
from pardec.views import html, image_view, terminal

SCRIPT = "<script>alert(1)</script>"
ESCAPE = "\x1b]0;owned\x07\x9b2J\u202e"
NULL = f"{ESCAPE}\0|\n# x"
BREAKS = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(1)><b owned>&{{data}}`|"
BAD = ("\x1b]", "\x07", "\x9b", "\u202e")


@pytest.fixture(scope="module")
def pictures() -> pardec.Result:
    return pardec.load("tiny-mar-draft", device="cpu").generate(label=[1])


@pytest.fixture
def text(model: pardec.Model) -> pardec.Result:
    return model.generate("Tom has", max_new_tokens=4)


def in_terminal(result: pardec.Result) -> str:
    console = Console(force_terminal=True, width=100, file=io.StringIO())
    with console.capture() as held:
        console.print(terminal.finished(result))
    return held.get()


def hostile(result: pardec.Result, said: str) -> pardec.Result:
    """A result in which `said` replaces every text, and even the seeds."""
    pieces = None if result.latents is not None else [[said] * len(row) for row in result.pieces or []]
    made = replace(result, spec=said, model=said, stored_texts=pieces, settings={said: said}, environment={said: said})
    return replace(made, seeds=[said] * len(made.seeds), shown=made.shown and [said] * len(made.shown))  # type: ignore[list-item]


@pytest.mark.parametrize("kind", ["text", "pictures"])
def test_a_notebook_and_a_page_get_no_script(kind: str, request: pytest.FixtureRequest) -> None:
    made = hostile(request.getfixturevalue(kind), SCRIPT)
    shown = [made._repr_html_(), html.page(made)]
    assert all("alert(1)" in page and SCRIPT not in page for page in shown)
    if kind == "pictures":
        assert SCRIPT not in image_view.fragment(made)


@pytest.mark.parametrize("kind", ["text", "pictures"])
def test_a_terminal_gets_no_command(kind: str, request: pytest.FixtureRequest) -> None:
    made = hostile(request.getfixturevalue(kind), ESCAPE)
    for shown in (repr(made), in_terminal(made)):
        assert "\\x1b]0;owned\\x07\\x9b2J\\u202e" in shown.replace("\n", "")
        assert not any(sign in shown for sign in BAD)


@pytest.mark.parametrize("kind", ["text", "pictures"])
def test_a_notebook_and_a_page_get_no_control_characters(kind: str, request: pytest.FixtureRequest) -> None:
    made = hostile(request.getfixturevalue(kind), NULL)
    for shown in (made._repr_html_(), html.page(made)):
        assert "owned" in shown
        assert not any(sign in shown for sign in (*BAD, "\0", "\x1b"))


@pytest.fixture(scope="module")
def compared(model: pardec.Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("compared")
    file = home / "cups.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Ann has {i}.", "answer": f"{i}"}) + "\n" for i in range(2)))
    given: dict[str, Any] = {"max_new_tokens": 4, "progress": False, "out": home / "run"}
    pardec.compare(model, samplers=("threshold", "sequential"), prompts=file, scorer="number", **given)
    return home / "run"


_KEPT = ("key", "id", "format", "exact", "finish", "family", "kind")  # not what a reader would see


def swapped(value: Any, said: str, key: str = "") -> Any:
    """A value with `said` appended to every text."""
    if isinstance(value, dict):
        return {name: swapped(held, said, name) for name, held in value.items()}
    if isinstance(value, list):
        return [swapped(held, said, key) for held in value]
    return value + said if isinstance(value, str) and key not in _KEPT else value


@pytest.mark.parametrize("said", [BREAKS, NULL], ids=["markup", "control"])
def test_a_comparison_of_hostile_files_shows_them_as_text(compared: Path, tmp_path: Path, said: str) -> None:
    """Names of samplers, tasks, prompts, models, devices and errors, in every format of the table and in the report."""
    home = tmp_path / "run"
    shutil.copytree(compared, home)
    for name in ("config.json", "environment.json"):
        (home / name).write_text(json.dumps(swapped(json.loads((home / name).read_text()), said)))
    rows = [swapped(json.loads(row), said) for row in (home / "rows.jsonl").read_text().splitlines()]
    rows[0] |= {"error": said, "score": None, "lenient": None, "nfe": None}
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in (home / "traces").glob("*/result.json"):
        held = json.loads(file.read_text())
        file.write_text(json.dumps(held | {name: held[name] + said for name in ("model", "spec")}))
    run = Run.load(home)
    table = Table(run)
    console = Console(force_terminal=True, width=100, file=io.StringIO())
    with console.capture() as capture:
        console.print(table)
    page, plot, markdown = report(run), table._repr_html_(), table.to_markdown()
    for shown in (page, plot, markdown, capture.get(), repr(table), table.to_json()):
        assert not any(sign in shown for sign in (*BAD, "\0"))
        assert "owned" in shown
    assert (page.count("<script"), page.count("</script")) == (2, 2)
    for shown in (page, plot):
        assert "<img" not in shown
        assert "<b " not in shown
    head, _, *lines = markdown.partition("\n\n")[0].splitlines()
    assert len(lines) == 2  # one a sampler, of as many cells
    assert {len(re.split(r"(?<!\\)\|", line)) for line in (head, *lines)} == {len(table.legend()) + 2}
    assert json.loads(table.to_json())["rows"] == table.rows


def test_a_result_whose_seeds_are_script_is_no_result(text: pardec.Result, tmp_path: Path) -> None:
    file = text.save(tmp_path / "run.json")
    held = json.loads(file.read_text())
    file.write_text(json.dumps(held | {"seeds": [SCRIPT]}))
    with pytest.raises(ResultError, match="seeds has the wrong type for a result"):
        pardec.Result.load(file)


def test_the_watched_canvas_gets_no_command(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.views.terminal.TokenTexts", lambda *_, **__: lambda ids: [ESCAPE] * len(ids))
    for tty in (False, True):
        stream = io.StringIO()
        monkeypatch.setattr(stream, "isatty", lambda tty=tty: tty)
        with terminal.Watch(model.tokenizer, stream) as watch:
            for event in model.stream("Tom has", max_new_tokens=4):
                watch(event)
        assert "owned" in stream.getvalue()
        assert not any(sign in stream.getvalue() for sign in BAD)


@pytest.mark.parametrize("tty", [False, True])
def test_a_terminal_is_spared_and_a_pipe_gets_the_text(
    tty: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: tty)
    show(f"é {ESCAPE}")
    out = capsys.readouterr().out
    assert out == ("é \\x1b]0;owned\\x07\\x9b2J\\u202e\n" if tty else f"é {ESCAPE}\n")
    say(ESCAPE)
    dump({"text": ESCAPE, "name": "é\ud800"})
    out, err = capsys.readouterr()
    assert not any(sign in out + err for sign in BAD)
    assert json.loads(out) == {"text": ESCAPE, "name": "é\ud800"}
    assert "é" in out


def test_errors_and_models_are_one_line_without_commands(folder: Path, tmp_path: Path) -> None:
    error = SpecError(f"no {ESCAPE}\nsecond line " + "x" * 5000)
    assert not any(sign in str(error) for sign in (*BAD, "\n"))
    assert len(str(error)) < 1100
    named = tmp_path / "a\x1b[31mred"
    named.symlink_to(folder)
    copied = pardec.load(folder, device="cpu")
    assert "\x1b" not in repr(pardec.Model(replace(copied.language_model, name="a\x1b[31mred")))


def test_a_command_names_a_hostile_path_in_plain_text(cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    code, _, err = cli("view", tmp_path / "gone\x1b[31m.json")
    assert code == 1
    assert "gone\\x1b[31m.json" in err
    assert "\x1b" not in err


def test_half_a_character_in_a_prompt_file_is_refused_at_its_line(
    cli: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path
) -> None:
    file, rows = tmp_path / "p.jsonl", tmp_path / "rows.jsonl"
    given: list[Any] = [{"prompt": "Tom has"}, {"prompt": "Ann \ud800 has"}]
    file.write_text("\n".join(map(json.dumps, given)))
    code, _, err = cli("generate", folder, "--prompts", file, "-o", rows, "-n", 2, "--device", "cpu")
    assert code == 2
    assert "line 2 is not JSON: it holds a lone surrogate, \\ud800" in err
    assert not rows.exists()
    for raw, begin in (("--raw", "prompt 0 cannot be read: "), ("--chat", "does not take prompt 0: ")):
        code, _, err = cli("generate", folder, "-p", "Ann \ud800 has", raw, "-n", 2, "--device", "cpu")
        assert (code, f"{begin}it holds a lone surrogate" in err) == (2, True), err
