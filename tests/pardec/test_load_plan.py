"""What a plan says before a model is loaded, against the model that is loaded with the same arguments."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pardec
from pardec import load_plan
from pardec.load_plan import LoadPlan, plan_loading
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.files.gguf.tensors import FileTensor
from pardec.models.kernels.cpu import blocks
from tests.models.adapters import pairs, write_adapter
from tests.models.families import test_experts
from tests.models.loading.gguf_files import write_gguf
from tests.models.loading.test_packing import masked_file
from tests.models.toys import family_folder, llama_folder

Cli = Callable[..., tuple[int, str, str]]
needs_kernel = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")
ARGUMENTS: list[dict[str, Any]] = [{}, {"packed": False}, {"dtype": "bfloat16"}, {"activations": "int8"}]
ARGUMENTS += [{"quantize": "int8"}, {"quantize": "int4", "activations": "int8"}]


@pytest.fixture(autouse=True)
def unmeasured(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Speeds are not measured, except in the test of them."""
    if request.function is not test_speeds_are_measured:
        monkeypatch.setattr(load_plan, "best", lambda run, device: 1e-3)


@needs_kernel
@pytest.mark.parametrize("arguments", ARGUMENTS, ids=str)
@pytest.mark.parametrize("kind", ["Q4_1", "F16", "F32"])
@pytest.mark.covers(1)
def test_bytes_of_a_gguf_file_are_those_of_the_loaded_model(
    tmp_path: Path, kind: str, arguments: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "toy.gguf", kind)
    if kind != "Q4_1" and list(arguments) == ["activations"]:
        with pytest.raises(ArgumentError, match=f"the file holds {kind}, and no kernel multiplies"):
            plan_loading(file, device="cpu", **arguments)
        return
    model = pardec.load(file, device="cpu", **arguments).language_model
    monkeypatch.setattr(FileTensor, "raw", None)  # no weight is read
    plan = plan_loading(file, device="cpu", **arguments)
    again = model.decoder.head.again  # type: ignore[union-attr]  # a tied head in its own layout
    assert plan.weights == model.weight_bytes + (0 if again is None else again.nbytes)
    assert plan.parameters == model.parameters
    assert plan.activations == model.activations
    cache = model.new_cache(1, 1000)
    size = sum(part[:, :1000].nbytes for part in (*cache.k, *cache.v))
    assert next(iter(plan.cache.values())) == size


def test_a_folder_of_safetensors_and_experts(tmp_path: Path) -> None:
    folder = llama_folder(tmp_path / "llama", hidden_size=64, intermediate_size=96)
    family_folder(tmp_path / "experts", test_experts.LLADA2)
    for where in (folder, tmp_path / "experts"):
        for arguments in ({}, {"dtype": "bfloat16"}, *([{"quantize": "int8"}] if blocks.kernel() else [])):
            if where != folder and "quantize" in arguments:
                continue
            plan = plan_loading(where, device="cpu", **arguments)
            assert plan.weights == pardec.load(where, device="cpu", **arguments).language_model.weight_bytes
    whole, experts = plan_loading(folder, device="cpu"), plan_loading(tmp_path / "experts", device="cpu")
    assert whole.tokens_per_second is not None
    assert experts.tokens_per_second is None
    assert experts.read < 0.8 * experts.weights  # of 8 experts, a token takes some


@needs_kernel
def test_masked_models_have_the_time_of_a_forward(tmp_path: Path) -> None:
    plan = plan_loading(masked_file(tmp_path / "toy.gguf", "Q8_0", "dream"), device="cpu")
    assert plan.tokens_per_second is None
    assert plan.forward_s > 0
    assert not any("int8" in kind for kind in plan.cache)
    assert "ms per forward" in str(plan)
    assert "tokens per second" not in str(plan)


@needs_kernel
def test_what_stays_packed_and_what_does_not_is_said(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0")
    assert plan_loading(file, device="cpu").matrices == {"Q8_0": 9}
    plain = plan_loading(file, device="cpu", dtype="bfloat16")
    assert (plain.matrices, plain.plain, plain.why_plain) == ({"bfloat16": 9}, {"Q8_0": 9}, "dtype=bfloat16")
    assert "not packed: 9 Q8_0 (dtype=bfloat16)" in str(plain)
    with pytest.raises(ArgumentError, match="activations=int8 cannot be followed: packed=False"):
        plan_loading(file, device="cpu", packed=False, activations="int8")


@pytest.mark.parametrize("adapted", ["lora", "map"])
def test_arguments_that_need_plain_weights(tmp_path: Path, adapted: str) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0", changes={"vocab_size": 1024, "hidden_size": 512})
    arguments: dict[str, Any] = {"device_map": "auto"}
    if adapted == "lora":
        halves = pairs(load_file(file.with_suffix("") / "model.safetensors"), ["model.layers.0.self_attn.q_proj"])
        arguments = {"adapter": write_adapter(tmp_path / "lora", halves, base_model_name_or_path="toy")}
    model = pardec.load(file, device="cpu", **arguments).language_model
    plan = plan_loading(file, device="cpu", **arguments)
    again = model.decoder.head.again  # type: ignore[union-attr]
    assert plan.weights == model.weight_bytes + (0 if again is None else again.nbytes)
    assert (plan.model, plan.matrices) == (model.name, {"float32": 9})
    assert "needs plain weights" in plan.why_plain
    if adapted == "lora":
        assert plan.peak > plan_loading(file, device="cpu", packed=False).peak
        other = write_gguf(tmp_path / "other.gguf", "Q8_0")
        with pytest.raises(ModelError, match="the adapter lora does not fit other"):
            plan_loading(other, device="cpu", **arguments)


def test_what_headers_do_not_tell_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pardec.models.layers import quantize

    folder = llama_folder(tmp_path)
    monkeypatch.setattr(quantize, "kernel", lambda: None)
    with pytest.raises(ArgumentError, match="quantize=int8 on cpu is done by torchao"):
        plan_loading(folder, device="cpu", quantize="int8")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "relu"}))
    with pytest.raises(ModelError, match="runs through transformers"):
        plan_loading(folder, device="cpu")


def test_speeds_are_measured(tmp_path: Path) -> None:
    plan: LoadPlan = plan_loading(llama_folder(tmp_path, hidden_size=64, intermediate_size=96), device="cpu")
    assert 1 < plan.tokens_per_second < 1e6
    assert plan.threads == torch.get_num_threads()


FOLLOWED: list[tuple[tuple[Any, ...], Callable[[Any, Any], bool]]] = [
    (("--batch", 3), lambda plan, plain: plan["cache"]["float32"] * 1000 == plain["cache"]["float32"] * 3 * 192),
    (("--prompt", 60, "--new", 40), lambda plan, plain: plan["cache"]["float32"] * 10 == plain["cache"]["float32"]),
    (("--new", 72), lambda plan, plain: (plan["rows"], plan["positions"]) == (1, 200)),
    (("--dtype", "bfloat16"), lambda plan, plain: plan["matrices"] == {"bfloat16": 9}),
    (("--dense",), lambda plan, plain: plan["matrices"] == {"float32": 9}),
    (
        ("--dtype", "bfloat16", "--packed"),
        lambda plan, plain: (plan["dtype"], *plan["matrices"]) == ("bfloat16", "Q8_0"),
    ),
    (("--quantize", "int4"), lambda plan, plain: plan["matrices"] == {"Q4_1": 8, "Q8_0": 1}),
    (("--activations", "int8"), lambda plan, plain: plan["activations"] == "int8"),
    (("--device-map", "auto"), lambda plan, plain: plan["matrices"] == {"float32": 9}),
]
REFUSED = [
    (("--temperature", "0.5"), "--temperature 0.5 does not change what"),
    (("--temperature", "0"), "--temperature 0.0 does not change what"),
    (("--mask-id", "0"), "--mask-id 0 does not change what"),
    (("--revision", "main"), "--revision main is for models on the hub"),
    (("--offline",), "--offline changes nothing"),
    (("--cuda-graphs",), "--cuda-graphs takes memory that is known only once"),
    (("--adapter", "nowhere"), "there is no adapter 'nowhere'"),
    (("--quantize", "int5"), "unknown quantize 'int5'"),
    (("--dense", "--activations", "int8"), "--activations int8 cannot be followed: --dense"),
    (("--prompt", "1000"), "a row needs 1064 positions and toy has 512"),
]


@needs_kernel
@pytest.mark.parametrize(("options", "follows"), FOLLOWED, ids=[" ".join(map(str, each)) for each, _ in FOLLOWED])
def test_the_command_follows_options_that_change_a_plan(
    cli: Cli, tmp_path: Path, options: tuple[Any, ...], follows: Callable[[Any, Any], bool]
) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0", changes={"max_position_embeddings": 512})
    plain, changed = cli("plan", file, "--json"), cli("plan", file, "--json", *options)
    assert (plain[0], changed[0]) == (0, 0), changed[2]
    assert follows(json.loads(changed[1]), json.loads(plain[1]))


@needs_kernel
@pytest.mark.parametrize(("options", "problem"), REFUSED)
def test_the_command_refuses_options_that_do_not_change_a_plan(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    file = write_gguf(tmp_path / "toy.gguf", "Q8_0", changes={"max_position_embeddings": 512})
    code, out, err = cli("plan", file, *options)
    assert (code != 0, out) == (True, "")
    assert err.startswith(f"error: {problem}")
    assert len(err.strip().splitlines()) == 2  # and a way out


@pytest.mark.parametrize("name", ["missing.gguf", "~nobody-here/toy.gguf", "tiny-lama"])
def test_a_name_of_no_model_is_refused(cli: Cli, name: str) -> None:
    code, out, err = cli("plan", name, "--device", "cpu")
    assert (code != 0, out) == (True, "")
    assert "this is a bug" not in err
    assert err.startswith("error: ")


def test_every_option_of_loading_is_followed_or_refused(cli: Cli, tmp_path: Path) -> None:
    tried = {option for options, _ in [*FOLLOWED, *REFUSED] for option in map(str, options) if option.startswith("--")}
    tried |= {"--device", "--sampler", "--memory", "--acceptance", "--json", "--debug", "--help"}
    tried |= {"--no-cuda-graphs"}  # a plan counts none

    from pardec.cli.app import command_line

    command: Any = command_line().commands["plan"]  # type: ignore[attr-defined]
    options = {name for each in command.params for name in (*each.opts, *each.secondary_opts) if name.startswith("--")}
    assert options <= tried


def test_the_command_plans_before_loading(cli: Cli, tmp_path: Path) -> None:
    folder = llama_folder(tmp_path, hidden_size=64, intermediate_size=96)
    code, out, err = cli("plan", folder, "--json", "--device", "cpu")
    assert code == 0, err
    assert json.loads(out)["matrices"] == {"float32": 10}
    code, out, err = cli("plan", folder, "--device", "cpu")
    assert code == 0, err
    assert "peak while loading" in out
    code, out, err = cli("plan", folder, "-s", "lookup", "--prompt", 8, "--new", 8, "--device", "cpu", "--json")
    assert code == 0, err
    assert "round_work" in json.loads(out)["parts"]
