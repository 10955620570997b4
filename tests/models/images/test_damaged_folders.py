"""Folders of image models with damage in one file: each is refused in one line, or loads and decodes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import JanusForConditionalGeneration

import pardec
from pardec.models.images.contracts import Condition
from pardec.models.images.latent_vae import LatentVAE
from tests.models import captioned_folders, chameleon_files, emu3_files, nextstep_files
from tests.models.images import test_janus


def janus(folder: Path) -> None:
    torch.manual_seed(0)
    JanusForConditionalGeneration(test_janus.config()).save_pretrained(folder)
    test_janus.processor().save_pretrained(folder)


def emu3_authors(folder: Path) -> None:
    folder.mkdir()
    emu3_files.write_authors(folder, folder / "vision")


def dimoo_vq(folder: Path) -> None:
    captioned_folders.vq().save_pretrained(folder)


WRITERS: dict[str, Callable[[Path], object]] = {
    "janus": janus,
    "emu3": emu3_files.write_library,
    "emu3-authors": emu3_authors,
    "chameleon": chameleon_files.write,
    "lumina": partial(chameleon_files.write, lumina=True),
    "nextstep": nextstep_files.write,
    "vae": partial(nextstep_files.write_vae, plain=False),
    "vae-authors": nextstep_files.write_vae,
    "vq": dimoo_vq,
}
GRIDS = {"janus": (3, 3), "emu3": (2, 3), "emu3-authors": (2, 3), "chameleon": (2, 2), "lumina": (2, 2)}


def use(kind: str, folder: Path) -> None:
    """Loads a folder, encodes a caption if the model reads captions, and decodes an image."""
    if kind.startswith("vae"):
        LatentVAE(folder, torch.device("cpu")).decode(torch.zeros(1, nextstep_files.CHANNELS, 2, 2))
    elif kind == "vq":
        from pardec.models.images.dimoo import DiffusersVQ

        DiffusersVQ(folder, torch.device("cpu")).decode(torch.zeros(1, 2, 2, dtype=torch.int64))
    else:
        more: dict[str, Any] = {"decoder": folder / "vision"} if kind == "emu3-authors" else {}
        model = pardec.load(folder, device="cpu", **more)
        imaging: Any = model.imaging
        if imaging is None:  # damage of the config made it another kind of model
            return
        if kind == "nextstep":
            model.prepare("a red circle", sampler="sequential")
            imaging.decode(torch.zeros(1, 3, 3, nextstep_files.CHANNELS * nextstep_files.PATCH**2))
        else:
            imaging.prefix([Condition(text="a red circle")])
            imaging.decode(torch.zeros(1, *GRIDS[kind], dtype=torch.int64))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The undamaged folder of a kind, written on first use."""
    root = tmp_path_factory.mktemp("whole")

    def made(kind: str) -> Path:
        if not (root / kind).is_dir():
            WRITERS[kind](root / kind)
        return root / kind

    return made


def refusal(kind: str, folder: Path) -> str:
    """The error for a folder; empty if it can be used. Anything else than PardecError is raised."""
    try:
        use(kind, folder)
    except pardec.PardecError as error:
        said = str(error)
    else:
        return ""
    assert "\n" not in said
    assert len(said) < 1100
    return said


def stated(file: Path, key: str, value: Any) -> None:
    held = json.loads(file.read_text())
    *owners, last = key.split(".")
    inner = held
    for owner in owners:
        inner = inner[owner]
    inner[last] = value
    file.write_text(json.dumps(held))


def tensors_of(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        return load_file(file)
    held: dict[str, Any] = torch.load(file, weights_only=True)
    return dict(held.get("state_dict", held))


def written(file: Path, tensors: dict[str, Tensor]) -> None:
    if file.suffix == ".safetensors":
        save_file({name: value.contiguous() for name, value in tensors.items()}, file, metadata={"format": "pt"})
    else:
        torch.save(tensors, file)


SETTINGS = (
    ("janus", "config.json", "vq_config.num_res_blocks", "x"),
    ("janus", "config.json", "text_config", 3),
    ("emu3", "config.json", "vq_config", [1]),
    ("emu3", "config.json", "vq_config.base_channels", "x"),
    ("emu3", "preprocessor_config.json", "image_mean", "x"),
    ("emu3", "processor_config.json", "image_area", [1]),
    ("emu3", "processor_config.json", "image_area", -1),
    ("emu3-authors", "vision/config.json", "ch_mult", {"a": 1}),
    ("emu3-authors", "config.json", "image_area", "x"),
    ("chameleon", "config.json", "image_seq_length", {"a": 1}),
    ("chameleon", "tokenizer_config.json", "model_max_length", "x"),
    ("lumina", "config.json", "vocabulary_map", 7),
    ("nextstep", "config.json", "fm_head_dim", 10**9),
    ("nextstep", "config.json", "latent_patch_size", "x"),
    ("nextstep", "config.json", "boi", [1]),
    ("vae", "config.json", "block_out_channels", 7),
    ("vae", "config.json", "latent_channels", -1),
    ("vae", "config.json", "scaling_factor", [1]),
    ("vae", "config.json", "norm_num_groups", 0),
    ("vae-authors", "config.json", "ch_mult", "x"),
    ("vae-authors", "config.json", "ch", 10**9),
    ("vq", "config.json", "block_out_channels", "x"),
)


@pytest.mark.parametrize(("kind", "file", "key", "value"), SETTINGS)
def test_damaged_settings_of_an_image_model_are_refused_in_one_line(
    kind: str, file: str, key: str, value: Any, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole(kind), tmp_path / "damaged"))
    stated(folder / file, key, value)
    assert refusal(kind, folder)


WEIGHTS = (
    ("janus", "model.safetensors", "model.language_model.norm.weight"),
    ("emu3", "model.safetensors", "vqmodel.decoder.conv_in.weight"),
    ("emu3-authors", "vision/model.safetensors", "decoder.conv_in.weight"),
    ("chameleon", "vqgan.ckpt", "decoder.conv_in.weight"),
    ("nextstep", "model-00001-of-00002.safetensors", "embed_tokens.weight"),
    ("vae", "diffusion_pytorch_model.safetensors", "decoder.conv_in.weight"),
    ("vae-authors", "checkpoint.pt", "decoder.conv_in.weight"),
    ("vq", "diffusion_pytorch_model.safetensors", "decoder.conv_in.weight"),
)


@pytest.mark.parametrize(("kind", "file", "name"), WEIGHTS)
def test_damaged_weights_of_an_image_model_are_refused_in_one_line(
    kind: str, file: str, name: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(whole(kind), tmp_path / "damaged"))
    target, tensors = folder / file, tensors_of(folder / file)
    value = tensors[name]
    for changed in (
        {each: tensor for each, tensor in tensors.items() if each != name},
        {**tensors, name: value.int()},
        {**tensors, name: value.flatten()[: value.numel() // 2].clone()},
    ):
        written(target, changed)
        assert refusal(kind, folder)
    target.write_bytes((whole(kind) / file).read_bytes()[:-7])
    assert refusal(kind, folder)


def test_damaged_chat_template_of_janus_is_refused_in_one_line(whole: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(whole("janus"), tmp_path / "damaged"))
    (folder / "chat_template.jinja").write_text(test_janus.TEMPLATE[:-5])
    assert "chat template" in refusal("janus", folder)


@pytest.mark.slow
@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_files_of_an_image_model_end_well_or_in_one_line(
    kind: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    rng, odd = Random(kind), ("x", [1], {"a": 1}, None, -1, 0, 10**9, True, 1.5, "")
    files = sorted(file.relative_to(whole(kind)) for file in whole(kind).rglob("*") if file.is_file())
    for case in range(40):
        folder = Path(shutil.copytree(whole(kind), tmp_path / str(case)))
        file = folder / rng.choice(files)
        if file.suffix == ".json" and file.name not in ("tokenizer.json", "model.safetensors.index.json"):
            held = json.loads(file.read_text())
            inner = rng.choice([held, *(each for each in held.values() if isinstance(each, dict) and each)])
            inner[rng.choice(sorted(inner))] = rng.choice(odd)
            file.write_text(json.dumps(held))
        elif file.suffix in (".safetensors", ".ckpt", ".pt"):
            tensors = tensors_of(file)
            name = rng.choice(sorted(tensors))
            value = tensors.pop(name)
            changes = (
                value.int(), value.bool(), torch.tensor(1.0), value.flatten().clone(), value[None], torch.empty(0),
            )  # fmt: skip
            if rng.random() < 0.8:
                tensors[name] = rng.choice(changes)
            written(file, tensors)
        else:
            data = file.read_bytes()
            file.write_bytes(data[: rng.randrange(len(data) + 1)])
        try:
            refusal(kind, folder)
        except Exception as error:
            raise AssertionError(f"case {case}, {file.relative_to(folder)}: {error!r}") from error
        shutil.rmtree(folder)
