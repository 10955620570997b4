from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pardec.models.errors import ModelError
from pardec.models.load import load
from tests.models.families.test_experts import LLADA2
from tests.models.toys import family_folder, llama_config, llama_folder, llama_tensors, torchrun, write_checkpoint

RUN = Path(__file__).with_name("shared_run.py")
SHAPE = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}


def llada_folder(folder: Path) -> Path:
    """A random LLaDA with grouped heads and biases of queries, keys and values."""
    config = {
        "architectures": ["LLaDAModelLM"], "model_type": "llada", "rope": True, "layer_norm_type": "rms",
        "weight_tying": False, "d_model": 32, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "mlp_hidden_size": 48,
        "vocab_size": 40, "embedding_size": 40, "include_qkv_bias": True, "max_sequence_length": 64, "eos_token_id": 3,
        "mask_token_id": 4,
    }  # fmt: skip
    family_folder(folder, config, seed=8)
    return folder


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The outputs of two processes for three models, and of a command."""
    folder = tmp_path_factory.mktemp("shared")
    config = llama_config(**SHAPE)
    write_checkpoint(folder / "llama", config, {name: 2 * value for name, value in llama_tensors(config).items()})
    llada_folder(folder / "llada")
    family_folder(folder / "llada2", LLADA2)
    llama_folder(folder / "odd", **SHAPE | {"num_key_value_heads": 1})
    done = torchrun(RUN, folder)
    line = next((line for line in done.stdout.splitlines() if line.startswith("FOUND ")), None)
    assert line is not None, done.stderr[-3000:]
    made: list[dict[str, Any]] = json.loads(line.removeprefix("FOUND "))
    return made


@pytest.mark.parametrize("name", ["llama", "llada", "llada2"])
def test_two_processes_give_what_one_gives(found, name):
    for one in found:
        assert max(one[name]["errors"]) < 1e-5
        for sampler, (whole, shared) in one[name]["tokens"].items():
            assert whole == shared, sampler
        assert one[name]["tokens"] == found[0][name]["tokens"]


@pytest.mark.parametrize("name", ["llama", "llada"])
def test_each_process_holds_half_of_the_layers_and_its_own_heads(found, name):
    for one in found:
        whole, shared = one[name]["bytes"]
        split = 2 * 4 * (32 * (32 + 32) + 32 * 32 + 3 * 32 * 48 + (64 if name == "llada" else 0))  # of both layers
        assert shared == whole - split // 2
        assert one[name]["kv_heads"] == [2, 1]
        assert one[name]["parameters"][0] == one[name]["parameters"][1]
        assert "1 more of 2 processes" in one[name]["said"]


@pytest.mark.parametrize("name", ["llama", "llada", "llada2"])
def test_new_weights_are_shared_in_place(found, name):
    for one in found:
        update = one[name]["update"]
        assert update["error"] < 1e-5 < 0.1 < update["change"]
        assert update["stays"]


def test_heads_that_do_not_divide_are_refused(found):
    assert [one["odd"]["refused"] for one in found] == ["2 processes cannot share kv_heads=1 evenly"] * 2


def test_the_command_prints_once_what_one_process_prints(found):
    (code, out, err), (_, silent, untold) = (one["command"]["shared"] for one in found)
    assert code == 0, err
    assert out == found[0]["command"]["alone"][1] != ""
    assert (silent, untold) == ("", "")
    assert err.count("1 more of 2 processes") == 1


def test_outside_torchrun_and_beside_other_placements_it_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    folder = llama_folder(tmp_path)
    with pytest.raises(ModelError, match="needs torchrun") as caught:
        load(folder, device="cpu", tp=True)
    assert "torchrun" in str(caught.value.hint)
    for more in ({"quantize": "int8"}, {"device_map": "auto"}):
        with pytest.raises(ModelError, match=f"tp and {next(iter(more))}="):
            load(folder, device="cpu", tp=True, **more)
