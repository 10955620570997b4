"""Loading and saving multi-scale image tokenizers in the format that VAR publishes."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ModelError
from ..files.sources import read_json
from ..images.autoencoders import described, from_published, latent_diffusion, to_published
from ..images.weight_files import arguments_file, check_names, find_file, read_tensors, write_tensors
from .contracts import Scales
from .tokenizer import MultiScaleVQ, TokenizerShape

PATTERNS = ("vae*.safetensors", "vae*.pth", "vae*.pt")
_IGNORED = ("quantize.ema_vocab_hit_SV",)  # a counter of training


def published(name: str, levels: int, convolutions: int) -> tuple[str, int | None]:
    """The published name of a tensor of a `MultiScaleVQ`, and the index of its third; None: the whole tensor.

    >>> published("decoder.up_blocks.0.attentions.1.to_k.weight", 2, 4)
    ('decoder.up.1.attn.1.qkv.weight', 1)
    """
    if hit := re.match(r"convolutions\.(\d+)\.(.*)", name):
        key = "qresi" if convolutions == 1 else f"qresi_ls.{hit[1]}"
        return f"quantize.quant_resi.{key}.{hit[2]}", None
    theirs = latent_diffusion(levels)(name)
    whole = re.sub(r"\.[qkv]\.(weight|bias)$", r".qkv.\1", theirs)
    return whole, None if whole == theirs else "qkv".index(theirs.split(".")[-2])


def load_tokenizer(
    source: str | os.PathLike[str],
    scales: Scales | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> MultiScaleVQ:
    """Load a tokenizer: an embedded name, a folder that holds one `vae*` file, or the file, also "owner/name/file".

    Shape arguments are read off the tensors; a `<file>.args.json` beside the file is compared with them, and states the
    sides where `scales` are not given. The tokenizer is ready for inference: parameters need no gradient.

    Raises:
        ModelError: the file is damaged or holds something else, in one line, or nothing states the sides.
    """
    file = find_tokenizer(os.fspath(source))
    tensors = {name: value for name, value in read_tensors(file).items() if name not in _IGNORED}
    arguments = read_json(arguments_file(file))
    with described(file):
        shape = TokenizerShape.of(tensors, arguments)
        if scales is None and "patch_nums" not in arguments:
            raise ModelError(
                f"{file} comes without the sides of its token maps",
                f'write {{"patch_nums": [...]}} into {arguments_file(file).name}',
            )
        model = MultiScaleVQ(shape, scales or Scales.read(arguments["patch_nums"]))
    if not shape.encoder:
        tensors = {name: value for name, value in tensors.items() if not name.startswith("quant_conv.")}
    check_names(file, tensors, {name: tuple(value.shape) for name, value in published_tensors(model).items()})
    ours = {}
    for name in model.state_dict():
        theirs, part = _of(name, model)
        value = tensors[theirs] if part is None else tensors[theirs].chunk(3)[part]
        ours[name] = from_published(theirs, value).to(device, dtype).contiguous()
    model.load_state_dict(ours, assign=True)
    return model.eval().requires_grad_(False)


def save_tokenizer(model: MultiScaleVQ, file: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
    """Write the tokenizer under its published names, `.pt` or `.safetensors`, and a file with its arguments.
    Raises ModelError for another suffix.
    """
    path = Path(file)
    write_tensors(path, {name: value.to(dtype or value.dtype) for name, value in published_tensors(model).items()})
    arguments = {**asdict(model.shape), "patch_nums": list(model.scales.sides)}
    arguments_file(path).write_text(json.dumps(arguments, indent=1) + "\n", encoding="utf-8")


def published_tensors(model: MultiScaleVQ) -> dict[str, Tensor]:
    """The tensors under their published names and in their published forms."""
    parts: dict[str, dict[int | None, Tensor]] = {}
    for name, value in model.state_dict().items():
        theirs, part = _of(name, model)
        parts.setdefault(theirs, {})[part] = value
    whole = {
        name: each[None] if None in each else torch.cat([each[part] for part in range(3)])
        for name, each in parts.items()
    }
    return {name: to_published(name, value) for name, value in whole.items()}


def find_tokenizer(source: str) -> Path:
    """The file of an embedded tokenizer, of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "vae", "multi-scale image tokenizer", PATTERNS)


def _of(name: str, model: MultiScaleVQ) -> tuple[str, int | None]:
    return published(name, len(model.shape.widths), model.shape.share_quant_resi)
