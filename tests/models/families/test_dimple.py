"""Dimple's text model: Qwen2 with bidirectional attention; the tensors of the visual tower are ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.plan import Plan
from tests.models.toys import SMALL, library_model, rewrite

VISUAL = {
    "visual.patch_embed.proj.weight": torch.zeros(8, 3, 2, 4, 4),
    "visual.blocks.0.attn.qkv.weight": torch.zeros(24, 8),
    "visual.merger.mlp.0.bias": torch.zeros(8),
    "img_projector.linear_1.weight": torch.zeros(48, 8),
}


def published(folder: Path, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> Any:
    """A random Qwen2 model, saved under Dimple's config together with these further tensors."""
    model = library_model(transformers.Qwen2Config(**SMALL, num_key_value_heads=2))
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | (VISUAL if tensors is None else tensors), file)
    dimple = {"model_type": "dimple", "architectures": ["DimpleModel"], "mask_token_id": 60, "full_attn_mask": True}
    dimple |= {"mrope_section": [2, 2, 2], "vision_config": {"depth": 1}}
    rewrite(folder, **dimple | changes)
    return model


@pytest.mark.parametrize(
    "rope",
    [
        {},
        {"rope_scaling": None, "rope_theta": 10000.0, "rope_parameters": None},
        {"rope_scaling": {"type": "mrope", "mrope_section": [2, 2, 2]}, "rope_theta": 10000.0, "rope_parameters": None},
        {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 2, 2]}, "rope_parameters": None},
    ],
    ids=["none", "null", "mrope", "default with sections"],
)
def test_its_text_is_qwen2_that_sees_everything(rope: dict[str, Any], tmp_path: Path) -> None:
    reference = published(tmp_path, **rope)
    model = load(tmp_path, device="cpu")
    config = model.decoding_config
    assert (model.family, config.shift, config.attention) == ("dimple", 1, "bidirectional")
    assert (config.mask_id, config.masked, config.eos_ids) == (60, True, (2,))
    tokens = torch.randint(0, 61, (2, 18), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens, attention_mask=torch.zeros(2, 1, 18, 18)).logits
    found = model.forward(Plan.full(tokens, model.visible())).logits()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_other_tensors_are_still_named(tmp_path: Path) -> None:
    published(tmp_path, VISUAL | {"audio.weight": torch.zeros(2)})
    with pytest.raises(ModelError, match="1 not known: audio.weight"):
        load(tmp_path, device="cpu")


def test_a_visual_tower_is_not_known_to_other_families(tmp_path: Path) -> None:
    published(tmp_path, model_type="Dream", architectures=["DreamModel"])
    with pytest.raises(ModelError, match="4 not known: .*visual"):
        load(tmp_path, device="cpu")
