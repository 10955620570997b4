"""Tensors that the decoder does not read: compared with computed values, refused, or named in one warning."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.load import load, load_any
from pardec.models.loading.update import load_weights
from tests.models import chameleon_files, nextstep_files
from tests.models.emu3_files import write_library
from tests.models.families import test_diffusion_gemma, test_dimple, test_nemotron
from tests.models.llamagen_files import ARGUMENTS, CELLS, WIDTH, tensors, write
from tests.models.toys import llama_config, llama_tensors, write_checkpoint


def llama(folder: Path) -> None:
    write_checkpoint(folder, llama_config(), llama_tensors(llama_config()))


def chameleon(folder: Path) -> None:
    chameleon_files.write(folder)


def nextstep(folder: Path) -> None:
    folder.rmdir()
    nextstep_files.write(folder)


def warned(folder: Path) -> list[str]:
    """The warnings of loading."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        load_any(folder, device="cpu")
    return [str(each.message) for each in said if each.category is UserWarning]


def add(folder: Path, more: dict[str, Tensor]) -> None:
    file = folder / "model.safetensors"
    save_file({**load_file(file), **more}, file)


def grid_rotation() -> Tensor:
    """The rotary table as LlamaGen's authors compute it: one row of zeros for the class, then one row per code."""
    quarter = WIDTH // ARGUMENTS["n_head"] // 4
    base = torch.tensor([10000.0 ** (-index / quarter) for index in range(quarter)])
    side = round(CELLS**0.5)
    rows = [torch.cat((row * base, column * base)) for row in range(side) for column in range(side)]
    angles = torch.stack(rows)
    return torch.cat((torch.zeros(1, 2 * quarter, 2), torch.stack((angles.cos(), angles.sin()), -1)))


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "of another base": lambda right: torch.cat((right[:1], right[1:].roll(1, 1))),
    "of another grid": lambda right: right[:-1],
    "flat": lambda right: right.flatten(1),
    "not zero for the class": lambda right: right + torch.eye(len(right))[0][:, None, None],
    "NaN": lambda right: right * torch.nan,
    "whole numbers": lambda right: right.long(),
}


def test_unread_rotation_of_a_grid_is_the_one_computed(tmp_path: Path) -> None:
    right = grid_rotation()
    model = load(write(tmp_path, {**tensors(), "freqs_cis": right}, ARGUMENTS), device="cpu")
    load(write(tmp_path, {**tensors(), "freqs_cis": right.bfloat16()}, ARGUMENTS), device="cpu")
    for change in WRONG.values():
        file = write(tmp_path, {**tensors(), "freqs_cis": change(right)}, ARGUMENTS)
        with pytest.raises(ModelError, match="freqs_cis does not match the rotation"):
            load(file, device="cpu")
        with pytest.raises(ModelError, match="freqs_cis does not match the rotation"):
            load_weights(model, file)


@pytest.mark.parametrize(
    ("make", "more", "said"),
    [
        (
            llama,
            {"medusa_head.0.0.linear.weight": torch.ones(16, 16)},
            r"1 tensors .* does not use them: medusa_head\.0",
        ),
        (test_dimple.published, {}, r"4 tensors .* does not use them: .*visual\."),
        (test_diffusion_gemma.published, {"model.encoder.vision_tower.a": torch.ones(2)}, r"vision_tower\.a"),
        (chameleon, {}, r"does not use them: model\.vqmodel\.encoder"),
        (write_library, {}, r"does not use them: .*vqmodel\.encoder"),
        (nextstep, {}, r"2 tensors .* does not use them: gen_pos_embed, lm_head\.weight"),
    ],
    ids=["medusa heads", "dimple", "diffusion gemma", "chameleon", "emu3", "nextstep"],
)
def test_unread_parts_are_named_in_one_line(
    make: Callable[[Path], object], more: dict[str, Tensor], said: str, tmp_path: Path
) -> None:
    make(tmp_path)
    if more:
        add(tmp_path, more)
    (line,) = warned(tmp_path)
    assert re.search(said, line), line
    assert "\n" not in line
    assert ".decoder." not in line


def test_unread_scales_of_a_cache_are_named_unless_they_are_one(tmp_path: Path) -> None:
    test_nemotron.published(tmp_path)
    assert not warned(tmp_path)
    add(tmp_path, {"encoder.layers.1.self_attn.k_scale": torch.tensor([0.5])})
    (line,) = warned(tmp_path)
    assert "1 scales of an 8-bit KV cache are ignored" in line
    assert "encoder.layers.1.self_attn.k_scale" in line


def test_unread_tensors_of_an_encoder_have_one_of_the_decoder(tmp_path: Path) -> None:
    test_diffusion_gemma.published(tmp_path)
    add(tmp_path, {"model.encoder.language_model.layers.0.self_attn.gate.weight": torch.ones(2)})
    with pytest.raises(ModelError, match=r"language_model\.layers\.0\.self_attn\.gate\.weight is unknown"):
        load(tmp_path, device="cpu")
