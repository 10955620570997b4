"""Untrusted configs and JSON: refused in one line that names file and field, before any model is built."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.files.configs import check_config
from pardec.models.files.json_text import DEPTH, parse
from pardec.models.files.weights import Published, indexed
from pardec.models.load import load
from pardec.models.printable import in_json, line, plain
from tests.models.toys import llama_folder, rewrite

WEIGHTS = {"a": Published(Path("x"), (300, 400), torch.float32)}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * 100_000, "nests deeper"),
        ("[" * (DEPTH + 1) + "]" * (DEPTH + 1), f"nests deeper than {DEPTH} levels"),
        ('{"a":' * (DEPTH + 1) + "1" + "}" * (DEPTH + 1), "nests deeper"),
        ('{"a": "\\ud800"}', "a lone surrogate, \\ud800"),
        ('{"a\\uDFFFb": 1}', "a lone surrogate, \\udfff"),
        (b'{"a": "\xff"}', "utf-8"),
        ("", "Expecting value"),
    ],
)
def test_json_that_nothing_can_go_through_is_refused(text: str | bytes, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        parse(text)


def test_json_that_is_well_is_read() -> None:
    assert parse('{"a": [1, "\\ud83d\\ude00", {"b": null}]}') == {"a": [1, "😀", {"b": None}]}
    assert parse(b'"\xc3\xa9"') == "é"
    deepest = "[" * DEPTH + "]" * DEPTH
    assert json.dumps(parse(deepest)) == deepest


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_size": "x"}, "hidden_size is 'x', and a whole number is needed"),
        ({"hidden_size": 1.5}, "hidden_size is 1.5"),
        ({"n_layers": True}, "n_layers is True"),
        ({"head_dim": 10**9}, "head_dim is 1000000000, and no tensor of the weights is as large"),
        ({"num_hidden_layers": 300}, "num_hidden_layers is 300, and the weights do not hold as many"),
        ({"vocab_size": -1}, "vocab_size is -1, and a size is needed"),
        ({"text_config": {"hidden_size": []}}, "hidden_size is \\[\\]"),
        ({"rope_parameters": {"rope_theta": float("nan")}}, "rope_theta is nan, and a positive number is needed"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn', and an object is needed"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id is '2'"),
        ({"pad_token_id": [1]}, "pad_token_id is 1, and one number is needed"),
        ({"mask_token_id": 2**70}, "which is too large"),
        ({"architectures": "LlamaForCausalLM"}, "and a list is needed"),
    ],
)
def test_a_field_of_another_kind_is_named_with_its_file(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=f"^model/config.json: {said}|{said}") as caught:
        check_config(config, "model/config.json", WEIGHTS)
    assert str(caught.value).startswith("model/config.json: ")


def test_configs_as_published_are_taken() -> None:
    check_config(
        {"vocab_size": 120_000, "num_hidden_layers": 256, "head_dim": None, "eos_token_id": [1, 2]}, "f", WEIGHTS
    )
    check_config(
        {"intermediate_size": [11008, 11008], "rope_theta": 1_000_000_000, "factor": 8.0, "dim": 2**16}, "f", WEIGHTS
    )
    check_config({"vocab_size": 250_000, "num_hidden_layers": 500}, "f")  # no weights to compare with


@pytest.mark.parametrize(
    "changes",
    [
        *(
            {name: 10**9}
            for name in ("hidden_size", "num_hidden_layers", "head_dim", "vocab_size", "intermediate_size")
        ),
        {"hidden_size": "16"},
        {"rope_theta": "hot"},
        {"rope_scaling": {"rope_type": "yarn", "factor": "x"}},
        {"rms_norm_eps": None},
        {"num_key_value_heads": 0.5},
        {"architectures": 5},
    ],
)
def test_a_checkpoint_with_such_a_config_is_refused_by_name(tmp_path: Path, changes: dict[str, Any]) -> None:
    folder = rewrite(llama_folder(tmp_path / "toy"), **changes)
    with pytest.raises(ModelError) as caught:
        load(folder, device="cpu")
    assert "\n" not in str(caught.value)
    assert "toy" in str(caught.value) or "config.json" in str(caught.value)


def test_a_padding_id_outside_the_vocabulary_is_not_taken(tmp_path: Path) -> None:
    assert load(llama_folder(tmp_path, pad_token_id=10**9), device="cpu").decoding_config.pad_id == 3  # the end token


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/passwd", "a/b", "", "..", "x" * 300, 5, None])
def test_an_index_names_files_of_its_folder_only(tmp_path: Path, name: Any) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"t": name}}))
    with pytest.raises(ModelError, match="outside its folder|cannot be read as a weight index"):
        indexed(index)


def test_plain_text() -> None:
    assert plain("é 漢\t\n😀\u200d") == "é 漢\t\n😀\u200d"
    assert plain("\x1b[1m\x07\x9b\u202e\r\ud800") == "\\x1b[1m\\x07\\x9b\\u202e\\r\\ud800"
    assert line("a\nb\x1b") == "a b\\x1b"
    assert len(line("x" * 10_000)) < 1100
    assert json.loads(in_json(json.dumps("\x9b\u2028é", ensure_ascii=False))) == "\x9b\u2028é"
