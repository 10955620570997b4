"""`pardec show FOLDER`: the family of each layout, and refusals by name of folders whose tensors do not match."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.cli.listing import _recognition
from pardec.models.errors import ModelError
from tests.models.draft_modules.test_mtp import with_layer
from tests.models.families import test_sdlm, test_sumi
from tests.models.families.test_families import published, rewrite

Tensors = dict[str, Tensor]


def base(kind: str, folder: Path, **changes: Any) -> None:
    """A checkpoint of transformers' class `kind`, with the config of a family that shares its tensors."""
    published(kind, folder, num_key_value_heads=2)
    rewrite(folder, mask_token_id=60, architectures=["Remote"], **changes)


FOLDERS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "CoDA": ("coda (CoDA)", lambda folder: base("Qwen3", folder, model_type="CoDA", tie_word_embeddings=False)),
    "SDAR": ("sdar (SDAR, TraDo (dense))", lambda folder: base("Qwen3", folder, model_type="sdar")),
    "MiMo": ("mimo (MiMo-7B)", lambda folder: with_layer(folder, "MiMo")),
    "SDLM": ("sdlm (SDLM)", test_sdlm.published),
    "Sumi": ("sumi (Sumi)", test_sumi.published),
}
NORM, MATRIX = "model.layers.0.input_layernorm.weight", "model.layers.0.mlp.down_proj.weight"


def lacking(tensors: Tensors) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name != NORM}


CHANGES: dict[str, tuple[Callable[[Tensors], Tensors], str]] = {
    "another tensor": (lambda tensors: tensors | {"model.layers.0.gate.weight": torch.ones(3)}, "1 not known: .*gate"),
    "another layer": (
        lambda tensors: tensors | {NORM.replace("0", "9"): torch.ones(3)},
        "1 not known: model.layers.9.input_layernorm.weight",
    ),
    "a missing tensor": (lacking, f"1 missing: {NORM}"),
    "another shape": (
        lambda tensors: tensors | {MATRIX: tensors[MATRIX][:-1].clone()},
        f"1 of the wrong shape: {MATRIX}",
    ),
}


@pytest.mark.parametrize("name", FOLDERS)
def test_show_names_the_family_and_refuses_tensors_that_do_not_match_by_name(name: str, tmp_path: Path) -> None:
    family, write = FOLDERS[name]
    write(tmp_path)
    shown = _recognition(str(tmp_path), {})
    assert (shown["family"], shown["loads"]) == (family, "natively")
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for change, message in CHANGES.values():
        save_file(change(tensors), file)
        with pytest.raises(ModelError, match=message):
            _recognition(str(tmp_path), {})
    file.unlink()  # of a model on the hub the config alone is read
    assert _recognition(str(tmp_path), {})["family"] == family


@pytest.mark.parametrize("name", ["CoDA", "SDAR", "MiMo", "SDLM", "Sumi"])
@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}},
        {"hidden_act": "mish9"},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        {"quantization_config": {"quant_method": "mxfp4"}},
    ],
    ids=["rotation", "activation", "awq", "bitsandbytes", "mxfp4"],
)
def test_show_refuses_settings_that_are_not_known_by_name(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    FOLDERS[name][1](tmp_path)
    rewrite(tmp_path, **change)
    (value,) = change.values()
    said = value.get("quant_method", "spiral") if isinstance(value, dict) else value
    with pytest.raises(ModelError, match=said):
        _recognition(str(tmp_path), {})
