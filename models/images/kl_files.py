"""Loading and saving KL autoencoders in the format that latent diffusion and MAR publish."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from ..errors import ModelError
from ..files.configs import reading
from ..files.sources import read_json
from . import autoencoder_names as names
from .kl import KL, SCALE
from .kl_shape import KLShape
from .weight_files import arguments_file, find_file, read_tensors, write_tensors

PATTERNS = ("kl*.safetensors", "kl*.ckpt", "kl*.pt", "kl*.pth")
_WHAT = "KL autoencoder"


def load_kl(
    source: str | os.PathLike[str],
    *,
    scale: float | None = None,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> KL:
    """Load a KL autoencoder: an embedded name, a folder that holds one `kl*` file, or the file, also "owner/name/file".

    Shape arguments are read off the tensors, and the encoder may be absent. `scale` is what latents are multiplied by;
    if None it is the one that `<file>.args.json` beside the file states, else MAR's. The autoencoder is ready for
    inference: parameters need no gradient.

    Raises:
        ModelError: the file is damaged or holds something else, in one line.
    """
    file = find_kl(os.fspath(source))
    tensors = {name: value for name, value in read_tensors(file).items() if not names.UNUSED.match(name)}
    try:
        with reading(str(file)):
            shape = KLShape.of(tensors)
        with torch.device("meta"):
            model = KL(shape, scale=_scale(file) if scale is None else scale)
    except ModelError as error:
        raise ModelError(f"{file}: {error}", error.hint) from error
    if not shape.encoder:
        tensors = {name: value for name, value in tensors.items() if not name.startswith("quant_conv.")}
    names.fill(model.network, file, tensors, names.latent_diffusion(len(shape.widths)), device, dtype)
    return model.eval()


def save_kl(model: KL, file: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
    """Write the autoencoder under its published names, `.pt` or `.safetensors`, and a file with its shape and scale.
    Raises ModelError for another suffix.
    """
    path = Path(file)
    write_tensors(path, {name: value.to(dtype or value.dtype) for name, value in published_tensors(model).items()})
    arguments = {**asdict(model.shape), "scale": model.scale}
    arguments_file(path).write_text(json.dumps(arguments, indent=1) + "\n", encoding="utf-8")


def published_tensors(model: KL) -> dict[str, Tensor]:
    """The tensors under their published names and in their published forms."""
    return names.published_tensors(model.network, names.latent_diffusion(len(model.shape.widths)))


def find_kl(source: str) -> Path:
    """The file of an embedded autoencoder, of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "kl", _WHAT, PATTERNS)


def _scale(file: Path) -> float:
    """The scale in the file of arguments next to the weights, else MAR's."""
    scale = read_json(arguments_file(file)).get("scale", SCALE)
    if not isinstance(scale, int | float) or isinstance(scale, bool):
        raise ModelError(f"the scale of latents must be a number, got {scale!r}")
    return float(scale)
