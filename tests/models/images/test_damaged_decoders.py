"""Image decoders whose files are damaged: each is refused in one line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pardec.models.errors import ModelError
from pardec.models.files.catalog import EMBEDDED
from pardec.models.images.kl import load_kl
from pardec.models.images.vq import load_vq
from pardec.models.scales.tokenizer_files import load_tokenizer
from tests.models.toys import rewrite

LOADERS: dict[str, tuple[Callable[..., Any], str]] = {
    "tiny-vq": (load_vq, "codebook_size"),
    "tiny-kl": (load_kl, "scale"),
    "tiny-var-vq": (load_tokenizer, "quant_resi"),
}


def copied(name: str, folder: Path, **arguments: Any) -> Path:
    """The weights of a copy, with other arguments beside them."""
    shutil.copytree(EMBEDDED / name, folder)
    rewrite(folder, next(folder.glob("*.args.json")).name, **arguments)
    return next(folder.glob("*.safetensors"))


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, torch.int64])
def test_weights_of_another_type_are_refused(dtype: torch.dtype, name: str, tmp_path: Path) -> None:
    weights = copied(name, tmp_path / "decoder")
    tensors = load_file(weights)
    chosen = next(key for key in sorted(tensors) if key.startswith("decoder.") and tensors[key].ndim > 1)
    save_file({**tensors, chosen: tensors[chosen].to(dtype)}, weights)
    with pytest.raises(ModelError, match="1 tensors are not floating-point: decoder"):
        LOADERS[name][0](weights)


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("value", ["x", [1], {"a": 1}])
def test_arguments_of_another_kind_are_refused(value: Any, name: str, tmp_path: Path) -> None:
    load, key = LOADERS[name]
    with pytest.raises(ModelError) as error:
        load(copied(name, tmp_path / "decoder", **{key: value}))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "tiny-vq",
            {"codebook_l2norm": False},
            r"unknown argument codebook_l2norm=False \(did you mean 'codebook_l2_norm'",
        ),
        ("tiny-vq", {"codebook_l2_norm": "false"}, "codebook_l2_norm must be true or false, got 'false'"),
        ("tiny-vq", {"decoder_ch_mult": [1, 2]}, r"have decoder_ch_mult=\[1, 2\], and the tensors have \(1, 1, 2\)"),
        ("tiny-kl", {"scaling_factor": 0.5}, "unknown argument scaling_factor=0.5"),
        ("tiny-kl", {"embed_dim": 8}, "have embed_dim=8, and the tensors have 16"),
        ("tiny-var-vq", {"using_znorm": True}, "using_znorm=true is not supported"),
        ("tiny-var-vq", {"quant_residual": 0.3}, "unknown argument quant_residual=0.3"),
    ],
)
def test_arguments_that_are_unknown_or_contradict_the_tensors_are_refused(
    name: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message):
        LOADERS[name][0](copied(name, tmp_path / "decoder", **change))


def test_arguments_of_training_have_no_effect(tmp_path: Path) -> None:
    for name, more in (("tiny-vq", {"commit_loss_beta": 0.25, "dropout_p": 0.0}), ("tiny-var-vq", {"beta": 0.25})):
        LOADERS[name][0](copied(name, tmp_path / name, **more))
