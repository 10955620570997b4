"""compare, tune and bench apply the chat template to prompts like generate does, and a line says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.bench import decode
from pardec.comparison import tuning

Cli = Callable[..., tuple[int, str, str]]
TEXT = "Tom has 3 cups."
SHORT: dict[str, Any] = {"max_new_tokens": 6, "references": False, "progress": False}


@pytest.fixture(scope="module")
def model(instruct: Path) -> pardec.Model:
    return pardec.load(instruct, device="cpu")


def texts(table: pardec.Table) -> list[str]:
    return [row["text"] for row in table.run.rows]


@pytest.mark.parametrize("chat", [None, True, False])
def test_compare_decodes_what_generate_does(model: pardec.Model, chat: bool | None) -> None:
    prompt: Any = TEXT if chat is False else [{"role": "user", "content": TEXT}]
    expected = model.generate(prompt, max_new_tokens=6).text
    table = pardec.compare(model, prompts=[TEXT], samplers="threshold", chat=chat, **SHORT)
    assert texts(table) == expected
    assert any(("plain text, and" in note) == (chat is False) and "template" in note for note in table.notes)


def test_compare_leaves_messages_and_embedded_models_alone(model: pardec.Model) -> None:
    messages = [{"role": "user", "content": TEXT}]
    table = pardec.compare(model, prompts=[{"messages": messages}], samplers="threshold", **SHORT)
    assert texts(table) == model.generate(messages, max_new_tokens=6).text
    table = pardec.compare("tiny-dream", prompts=[TEXT], samplers="threshold", device="cpu", **SHORT)
    assert not any("template" in note for note in table.notes)


def test_compare_refuses_a_template_that_is_not_there() -> None:
    with pytest.raises(pardec.PardecError, match="has no chat template"):
        pardec.compare("tiny-llamagen", "captions", "sequential", limit=1, device="cpu", chat=True, progress=False)


def test_a_run_with_a_template_is_not_resumed_without(instruct: Path, tmp_path: Path) -> None:
    arguments = {"prompts": [TEXT], "samplers": "threshold", "out": tmp_path / "run", "device": "cpu", **SHORT}
    pardec.compare(instruct, **arguments)
    with pytest.raises(pardec.SpecError, match="chat"):
        pardec.compare(instruct, **arguments, resume=True, chat=False)


def test_commands_have_the_flag_and_name_it(cli: Cli, instruct: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": TEXT}) + "\n")
    common = ("--prompts", tmp_path / "p.jsonl", "--device", "cpu")
    code, shown, _ = cli("compare", instruct, *common, "-s", "threshold", "-n", 6, "--no-references")
    assert code == 0
    assert "in the chat template of" in shown
    code, shown, _ = cli("compare", instruct, *common, "-s", "threshold", "-n", 6, "--no-references", "--raw")
    assert "plain text, and" in shown
    for command in (["compare"], ["tune"], ["bench", "decode"], ["generate"]):
        assert "--raw" in cli(*command, "--help")[1]


def test_tune_says_which(model: pardec.Model) -> None:
    lines: list[str] = []
    arguments = {"samplers": ["threshold+eos"], "budget": 40, "confirm": 2, "max_new_tokens": 4}
    prompts = [{"prompt": f"Tom has {n} cups.", "answer": str(n)} for n in range(8)]
    tuning.tune(model, prompts=prompts, scorer="number", told=lines.append, **arguments)
    assert "in the chat template of" in lines[0]


def test_bench_times_the_template(model: pardec.Model) -> None:
    plain, chat = (decode.prepare(model, "threshold", 1, 0, 4, None, chat=chat).prompts[0] for chat in (False, True))
    assert chat > plain
    rows = [
        next(decode.bench(model, ["threshold"], batches=[1], new=[4], prompts=[TEXT], chat=chat, pairs=1, beside=False))
        for chat in (None, False)
    ]
    assert rows[0]["context"] > rows[1]["context"]
