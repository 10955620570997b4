"""Loading and saving image tokenizers in the format LlamaGen publishes."""

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
from .vq import VQ
from .vq_shape import VQShape
from .weight_files import arguments_file, find_file, read_tensors, write_tensors

PATTERNS = ("vq*.safetensors", "vq*.pt")
_IGNORED = ("quantize.codebook_used",)  # a statistic of training


def load_vq(source: str | os.PathLike[str], *, device: str = "cpu", dtype: torch.dtype = torch.float32) -> VQ:
    """Load an image tokenizer: an embedded name, a folder that holds one `vq*` file, or the file.

    Shape arguments are read off the tensors; a `<file>.args.json` beside the file is compared with them. The tokenizer
    is ready for inference: parameters need no gradient.

    Raises:
        ModelError: the file is damaged or holds something else, in one line.

    >>> load_vq("tiny-vq").shape.codebook_embed_dim
    8
    """
    file = find_vq(os.fspath(source))
    tensors = {name: value for name, value in read_tensors(file).items() if name not in _IGNORED}
    try:
        with reading(str(file)):
            shape = VQShape.of(tensors, read_json(arguments_file(file)))
    except ModelError as error:
        raise ModelError(f"{file}: {error}", error.hint) from error
    with torch.device("meta"):
        model = VQ(shape)
    names.fill(model, file, tensors, names.llamagen, device, dtype)
    return model


def save_vq(model: VQ, file: str | os.PathLike[str], *, dtype: torch.dtype | None = None) -> None:
    """Write the tokenizer under LlamaGen's names, `.pt` or `.safetensors`, and a file with its arguments.
    Raises ModelError for another suffix.
    """
    path = Path(file)
    write_tensors(path, {name: value.to(dtype or value.dtype) for name, value in published_tensors(model).items()})
    arguments_file(path).write_text(json.dumps(asdict(model.shape), indent=1) + "\n", encoding="utf-8")


def published_tensors(model: VQ) -> dict[str, Tensor]:
    """The tensors under their published names and in their published forms."""
    return names.published_tensors(model, names.llamagen)


def find_vq(source: str) -> Path:
    """The file of an embedded tokenizer, of a folder that holds one, or the file itself. Raises ModelError."""
    return find_file(source, "vq", "image tokenizer", PATTERNS)
