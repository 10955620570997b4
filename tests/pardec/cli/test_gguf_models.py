"""A GGUF file is accepted wherever a model is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import pardec
from pardec.comparison.run import Run
from pardec.models.kernels.cpu import blocks
from pardec.requests import draft_models
from tests.models.loading.gguf_files import write_gguf

needs_kernel = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")
Cli = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("models") / "toy.gguf", "Q8_0")


def test_generate_puts_a_prompt_into_the_template_of_the_file(cli: Cli, file: Path) -> None:
    code, out, err = cli("generate", file, "-p", "the", "-n", 8, "-s", "lookup:k=3", "--json")
    assert code == 0, err
    expected = pardec.load(file, device="cpu").generate([{"role": "user", "content": "the"}], max_new_tokens=8)
    assert json.loads(out)["rows"][0]["tokens"] == expected.tokens[0]
    assert "the prompt is in the chat template of toy, as a user message; --raw" in err


def test_a_request_that_cannot_be_is_refused_first(cli: Cli, file: Path) -> None:
    code, _, err = cli("generate", file, "-p", "the", "-s", "threshold:tau=0.9")
    assert (code, "error: " in err) == (2, True)
    code, _, err = cli("generate", file, "-p", "the", "-n", 500, "--dtype", "bfloat17")
    assert code == 2


def test_a_file_drafts_for_another(file: Path, tmp_path: Path) -> None:
    model = pardec.load(file, device="cpu", dtype="bfloat16")
    result = model.generate("the the", sampler=f"model:name={file},k=3", max_new_tokens=8, stop_ids=[])
    assert result.tokens == model.generate("the the", max_new_tokens=8, stop_ids=[]).tokens
    assert sum(result.draft_forwards) > 0


def test_compare_takes_it(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"messages": [{"role": "user", "content": "the"}]}\n{"prompt": "the 1"}\n')
    command = (
        "compare", file, "--prompts", tmp_path / "p.jsonl", "-s", "sequential", "-s", "lookup", "-n", 6, "--json",
    )  # fmt: skip
    code, out, err = cli(*command)
    assert code == 0, err
    assert {row["identical"] for row in json.loads(out)["rows"]} <= {None, 1.0}


def test_list_and_show_know_it_also_where_it_is_moved(
    cli: Cli, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path / "cache"))
    first = tmp_path / "first.gguf"
    first.write_bytes(file.read_bytes())
    pardec.load(first, device="cpu")
    assert str(first) in cli("list", "models")[1]
    assert "first, Q8_0 (a GGUF file)" in cli("show", first)[1]
    moved = first.rename(tmp_path / "moved.gguf")
    assert str(moved) not in cli("list", "models")[1]
    pardec.load(moved, device="cpu")
    assert str(moved) in cli("list", "models")[1]


@needs_kernel
def test_show_and_plan_say_what_stays_packed(cli: Cli, file: Path) -> None:
    code, out, err = cli("show", file)
    assert code == 0, err
    assert "packed: 9 Q8_0, " in out
    assert "activations: float32" in out
    assert "keys and values: " in out
    code, out, err = cli("plan", file, "--device", "cpu")
    assert code == 0, err
    assert "matrices: 9 Q8_0" in out


@needs_kernel
def test_results_record_how_weights_are_kept(file: Path) -> None:
    for arguments, kept in (
        ({}, {"packed": "True", "activations": "float32"}),
        ({"activations": "int8"}, {"packed": "True", "activations": "int8"}),
        ({"quantize": "int8", "activations": "int8"}, {"quantize": "int8", "activations": "int8"}),
        ({"packed": False}, {}),
    ):
        values = pardec.load(file, device="cpu", **arguments).environment()
        assert {name: values[name] for name in ("quantize", "packed", "activations") if name in values} == kept


@needs_kernel
def test_rows_of_other_activations_are_not_continued(cli: Cli, file: Path, tmp_path: Path) -> None:
    command = ("generate", file, "-p", "the", "-n", 4, "--device", "cpu", "-o", tmp_path / "rows.jsonl")
    code, _, err = cli(*command)
    assert code == 0, err
    code, _, err = cli(*command, "--activations", "int8")
    assert code == 2, err
    assert "activations" in err
    code, _, err = cli(*command)
    assert code == 0, err
    assert "has 1 of 1 rows already" in err


@needs_kernel
def test_a_comparison_of_other_activations_is_not_resumed(cli: Cli, file: Path, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text('{"prompt": "the 1"}\n')
    command = ("compare", file, "--prompts", tmp_path / "p.jsonl", "-s", "sequential", "-n", 4, "--no-references")
    command = (*command, "--device", "cpu", "--out", tmp_path / "run", "--json")
    code, _, err = cli(*command, "--activations", "int8")
    assert code == 0, err
    assert {row["activations"] for row in Run.load(tmp_path / "run").rows} == {"int8"}
    assert "--activations int8" in (tmp_path / "run" / "report.html").read_text()
    code, _, err = cli(*command, "--resume")
    assert code == 2, err
    code, _, err = cli(*command, "--activations", "int8", "--resume")
    assert code == 0, err


@needs_kernel
def test_a_file_that_drafts_stays_packed(file: Path) -> None:
    model = pardec.load(file, device="cpu")
    drafter = draft_models.language_model(str(file), model.network.device, model.network.dtype)
    assert drafter.packed
    plain = model.generate("the the", max_new_tokens=8, stop_ids=[]).tokens
    for spec in (f"model:name={file},k=3", f"model:name={file},k=3@int8"):
        assert model.generate("the the", sampler=spec, max_new_tokens=8, stop_ids=[]).tokens == plain
