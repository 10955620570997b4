"""Emu3's image interface: a prompt that names the token grid in words, rows with an end, and the VQ of transformers.

Emu3: Next-Token Prediction is All You Need, https://arxiv.org/abs/2409.18869

    prompt   <bos> caption <image start> h*w <image token>        unconditional: the same with a negative prompt
    image    h times: w codes, <end of row>;  then <end of frame> <image end> <eos>, each the only token in its position

The authors end every caption with a few words of praise and have a negative prompt of their own: both are defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import finite
from ..errors import ArgumentError, ModelError
from ..files.sources import read_json
from .conditioned import Prefix
from .contracts import Condition, ImageLayout, ImagingParts
from .emu3_vq import Emu3VQ
from .emu3_words import Emu3Words

SUFFIX = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_k": 2048, "cfg": 3.0}  # of the authors
_AREA = 720 * 720  # pixels of the images that it was trained on


class Emu3Imaging:
    """The image interface of one Emu3 checkpoint."""

    kind: Literal["text"] = "text"
    classes = 0

    def __init__(
        self,
        words: Emu3Words,
        embedding: Callable[[], Tensor],
        *,
        vq: Emu3VQ | None,
        downsample: int,
        area: int = _AREA,
        defaults: Mapping[str, Any] | None = None,
        name: str = "this model",
    ) -> None:
        """`embedding` gives the decoder's input embeddings [V, E]; `vq` is the image tokenizer, loaded on first use."""
        self.words, self.embedding, self.vq, self.name = words, embedding, vq, name
        self.downsample = downsample
        self.defaults = {**_DEFAULTS, **(defaults or {})}
        side = max(round(area**0.5 / downsample), 1)
        tokens = words.tokens
        self.layout = ImageLayout(
            side, side, row_end=tokens.row_end, closing=(tokens.frame_end, tokens.image_end, tokens.eos), ids=words.ids
        )

    @property
    def sizes(self) -> str | None:
        return f"multiples of {self.downsample} pixels"

    def resized(self, height: int, width: int) -> Emu3Imaging:
        if height % self.downsample or width % self.downsample or min(height, width) < 1:
            raise ArgumentError(
                f"size is {height} by {width} pixels, and {self.name} draws {self.sizes}",
                f"for example size=({self._near(height)}, {self._near(width)})",
            )
        other = copy(self)
        other.layout = replace(self.layout, rows=height // self.downsample, columns=width // self.downsample)
        return other

    def _near(self, pixels: int) -> int:
        return max(round(pixels / self.downsample), 1) * self.downsample

    @property
    def can_decode(self) -> bool:
        return self.vq is not None

    @property
    def codebook(self) -> Tensor | None:
        return None if self.vq is None else self.vq.codebook

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {}

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        table = self.embedding()
        cond, uncond = [], []
        for row, condition in enumerate(conditions):
            caption = condition.own_caption(self.name, row)
            cond.append(self._states(table, caption if caption.endswith(SUFFIX) else caption + SUFFIX))
            uncond.append(self._states(table, condition.negative or NEGATIVE))
        return Prefix(tuple(cond), tuple(uncond))

    def prompt(self, caption: str) -> Tensor:
        """[P] int64: the prompt for an image of `caption`; it ends before the first code."""
        return self.words.prompt(caption, self.layout.grid)

    def _states(self, table: Tensor, caption: str) -> Tensor:
        return F.embedding(self.prompt(caption).to(table.device), table)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        if self.vq is None:
            raise ModelError(
                f"{self.name} has no image tokenizer, so its codes cannot be decoded",
                'load it with decoder="BAAI/Emu3-VisionTokenizer", or a folder with its files',
            )
        return finite.pixels(self.name, self.vq.decode(codes), self.vq.network)


def build(parts: ImagingParts) -> Emu3Imaging:
    """The image interface of an Emu3 checkpoint. Raises ModelError for an unsuitable vocabulary or image tokenizer."""
    assert parts.embedding is not None, "of the stack"
    name = parts.source.name
    words = Emu3Words.of(parts)
    vq = Emu3VQ.of(parts)
    if vq is not None and vq.config.codebook_size != len(words.ids):
        raise ModelError(
            f"the vocabulary of {name} has {len(words.ids)} codes of images, but its image tokenizer "
            f"has {vq.config.codebook_size}",
            "name the image tokenizer that it was trained with",
        )
    area = parts.config.get("image_area") or _area(parts) or _AREA
    if not isinstance(area, int) or area < 1:
        raise ModelError(f"image_area of {name} is {area!r}", "it must be the number of pixels of an image")
    settings = read_json(parts.source.folder / "generation_config.json")
    own = {key: settings[key] for key in ("temperature", "top_k", "top_p") if settings.get(key) is not None}
    if settings.get("guidance_scale"):
        own["cfg"] = float(settings["guidance_scale"])
    return Emu3Imaging(
        words,
        parts.embedding,
        vq=vq,
        downsample=8 if vq is None else vq.downsample,
        area=area,
        defaults=own,
        name=name,
    )


def _area(parts: ImagingParts) -> Any:
    return read_json(parts.source.folder / "processor_config.json").get("image_area")
