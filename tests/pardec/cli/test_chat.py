"""`pardec chat`: turns from a pipe and from a terminal, the conversation it keeps, and models without a chat."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.api import Model
from pardec.samplers.events import Event, RowFinished, Step
from pardec.samplers.rng import row_seed

Cli = Callable[..., tuple[int, str, str]]

ONE = "Tom has 18 cups. He loses 4. How many cups does Tom have now?"
TWO = "Ann has 8 cups. She loses 3. How many cups does Ann have now?"
TEMPLATE = "{% for m in messages %}{{ m['content'] }} {% endfor %}"  # unlike the embedded one, of all turns


class Typed(io.StringIO):
    """A terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def remembering(folder: Path, tmp_path: Path) -> Path:
    """The random model with a chat template that includes every turn."""
    made = shutil.copytree(folder, tmp_path / "remembering")
    settings = json.loads((made / "tokenizer_config.json").read_text())
    (made / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": TEMPLATE}))
    return made


def piped(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))


def test_each_line_of_a_pipe_is_a_turn(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, ONE, "", "/reset", "/what", TWO, "/exit", "never")
    code, out, err = cli("chat", "tiny-dream", "--quiet")
    assert (code, out) == (0, "18 - 4 = 14; answer 14\n8 - 3 = 5; answer 5\n")
    assert err.startswith("unknown command /what: /reset")
    piped(monkeypatch, ONE)
    code, out, err = cli("chat", "tiny-llama", "-n", 4, "--stop", "- ")
    assert (code, out) == (0, "18 \n")
    assert "tokens in" in err
    piped(monkeypatch, "Who are you?")
    assert "the answer is empty: tiny-dream is trained on" in cli("chat", "tiny-dream")[2]


def test_what_was_said_is_remembered_until_reset(cli: Cli, remembering: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ("chat", remembering, "-n", 6, "--system", "Be brief.", "--temperature", 1, "--seed", 3, "--quiet")
    model = pardec.load(remembering, device="cpu", dtype="float32")
    messages = [{"role": "system", "content": "Be brief."}]
    expected = []
    for turn, text in enumerate((ONE, TWO)):
        messages.append({"role": "user", "content": text})
        result = model.generate(messages, max_new_tokens=6, temperature=1.0, seed=[row_seed(3, turn)])
        expected.append((result.text or [""])[0])
        messages.append({"role": "assistant", "content": expected[-1]})
    piped(monkeypatch, ONE, TWO)
    assert cli(*asked)[1] == "".join(f"{text}\n" for text in expected)
    piped(monkeypatch, ONE, "/reset", ONE)
    assert cli(*asked)[1] == f"{expected[0]}\n" * 2


def test_an_answer_does_not_command_the_terminal(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Model.run

    def hostile(self: Model, call: Any, **more: Any) -> Iterator[Event]:
        for event in run(self, call, **more):
            yield replace(event, text="\x1b[2J\u202e") if isinstance(event, RowFinished) else event

    monkeypatch.setattr(Model, "run", hostile)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    piped(monkeypatch, ONE)
    out = cli("chat", "tiny-dream", "--quiet")[1]
    assert "\\x1b[2J\\u202e" in out
    assert "\x1b" not in out


def test_ctrl_c_stops_an_answer_and_the_talk_goes_on(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    run, calls = Model.run, 0

    def interrupted(self: Model, call: Any, **more: Any) -> Iterator[Event]:
        nonlocal calls
        calls += 1
        for number, event in enumerate(run(self, call, **more)):
            yield event
            if calls == 1 and isinstance(event, Step) and number > 3:
                raise KeyboardInterrupt

    monkeypatch.setattr(Model, "run", interrupted)
    monkeypatch.setattr(sys, "stdin", Typed(f"{ONE}\n{TWO}\n"))
    code, out, err = cli("chat", "tiny-llama")
    first, second, last = out.split("\n", 2)
    assert code == 0
    assert "18 - 4 = 14; answer 14".startswith(first)
    assert len(first) < 10
    assert (second, last.strip()) == ("8 - 3 = 5; answer 5", "")
    assert "stopped" in err


def test_a_turn_too_long_is_forgotten_where_somebody_types(
    cli: Cli, remembering: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = f"{ONE * 9}\nTom\n"
    monkeypatch.setattr(sys, "stdin", Typed(turns))
    code, out, err = cli("chat", remembering, "-n", 6)
    assert code == 0
    assert "positions and random" in err or "positions and remembering" in err
    assert "/reset starts the conversation over" in err
    assert len(out.strip("\n").splitlines()) == 1
    monkeypatch.setattr(sys, "stdin", io.StringIO(turns))
    assert cli("chat", remembering, "-n", 6)[0] == 2


def test_what_has_no_chat_template_is_refused(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = shutil.copytree(folder, tmp_path / "bare")
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (bare / "tokenizer_config.json").write_text(json.dumps(settings))
    piped(monkeypatch, ONE)
    code, _, err = cli("chat", bare)
    assert (code, "bare has no chat template, so it cannot chat" in err) == (2, True)
    assert f'"pardec generate {bare} -p ..."' in err
    code, _, err = cli("chat", "tiny-llamagen")
    assert (code, "is an image model" in err) == (2, True)
    code, _, err = cli("chat", "tiny-dream", "-s", "treshold")
    assert (code, "did you mean 'threshold'" in err) == (2, True)
    code, out, err = cli("chat", "tiny-dream", "--system", "Be brief.")
    assert (code, out) == (2, "")
    assert "the chat template of tiny-dream leaves system messages out" in err


def test_a_template_that_refuses_its_messages_is_no_bug(
    cli: Cli, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shutil.copytree(folder, tmp_path / "strict")
    settings = json.loads((made / "tokenizer_config.json").read_text())
    settings["chat_template"] = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}a"
    (made / "tokenizer_config.json").write_text(json.dumps(settings))
    piped(monkeypatch, ONE)
    code, _, err = cli("chat", made, "--system", "Be brief.", "-n", 4)
    assert (code, "the chat template of strict does not take prompt 0" in err) == (2, True)
