"""The command line passes a plain prompt as a user message to a model with a chat template, unless --raw is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pardec

Cli = Callable[..., tuple[int, str, str]]
TEXT = "Tom has 3 cups."
SHORT = ("-n", "6", "--device", "cpu")
SAID = "the prompt is in the chat template of instruct, as a user message; --raw passes plain text"


@pytest.fixture(scope="module")
def turn(instruct: Path) -> str:
    model = pardec.load(instruct, device="cpu")
    [text] = model.generate([{"role": "user", "content": TEXT}], max_new_tokens=6).text or []
    return text


@pytest.fixture(scope="module")
def raw(instruct: Path, turn: str) -> str:
    [text] = pardec.load(instruct, device="cpu").generate(TEXT, max_new_tokens=6).text or []
    assert text != turn
    return text


def test_a_prompt_is_a_users_turn_and_stderr_says_so(cli: Cli, instruct: Path, turn: str) -> None:
    code, out, err = cli("generate", instruct, "-p", TEXT, *SHORT)
    assert (code, out.strip("\n")) == (0, turn)
    assert SAID in err
    assert cli("generate", instruct, "-p", TEXT, *SHORT, "--quiet")[1:] == (out, "")


def test_what_is_asked_for_is_not_said(cli: Cli, instruct: Path, turn: str, raw: str) -> None:
    for option, expected in (("--chat", turn), ("--raw", raw)):
        code, out, err = cli("generate", instruct, "-p", TEXT, *SHORT, option)
        assert (code, out.strip("\n")) == (0, expected)
        assert "template" not in err


def test_messages_are_what_they_were(cli: Cli, instruct: Path, turn: str, tmp_path: Path) -> None:
    message = {"messages": [{"role": "user", "content": TEXT}]}
    (tmp_path / "p.jsonl").write_text(json.dumps(message) + "\n")
    _, out, err = cli("generate", instruct, "--prompts", tmp_path / "p.jsonl", *SHORT)
    assert out.strip("\n") == turn
    assert "template" not in err
    (tmp_path / "p.jsonl").write_text(json.dumps(message) + "\n" + json.dumps({"prompt": TEXT}) + "\n")
    _, out, err = cli("generate", instruct, "--prompts", tmp_path / "p.jsonl", *SHORT)
    assert out.split("\n")[0] == out.split("\n")[1] == turn
    assert "1 of 2 prompts is in the chat template" in err


def test_embedded_models_keep_the_text(cli: Cli) -> None:
    code, _, err = cli("generate", "tiny-llama", "-p", TEXT, *SHORT)
    assert code == 0
    assert "template" not in err
