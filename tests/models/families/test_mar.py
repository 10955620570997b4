"""MAR: its published files load, and its backbone attends to known tokens only."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pardec.models.errors import ModelError
from pardec.models.families.mar import describe, networks
from pardec.models.files.weights import inspect
from pardec.models.load import load, load_any, load_continuous

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "mar" / "checkpoint"
FILE = "checkpoint-last.pth"


def tensors() -> dict[str, torch.Tensor]:
    held: dict[str, torch.Tensor] = torch.load(GOLDEN / FILE, weights_only=True)["model_ema"]
    return held


def arguments() -> dict[str, Any]:
    stated: dict[str, Any] = json.loads((GOLDEN / "args.json").read_text())
    return stated


def test_the_averaged_weights_are_taken_and_the_rest_of_a_training_file_is_not(tmp_path: Path) -> None:
    held = tensors()
    other = {name: torch.zeros_like(value) for name, value in held.items()}
    saved = {"model": other, "model_ema": held, "optimizer": {"state": {0: other}}, "epoch": 3, "args": None}
    torch.save({**saved, "args": argparse.Namespace(lr=1e-4)}, tmp_path / FILE)
    shutil.copy(GOLDEN / "args.json", tmp_path)
    for path in (tmp_path, tmp_path / FILE):
        model = load_continuous(path, device="cpu")
        assert float(model.backbone.network.z_proj.weight.sum()) == float(held["z_proj.weight"].sum())  # type: ignore[attr-defined]
        assert (model.backbone.tokens, model.head.size, model.head.steps, model.imaging.classes) == (16, 4, 10, 10)
        assert model.imaging.layout.grid == (4, 4)
        assert model.parameters == sum(value.numel() for value in held.values())


def test_safetensors_with_a_config_load_alike(tmp_path: Path) -> None:
    save_file(tensors(), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mar", **arguments()}))
    one, other = load_continuous(tmp_path, device="cpu"), load_continuous(GOLDEN, device="cpu")
    known = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)) < 0.5
    x, labels = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 7])
    found, expected = (model.backbone.states(x, known, labels, ~known).cond for model in (one, other))
    assert torch.equal(found, expected)


def test_published_sizes_follow_from_the_tensors(tmp_path: Path) -> None:
    """Width, depth and the head's sizes are read off the tensors; numbers of heads and steps are the published ones."""
    config = {
        "tokens": 256,
        "token_size": 16,
        "class_num": 1000,
        "buffer_size": 64,
        "diffloss_d": 6,
        "diffloss_w": 1024,
        **{f"{part}_{what}": n for part in ("encoder", "decoder") for what, n in (("embed_dim", 768), ("depth", 1))},
        "encoder_num_heads": 12,
        "decoder_num_heads": 12,
    }
    backbone, head = networks(config)
    held = backbone.state_dict() | {f"diffloss.net.{name}": value for name, value in head.state_dict().items()}
    torch.save({"model_ema": {name: value.bfloat16() for name, value in held.items()}}, tmp_path / FILE)
    found = describe(tmp_path, inspect([tmp_path / FILE]))
    assert {name: found[name] for name in config} == config
    assert found["num_sampling_steps"] == "100"


def test_what_is_not_known_is_not_looked_at() -> None:
    model = load_continuous(GOLDEN, device="cpu")
    known = torch.zeros(1, 16, dtype=torch.bool)
    known[0, [1, 4, 11]] = True
    x, labels = torch.randn(1, 16, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2])
    moved = torch.where(known[..., None], x, x + 5)
    one, other = (model.backbone.states(each, known, labels, ~known).cond for each in (x, moved))
    assert torch.equal(one, other)
    assert not torch.allclose(one, model.backbone.states(x + 1, known, labels, ~known).cond)
    assert not torch.allclose(one, model.backbone.states(x, known, labels + 1, ~known).cond)


def test_rows_that_know_different_numbers_of_tokens_give_what_each_gives_alone() -> None:
    model = load_continuous(GOLDEN, device="cpu")
    known = torch.zeros(4, 16, dtype=torch.bool)
    known[1, [3]] = True
    known[2, ::2] = True
    known[3, 1:] = True
    x, labels = torch.randn(4, 16, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 7, -1, 0])
    scale = torch.tensor([1.0, 2.0, 3.0, 0.5])
    together = model.backbone.states(x, known, labels, ~known, scale)
    at = 0
    for row in range(4):
        one = slice(row, row + 1)
        alone = model.backbone.states(x[one], known[one], labels[one], ~known[one], scale[one])
        here = together[torch.arange(at, at + len(alone))]
        at += len(alone)
        torch.testing.assert_close(here.cond, alone.cond, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(here.uncond, alone.uncond, rtol=1e-5, atol=1e-5)
        assert torch.equal(here.scale, alone.scale)  # type: ignore[arg-type]
    assert at == len(together)


def test_guidance_is_a_second_row_of_no_class() -> None:
    model = load_continuous(GOLDEN, device="cpu")
    known = torch.zeros(2, 16, dtype=torch.bool)
    known[:, 3] = True
    x, labels = torch.randn(2, 16, 4, generator=torch.Generator().manual_seed(1)), torch.tensor([2, 7])
    both = model.backbone.states(x, known, labels, ~known, torch.ones(2))
    uncond = model.backbone.states(x, known, torch.tensor([-1, -1]), ~known).cond
    torch.testing.assert_close(both.uncond, uncond, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    def written(held: dict[str, torch.Tensor], **stated: Any) -> Path:
        torch.save({"model_ema": held}, tmp_path / FILE)
        (tmp_path / "args.json").write_text(json.dumps({**arguments(), **stated}))
        return tmp_path

    whole = tensors()
    for held, stated, match in (
        ({n: v for n, v in whole.items() if n != "mask_token"}, {}, "mask_token"),
        ({**whole, "extra": torch.zeros(1)}, {}, "belong to no part of the model: extra"),
        ({**whole, "decoder_norm.bias": torch.zeros(7)}, {}, "decoder_norm.bias has shape"),
        (whole, {"encoder_depth": 3}, "encoder_depth is 3 in the config"),
        (whole, {"encoder_num_heads": 5}, "5 heads do not divide the encoder"),
        (whole, {"num_sampling_steps": "1"}, "2 to 1000"),
        (whole, {"patch_size": 2}, "patch_size=2"),
    ):
        with pytest.raises(ModelError, match=match):
            load_any(written(held, **stated), device="cpu")
    (tmp_path / "args.json").unlink()
    with pytest.raises(ModelError, match="how many heads"):
        load_any(tmp_path, device="cpu")
    with pytest.raises(ModelError, match="samples vectors"):
        load(GOLDEN, device="cpu")
    with pytest.raises(ModelError, match="predicts ids"):
        load_continuous("tiny-llama", device="cpu")
    with pytest.raises(ModelError, match="mask_id=3"):
        load_any(GOLDEN, device="cpu", mask_id=3)
    with pytest.raises(ModelError, match="no autoencoder"):
        load_continuous(GOLDEN, device="cpu").imaging.decode(torch.zeros(1, 4, 4, 4))
