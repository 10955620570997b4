"""Draft modules whose files are damaged: each is refused in one line, or drafts the tokens of `sequential`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import pardec
from pardec.models.files.catalog import DRAFTERS

TENSORS: dict[str, tuple[str, str, Any]] = {
    "heads: a bias of half the rows": ("medusa", "0.0.linear.bias", lambda t: t[:96]),
    "heads: a bias of more axes": ("medusa", "0.0.linear.bias", lambda t: t[None, None]),
    "heads: a bias that is a number": ("medusa", "0.0.linear.bias", lambda t: t[0]),
    "heads: whole numbers": ("medusa", "0.0.linear.weight", lambda t: t.int()),
    "heads: NaN": ("medusa", "0.1.weight", lambda t: t * torch.nan),
    "heads: a last bias of half the rows": ("hydra", "hydra_lm_head.0.bias", lambda t: t[:180]),
    "heads: a last matrix of booleans": ("hydra", "hydra_lm_head.0.weight", lambda t: t.bool()),
    "heads: the second linear's bias": ("hydra", "hydra_mlp.0.0.res_connection.bias", lambda t: t[None]),
    "layers: whole numbers": ("kangaroo", "norm.weight", lambda t: t.int()),
    "layers: transposed": ("eagle", "fc.weight", lambda t: t.T),
    "layers: an axis": ("eagle", "fc.weight", lambda t: t.flatten()),
    "layers: d2t of floats": ("eagle", "d2t", lambda t: torch.zeros(4)),
    "layers: a context of one axis": ("dflash", "fc.weight", lambda t: t.flatten()),
    "vectors: flat": ("prompts", "prompt_embeddings", lambda t: t.flatten()),
}
CONFIGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("medusa", {"logit_scale": "x"}),
    ("medusa", {"truncated_vocab_size": {}, "vocab_size": {}}),
    ("medusa", {"architectures": 1}),
    ("medusa", {"speculators_model_type": {"a": 1}}),
    ("prompts", {"num_special_tokens": "x"}),
    ("kangaroo", {"exit_layer": [1]}),
    ("kangaroo", {"rope_theta": "x"}),
    ("eagle", {"hidden_size": "x"}),
    ("eagle", {"eagle_config": [1]}),
    ("eagle", {"transformer_layer_config": 1}),
    ("eagle", {"norm_before_residual": "false"}),
    ("dflash", {"dflash_config": [1]}),
    ("dflash", {"dspark_config": [1]}),
    ("dflash", {"block_size": 1e308}),
    ("dflash", {"num_attention_heads": 0}),
)


@pytest.fixture(scope="module")
def target() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")


def refusal(target: pardec.Model, kind: str, folder: Path) -> str:
    """The error for the files; empty if they load and draft the tokens of `sequential`."""
    arguments: dict[str, Any] = {"input_ids": [[5, 6, 7, 8, 9]], "max_new_tokens": 6, "stop_ids": []}
    try:
        drafted = target.generate(sampler=f"{kind}:name={folder}", **arguments)
    except pardec.PardecError as error:
        return str(error)
    assert drafted.tokens == target.generate(sampler="sequential", **arguments).tokens
    return ""


def copied(kind: str, folder: Path) -> tuple[Path, Path]:
    shutil.copytree(DRAFTERS / f"tiny-llama-{kind}", folder)
    config = folder / ("adapter_config.json" if kind == "prompts" else "config.json")
    return config, next(folder.glob("*.safetensors"))


@pytest.mark.parametrize("case", TENSORS)
def test_damaged_tensors_of_a_drafter_are_refused_in_one_line(case: str, target: pardec.Model, tmp_path: Path) -> None:
    kind, name, change = TENSORS[case]
    _, weights = copied(kind, tmp_path / "drafter")
    tensors: dict[str, Tensor] = load_file(weights)
    plain = tensors.get(name, torch.zeros(1))
    save_file({**tensors, name: change(plain).clone().contiguous()}, weights)
    said = refusal(target, kind, tmp_path / "drafter")
    assert said
    assert "drafter" in said
    assert "\n" not in said


@pytest.mark.parametrize(("kind", "change"), CONFIGS)
def test_damaged_configs_of_a_drafter_are_refused_in_one_line(
    kind: str, change: dict[str, Any], target: pardec.Model, tmp_path: Path
) -> None:
    file, _ = copied(kind, tmp_path / "drafter")
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    said = refusal(target, kind, tmp_path / "drafter")
    assert said
    assert "\n" not in said
