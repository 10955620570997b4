"""Emu3's image interface: a prompt that names the token grid in words, rows with an end, and the VQ of transformers.

Emu3: Next-Token Prediction is All You Need, https://arxiv.org/abs/2409.18869

    prompt   <bos> caption <image start> h*w <image token>        unconditional: the same with a negative prompt
    image    h times: w codes, <end of row>;  then <end of frame> <image end> <eos>, each the only token in its position

The authors end every caption with a few words of praise and have a negative prompt of their own: both are defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..errors import ModelError
from ..files.sources import read_json
from .captioned import CaptionedImaging, generation_defaults
from .contracts import AnySize, Condition, ImageLayout, ImagingParts
from .emu3_vq import Emu3VQ
from .emu3_words import Emu3Words

SUFFIX = " masterpiece, film grained, best quality."
NEGATIVE = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, "
    "low quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_k": 2048, "cfg": 3.0}  # defaults of the authors
_AREA = 720 * 720  # pixels of the images that it was trained on


class Emu3Imaging(AnySize, CaptionedImaging):
    """The image interface of one Emu3 checkpoint."""

    where = 'load it with decoder="BAAI/Emu3-VisionTokenizer", or a folder with its files'

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
        self.words, self._downsample = words, downsample
        side = max(round(area**0.5 / downsample), 1)
        tokens = words.tokens
        closing = tokens.frame_end, tokens.image_end, tokens.eos
        super().__init__(
            name,
            ImageLayout(side, side, row_end=tokens.row_end, closing=closing, ids=words.ids),
            words.tokenizer,
            embedding,
            load=None if vq is None else lambda: vq,
            defaults={**_DEFAULTS, **(defaults or {})},
        )

    @property
    def downsample(self) -> int:
        return self._downsample

    token_pixels = downsample

    @property
    def codebook(self) -> Tensor | None:  # type: ignore[override]
        return self.decoder.codebook if self.can_decode else None

    def caption(self, condition: Condition, row: int) -> str:
        text = super().caption(condition, row)
        return text if text.endswith(SUFFIX) else text + SUFFIX

    def ids(self, caption: str | None) -> Tensor:
        return self.prompt(caption or NEGATIVE)

    def prompt(self, caption: str) -> Tensor:
        """[P] int64: the prompt for an image of `caption`; it ends before the first code."""
        return self.words.prompt(caption, self.layout.grid)


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
    return Emu3Imaging(
        words,
        parts.embedding,
        vq=vq,
        downsample=8 if vq is None else vq.downsample,
        area=area,
        defaults=generation_defaults(parts.source.folder),
        name=name,
    )


def _area(parts: ImagingParts) -> Any:
    return read_json(parts.source.folder / "processor_config.json").get("image_area")
