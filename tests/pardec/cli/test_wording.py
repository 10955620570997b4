"""Hints name options on the command line and arguments in Python, and no hint is printed twice."""

from __future__ import annotations

import re

import pytest

import pardec
from pardec.cli import run
from pardec.cli.app import command_line


@pytest.mark.parametrize(
    ("command", "first", "second"),
    [
        ("generate tiny-dream -p x -n 0", "--max-new-tokens must be a whole number", "--max-new-tokens 64 asks"),
        ("generate tiny-dream -p x --top-p 3", "--top-p must be above 0", "--top-p 0.9 keeps"),
        ("generate tiny-dream -p x --temperature=-1", "--temperature must be at least 0", "--temperature 0 takes"),
        ("generate tiny-llama -p x --stop=", "--stop has an empty text", "--stop '\\n' ends"),
        ("generate tiny-mar", "tiny-mar is an image model", '"pardec image tiny-mar'),
        ("image tiny-dream", "tiny-dream is a text model", '"pardec generate tiny-dream"'),
        ("generate tiny-dream -s fixed -s eos", "--sampler is given more than once", "-s threshold+eos"),
        ("plan tiny-dream --sampler=fixed -s eos", "--sampler is given more than once", "-s threshold+eos"),
        ("generate tiny-dream -p x --workers 2", "got --workers 2", "--executor torchrun or --executor ray"),
        ("generate tiny-dream -p x --max-tokens 5", "No such option: --max-tokens", "; --max-new-tokens 64 asks"),
        ("compare tiny-dream --task lists", "no sampler is named", "--sampler sequential --sampler threshold"),
        ("generate tiny-llama -p x --cfg 2", "cfg is for masked models", "leave --cfg out"),
        ("compare tiny-dream --task lists --points 5", "a sweep", "add --sweep, or leave --points out"),
        ("compare tiny-dream --task lists --resume", "the folder of a run", "name it with --out FOLDER"),
        ("generate tiny-dream -p x --num-return-sequences 2", "--temperature 0", "--temperature 0.7"),
    ],
)
def test_hint_of_the_command_line_names_options(command, first, second, capsys):
    assert run(command.split()) == 2
    error, hint = capsys.readouterr().err.splitlines()
    assert first in error
    assert second in hint
    assert not re.search(r"\b[a-z]+_[a-z_]+\b", error + hint)


def test_errors_of_json_files_name_options(tmp_path, capsys):
    schema = tmp_path / "schema.json"
    for text, more, said in (
        ("[1]", [], "--response-format must be a dict (a JSON object), got list"),
        (
            '{"type": "object"}',
            ["--stop", "a"],
            "--stop cannot be combined with --response-format on tiny-dream, whose template has a fixed length",
        ),
    ):
        schema.write_text(text)
        assert run(["generate", "tiny-dream", "-p", "x", "--response-format", str(schema), *more]) == 2
        assert f"error: {said}\n" in capsys.readouterr().err


def test_hint_of_an_unknown_short_option_names_no_argument_of_python(capsys):
    assert run(["plan", "tiny-llama", "-n", "5"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == 'run "pardec plan --help" for its options'


def test_hint_is_printed_once_with_debug(capsys):
    assert run(["generate", "tiny-dream", "-p", "x", "-n", "0", "--debug"]) == 2
    assert capsys.readouterr().err.count("asks for 64 tokens") == 1


def test_hint_in_python_names_arguments():
    with pytest.raises(pardec.SpecError) as caught:
        pardec.load("tiny-dream", device="cpu").generate("x", max_new_tokens=0)
    assert caught.value.__notes__ == ["max_new_tokens=64 asks for 64 tokens after the prompt"]


def test_parameters_of_specs_are_no_options(capsys):
    assert run(["generate", "tiny-dream", "-p", "x", "-s", "model:name=tiny-llama-draft,k=5"]) == 2
    assert "--name" not in capsys.readouterr().err


def test_errors_of_lines_name_fields(tmp_path, capsys):
    (tmp_path / "p.jsonl").write_text('{"prompt": "a", "max_new_tokens": 0}\n')
    assert run(["generate", "tiny-dream", "--prompts", str(tmp_path / "p.jsonl")]) == 2
    assert "line 1: max_new_tokens must be a whole number" in capsys.readouterr().err


def test_hint_of_a_letter_is_not_the_argument_of_this_name(capsys):
    """`-n` is the number of new tokens here, and in Python `n` is that of answers."""
    assert run(["plan", "tiny-llama", "-n", "4"]) == 2
    assert "in Python" not in capsys.readouterr().err


def test_examples_of_the_help_have_options_that_exist():
    commands = {name: command for name, command in command_line().commands.items() if hasattr(command, "callback")}
    for name, command in commands.items():
        known = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
        lines = [line for line in (command.help or "").split("\n\n") if f"pardec {name} " in line]
        for option in re.findall(r"(?<=\s)--?[a-z][a-z-]*", "\n".join(line.rsplit("pardec ", 1)[1] for line in lines)):
            assert option in known, (name, option)
