"""Arguments, names and files of other engines are refused, or ignored with a warning, with a hint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.requests.settings import ignored_arguments

Cli = Callable[..., tuple[int, str, str]]


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ({"load_in_4bit": True}, 'quantize="int4"'),
        ({"torch_dtype": "auto"}, "dtype="),
        ({"trust_remote_code": True}, "no remote code"),
        ({"devise": "cpu"}, "it takes name, device"),
    ],
)
def test_load_refuses_an_argument_that_it_does_not_take(argument: dict[str, Any], hint: str) -> None:
    [name] = argument
    with pytest.raises(pardec.SpecError, match=f"load takes no argument '{name}'") as caught:
        pardec.load("tiny-dream", **argument)
    assert hint in str(caught.value.hint)


def test_load_says_what_a_name_is_that_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(pardec.ModelError, match="is a draft module for tiny-llama") as caught:
        pardec.load("tiny-llama-eagle")
    assert 'sampler="eagle:name=tiny-llama-eagle"' in str(caught.value.hint)
    (tmp_path / "a.gguf").write_text("")
    for name in ("b.gguf", str(tmp_path / "b.gguf"), "./b.safetensors"):
        with pytest.raises(pardec.ModelError, match=f"there is no file {name}") as caught:
            pardec.load(name)
    with pytest.raises(pardec.ModelError) as caught:
        pardec.load(tmp_path / "b.gguf")
    assert "has a.gguf" in str(caught.value.hint)
    for device in ("gpu", "GPU", "gpu:0"):
        with pytest.raises(pardec.ModelError, match="did you mean 'cuda'"):
            pardec.load("tiny-dream", device=device)


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llama"])
def test_filters_are_said_where_nothing_is_sampled(name: str, cli: Cli) -> None:
    model = pardec.load(name, device="cpu")
    with pytest.warns(UserWarning, match="top_k=5 has no effect: temperature=0 takes the likeliest token"):
        model.generate("Tom has 3 cups.", max_new_tokens=4, stop_ids=[], top_k=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate("Tom has 3 cups.", max_new_tokens=4, stop_ids=[], top_k=5, temperature=1.0)
        model.generate("Tom has 3 cups.", max_new_tokens=4, stop_ids=[], top_p=1)
    command = ("generate", name, "-p", "Tom has 3 cups.", "-n", 4, "--device", "cpu")
    assert "--top-p 0.5 and --min-p 0.1 have no effect" in cli(*command, "--top-p", 0.5, "--min-p", 0.1)[2]
    assert "likeliest" not in cli(*command, "--top-p", 0.5, "--temperature", 1)[2]


def test_an_output_in_another_format_is_refused(cli: Cli, tmp_path: Path) -> None:
    for name in ("answers.txt", "answers.csv", "answers.md"):
        code, out, err = cli("generate", "tiny-dream", "-p", "a", "-o", tmp_path / name)
        assert (code, out) == (2, "")
        assert f"no {Path(name).suffix} files can be written" in err
        assert "jsonl" in err
    assert not list(tmp_path.iterdir())
    for name in ("run", "run-0.9", "run.json"):
        assert cli("generate", "tiny-dream", "-p", "Tom.", "-n", 2, "-o", tmp_path / name)[0] == 0


def test_an_interval_is_said_where_nothing_is_guided(cli: Cli, tmp_path: Path) -> None:
    assert ignored_arguments({"cfg_interval": 5}, {"cfg": 2.5, "temperature": 1}) is None
    model = pardec.load("tiny-llamagen", device="cpu")
    with pytest.warns(UserWarning, match="cfg_interval=5 has no effect without guidance; cfg=4 turns it on"):
        model.generate("a red circle", cfg=1, cfg_interval=5, sampler="sjd")
    command = ("image", "tiny-llamagen", "-p", "a red circle", "--device", "cpu", "-o", tmp_path / "a.png")
    assert "--cfg-interval 5 has no effect without guidance" in cli(*command, "--cfg", 1, "--cfg-interval", 5)[2]
