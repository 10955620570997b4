"""`pardec show DRAFTER --target MODEL`: how the drafter loads, and a warning if it should read other layers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pardec.models.files.catalog import DRAFTERS

Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A row of tiny-llama's answer to a question."""
    file = tmp_path / "rows.jsonl"
    question = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
    file.write_text(json.dumps({"prompt": question, "answer": "8 - 3 = 5; answer 5"}) + "\n")
    return file


def test_an_eagle_is_compared_under_both_readings_of_its_layers(cli: Cli) -> None:
    code, out, err = cli("show", "tiny-llama-eagle", "--target", "tiny-llama")
    assert (code, err) == (0, "")
    assert "loads: reads the outputs of layers 0, 1, 2" in out
    first, second = out.splitlines()[-2:]
    assert first.split()[:4] == ["layers", "0,", "1,", "2"]
    assert first.endswith("these are read")
    assert second.split()[:4] == ["layers", "-1,", "0,", "1"]
    assert float(first.split()[4].rstrip("%")) > float(second.split()[4].rstrip("%")) + 20


def test_ids_of_the_other_convention_are_warned_of(cli: Cli, rows: Path, tmp_path: Path) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(DRAFTERS / "tiny-llama-eagle", folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"eagle_aux_hidden_state_layer_ids": config.pop("eagle_config")["eagle_aux_hidden_state_layer_ids"]}
    (folder / "config.json").write_text(json.dumps(config))
    code, out, err = cli("show", folder, "--target", "tiny-llama", "--rows", rows, "--json")
    entry = json.loads(out)
    assert code == 0
    assert [(reading["layers"], reading["read"]) for reading in entry["agreement"]] == [
        ([-1, 0, 1], True),
        ([0, 1, 2], False),
    ]
    assert "try taps=0-1-2" in err
    assert entry["kind"] == "eagle"


def test_other_kinds_say_what_they_load_as(cli: Cli) -> None:
    code, out, err = cli("show", "tiny-llama-medusa", "--target", "tiny-llama")
    assert (code, err) == (0, "")
    assert "loads: 4 heads of 1 block" in out
    assert "agreement: not measured" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("smollm2-eagle", "--target", "tiny-llama"), 1, "reads states of width 576; those of tiny-llama have 192"),
        (("threshold", "--target", "tiny-llama"), 2, "there is no draft module 'threshold'"),
        (("tiny-llama-eagle", "--target", "tiny-dream"), 2, "tiny-dream fills masks"),
        (("tiny-llama-eagle", "--rows", "x"), 2, "--rows needs --target"),
        (("tiny-llama-eagle", "--target", "tiny-llama", "--rows", "none.jsonl"), 2, "cannot read rows from none.jsonl"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: tuple[str, ...], code: int, message: str, cli: Cli) -> None:
    actual, out, err = cli("show", *arguments)
    assert (actual, out) == (code, "")
    assert message in err
