"""Lumina-DiMOO's pictures: a caption in a chat template, the grid between tags, rows that end with a newline.

Lumina-DiMOO: An Omni Diffusion Large Language Model for Multi-Modal Generation and Understanding,
https://arxiv.org/abs/2510.06308

    <system>instruction</system><user>caption</user> answer image (codes newline) * rows end-of-image end-of-answer

Without a caption `<uncondition>` stands in its place. Codes are those of a VQ model that diffusers runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, one_line
from ..files.sources import Source, read_json
from ..files.weights import inspect
from ..hf.adapt import check_info
from ..loading.unread import check_floating
from .captioned import CaptionedImaging, codes, grid, reader
from .contracts import AnySize, ImageLayout, ImagingParts

NEWLINE, IMAGE, IMAGE_END, ANSWER, ANSWER_END, CODES = 126084, 126349, 126350, 126354, 126355, 126356
FOLDER = "vqvae"  # where the VQ model lies in the checkpoint's folder
_INSTRUCTION = "Generate an image according to the text prompt."
_NOTHING = "<uncondition>"
_PIXELS = 16  # pixels
_TOKENS = 64 * 64  # tokens of the authors' pictures, which have 1024 by 1024 pixels
# (1 + s) c - s u of the published loop with s = 4.
_DEFAULTS = {"temperature": 1.0, "cfg": 5.0, "sampler": "maskgit:steps=64,noise=1.0,anneal=none"}


class DiMOOImaging(AnySize, CaptionedImaging):
    """The image interface of one Lumina-DiMOO checkpoint."""

    where = f'load it with decoder="FOLDER" of the VQ model, or put the VQ model into {FOLDER}/ beside the weights'

    def ids(self, caption: str | None) -> list[int]:
        text = f"<system>{_INSTRUCTION}</system><user>{_NOTHING if caption is None else caption}</user>"
        return [*self.read(text), ANSWER, IMAGE]

    @property
    def token_pixels(self) -> int:
        """Pixels per code along one side; without an image tokenizer, the published one's."""
        return self.downsample if self.can_decode else _PIXELS


class DiffusersVQ(torch.nn.Module):
    """A VQ model of diffusers; its pixels lie in [0, 1]."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Raises ModelError for a folder that holds none."""
        from diffusers import VQModel

        super().__init__()
        check_floating(str(folder), {}, inspect(folder.glob("*.safetensors")))
        try:
            vq, info = VQModel.from_pretrained(
                folder,
                local_files_only=True,
                torch_dtype=torch.float32,
                lookup_from_codebook=True,
                output_loading_info=True,
            )
        except Exception as error:  # diffusers and its files fail in many ways
            raise ModelError(f"{folder} does not hold a usable VQ model: {one_line(error)}") from error
        check_info(vq, info)
        self.vq = vq.to(device).eval().requires_grad_(False)

    @property
    def codebook_size(self) -> int:
        """The number of codes."""
        return int(self.vq.config.num_vq_embeddings)

    @property
    def downsample(self) -> int:
        return int(2 ** (len(self.vq.config.block_out_channels) - 1))

    def decode(self, codes: Tensor) -> Tensor:
        width = self.vq.config.vq_embed_dim or self.vq.config.latent_channels
        codes = codes.to(next(self.vq.parameters()).device)
        pixels: Tensor = self.vq.decode(codes.flatten(), force_not_quantize=True, shape=(*codes.shape, width)).sample
        return pixels.float() * 2 - 1


def build(parts: ImagingParts) -> DiMOOImaging:
    """The image interface of a Lumina-DiMOO checkpoint."""
    tokenizer, embedding = reader(parts)
    first, count = parts.config.get("text_vocab_size") or CODES, parts.config.get("codebook_size") or 8192
    side, folder = grid(parts, _TOKENS), _folder(parts)

    def load() -> DiffusersVQ:
        assert folder is not None, "there is one"
        vq = DiffusersVQ(folder, parts.device)
        if vq.codebook_size != count:
            raise ModelError(f"{parts.source.name} has {count} codes, and its image tokenizer has {vq.codebook_size}")
        return vq

    ids = codes(parts, first, count)
    layout = ImageLayout(side, side, row_end=NEWLINE, closing=(IMAGE_END, ANSWER_END), ids=ids)
    loader = None if folder is None else load
    return DiMOOImaging(parts.source.name, layout, tokenizer, embedding, load=loader, defaults=_DEFAULTS)


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """The authors' arguments of sampling."""
    return dict(_DEFAULTS)


def _folder(parts: ImagingParts) -> Path | None:
    """The folder of the VQ model: the one that the caller names or a folder in it, or the one with the weights."""
    named = Path(parts.decoder or parts.source.folder).expanduser()
    for folder in (named / FOLDER, named) if parts.decoder else (named / FOLDER,):
        if read_json(folder / "config.json").get("_class_name") == "VQModel":
            return folder
    if parts.decoder:
        raise ModelError(f"{named} holds no VQ model", f"name the folder with its config.json, or one with {FOLDER}/")
    return None
