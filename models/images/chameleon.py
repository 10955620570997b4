"""The image interfaces of Chameleon and Anole, and of Lumina-mGPT, whose rows end with a token.

Chameleon: Mixed-Modal Early-Fusion Foundation Models, https://arxiv.org/abs/2405.09818
Lumina-mGPT: Illuminate Flexible Photorealistic Text-to-Image Generation, https://arxiv.org/abs/2408.02657

    Chameleon, Anole   <s> caption <end of turn> <begin image>;  1024 codes, <end image>
                       unconditional: <s> <begin image>
    Lumina-mGPT        <s> "Generate an image of WxH according to the following prompt:\\n" caption <end of turn>
                       <begin image> <H / 32> <W / 32>;  H / 16 times: W / 16 codes, <end of row>;  <end image>
                       unconditional: from <begin image> on

Lumina-mGPT's authors let the model say how large its image is, which the prompt states already; here it is given.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ModelError
from .captioned import CaptionedImaging, generation_defaults
from .chameleon_words import ChameleonWords
from .contracts import AnySize, ImageLayout, ImagingParts, OneSize
from .vqgan import PATTERNS, VQGAN, find_vqgan, load_vqgan
from .weight_files import only_file

_DOWNSAMPLE = 16  # pixels per code
_STEP = 32  # pixels per unit of Lumina-mGPT's grid tokens
_DEFAULTS: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.9, "cfg": 3.0}  # defaults of Chameleon's authors
_LUMINA_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_k": 2000, "cfg": 3.0}
_TEMPLATE = "Generate an image of {width}x{height} according to the following prompt:\n{caption}"


class ChameleonImaging(OneSize, CaptionedImaging):
    """The image interface of one Chameleon or Anole checkpoint."""

    where = 'load it with decoder="vqgan.ckpt", or put that file beside the weights'
    own_defaults: ClassVar[Mapping[str, Any]] = _DEFAULTS

    def __init__(
        self,
        words: ChameleonWords,
        embedding: Callable[[], Tensor],
        *,
        decoder: str | None,
        tokens: int = 1024,
        defaults: Mapping[str, Any] | None = None,
        device: torch.device | str = "cpu",
        name: str = "this model",
    ) -> None:
        """`embedding` gives the decoder's input embeddings [V, E]; `decoder` names the VQGAN, loaded on first use."""
        self.words = words
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise ModelError(f"{name} has {tokens} codes per image, which is no square number")

        def load() -> VQGAN:
            assert decoder is not None, "there is one"
            vqgan = load_vqgan(decoder, device=device)
            if vqgan.shape.codes != len(words.ids):
                raise ModelError(
                    f"the image tokenizer {decoder} has {vqgan.shape.codes} codes, but {name} has {len(words.ids)}",
                    "name the image tokenizer that the model was trained with",
                )
            return vqgan

        super().__init__(
            name,
            self._layout(side),
            words.tokenizer,
            embedding,
            load=None if decoder is None else load,
            defaults={**self.own_defaults, **(defaults or {})},
        )

    def _layout(self, side: int) -> ImageLayout:
        return ImageLayout(side, side, closing=(self.words.image_end,), ids=self.words.ids)

    @property
    def downsample(self) -> int:
        return self.decoder.downsample if self.can_decode else _DOWNSAMPLE

    @property
    def codebook(self) -> Tensor | None:  # type: ignore[override]
        return self.decoder.codebook.weight if self.can_decode else None

    def ids(self, caption: str | None) -> list[int]:
        return self.unconditional() if caption is None else self.prompt(caption)

    def prompt(self, caption: str) -> list[int]:
        """The ids before an image of this caption."""
        return [*self.words.message(caption), self.words.image_start]

    def unconditional(self) -> list[int]:
        """The ids before an image of no caption."""
        return [self.words.bos, self.words.image_start]


class LuminaImaging(AnySize, ChameleonImaging):
    """The image interface of one Lumina-mGPT checkpoint."""

    own_defaults = _LUMINA_DEFAULTS
    step = _STEP
    token_pixels = _DOWNSAMPLE

    def _layout(self, side: int) -> ImageLayout:
        words = self.words
        self.most_pixels = words.most_grid * _STEP
        return ImageLayout(side, side, row_end=words.row_end, closing=(words.image_end,), ids=words.ids)

    def prompt(self, caption: str) -> list[int]:
        rows, columns = self.layout.grid
        text = _TEMPLATE.format(width=columns * _DOWNSAMPLE, height=rows * _DOWNSAMPLE, caption=caption)
        return [*self.words.message(text), *self.unconditional()]

    def unconditional(self) -> list[int]:
        rows, columns = (counts * _DOWNSAMPLE // _STEP for counts in self.layout.grid)
        return [self.words.image_start, self.words.grid(rows), self.words.grid(columns)]


def build(parts: ImagingParts) -> ChameleonImaging:
    """The image interface of a checkpoint. Raises ModelError for an unsuitable vocabulary or image tokenizer."""
    assert parts.embedding is not None, "of the stack"
    name, folder = parts.source.name, parts.source.folder
    decoder = parts.decoder
    if decoder is not None:
        find_vqgan(decoder)
    else:
        beside = only_file(folder, PATTERNS)
        decoder = None if beside is None else str(beside)
    own = generation_defaults(folder)
    lumina = _is_lumina(parts.config, name)
    words = ChameleonWords.of(parts, rows=lumina)
    size = _size(parts.config, name) if lumina else 0
    tokens = (size // _DOWNSAMPLE) ** 2 if lumina else int(parts.config.get("image_seq_length") or 1024)
    make = LuminaImaging if lumina else ChameleonImaging
    return make(words, parts.embedding, decoder=decoder, tokens=tokens, defaults=own, device=parts.device, name=name)


def _is_lumina(config: Mapping[str, Any], name: str) -> bool:
    """Whether images have sizes and end tokens of rows: by the architecture in the config, or the name."""
    named = " ".join(map(str, config.get("architectures") or ()))
    return "XLLMX" in named or "lumina" in name.lower()


def _size(config: Mapping[str, Any], name: str) -> int:
    """Pixels of the images that a checkpoint was trained on, by its config or its name."""
    stated = config.get("image_size")
    if isinstance(stated, int):
        return stated
    return next((size for size in (512, 768, 1024) if str(size) in name), 768)
