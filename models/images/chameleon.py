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
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError
from ..files.sources import Source
from ..files.tokenizers import load_tokenizer
from .captioned import CaptionedImaging, generation_defaults
from .code_words import CodeWords
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
        side = math.isqrt(max(tokens, 0))
        if not side or side * side != tokens:
            raise ModelError(
                f"{name} has {tokens} codes per image, which is no square number", "correct image_seq_length"
            )

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
            defaults=defaults,
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

    step = _STEP
    token_pixels = _DOWNSAMPLE

    def _layout(self, side: int) -> ImageLayout:
        words = self.words
        self.most_pixels, pixels = words.most_grid * _STEP, side * _DOWNSAMPLE
        if pixels > self.most_pixels:
            raise ModelError(
                f"{words.name} has no token for images of {pixels} pixels, only up to {self.most_pixels}",
                "correct image_size",
            )
        return ImageLayout(side, side, row_end=words.row_end, closing=(words.image_end,), ids=words.ids)

    def prompt(self, caption: str) -> list[int]:
        rows, columns = self.layout.grid
        text = _TEMPLATE.format(width=columns * _DOWNSAMPLE, height=rows * _DOWNSAMPLE, caption=caption)
        return [*self.words.message(text), *self.unconditional()]

    def unconditional(self) -> list[int]:
        rows, columns = (counts * _DOWNSAMPLE // _STEP for counts in self.layout.grid)
        return [self.words.image_start, self.words.grid(rows), self.words.grid(columns)]


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults in generation_config.json; for the others, the authors' values."""
    own = _LUMINA_DEFAULTS if _is_lumina(config, source.name) else _DEFAULTS
    return {**own, **generation_defaults(source.folder)}


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
    own = defaults(parts.source, parts.config)
    lumina = _is_lumina(parts.config, name)
    words = ChameleonWords.of(parts, rows=lumina)
    size = _size(parts.config, name) if lumina else 0
    stated = parts.config.get("image_seq_length")
    tokens = (size // _DOWNSAMPLE) ** 2 if lumina else 1024 if stated is None else stated
    make = LuminaImaging if lumina else ChameleonImaging
    return make(words, parts.embedding, decoder=decoder, tokens=tokens, defaults=own, device=parts.device, name=name)


def _is_lumina(config: Mapping[str, Any], name: str) -> bool:
    """Whether images have sizes and end tokens of rows: by the architecture in the config, or the name."""
    named = " ".join(map(str, config.get("architectures") or ()))
    return "XLLMX" in named or "lumina" in name.lower()


def _size(config: Mapping[str, Any], name: str) -> int:
    """Pixels of the images that a checkpoint was trained on, by its config or its name. Raises ModelError."""
    stated = config.get("image_size")
    if stated is None:
        return next((size for size in (512, 768, 1024) if str(size) in name), 768)
    if type(stated) is not int or stated < _STEP or stated % _STEP:
        raise ModelError(f"image_size of {name} is {stated!r}", f"it must be a multiple of {_STEP} pixels")
    return stated


BOS, IMAGE_START, IMAGE_END, MESSAGE_END = "<s>", "<racm3:break>", "<eoss>", "<reserved08706>"
ROW_END, GRID = "<reserved08799>", 8800  # Lumina-mGPT's end of a row; a grid of n units is number 8800 + n
_MOST_GRID = 64  # units of 32 pixels; larger grids have no token


class ChameleonWords(CodeWords):
    """The tokens of images in the vocabulary of Chameleon and its descendants."""

    code, first = re.compile(r"IMGIMG([A-J]+)Z"), "IMGIMGAZ"  # a code by its digits, A for 0 to J for 9

    def __init__(self, tokenizer: Any, vocabulary: Mapping[str, int], name: str, *, rows: bool = False) -> None:
        """`rows`: whether images have sizes and end tokens of rows. Raises ModelError as `CodeWords` does."""
        wanted = (BOS, IMAGE_START, IMAGE_END, MESSAGE_END, *((ROW_END, _grid(1)) if rows else ()))
        super().__init__(tokenizer, vocabulary, name, wanted)
        self.bos, self.image_start, self.image_end, self.message_end = (int(vocabulary[token]) for token in wanted[:4])

    @staticmethod
    def number(text: str) -> int:
        return int("".join(str(ord(letter) - ord("A")) for letter in text))

    @classmethod
    def of(cls, parts: ImagingParts, *, rows: bool) -> ChameleonWords:
        """From a checkpoint's files. Raises ModelError where they name no ids for the tokens of images."""
        name, vocabulary = parts.source.name, parts.config.get("vocabulary_map")
        tokenizer = load_tokenizer(parts.source.tokenizer)
        if vocabulary is None and tokenizer is not None:
            vocabulary = tokenizer.get_vocab()
        if not isinstance(vocabulary, Mapping):
            raise ModelError(f"{name} does not say which ids are codes of images", "add vocabulary_map to config.json")
        words = cls(tokenizer, vocabulary, name, rows=rows)
        words.check_size(parts.vocab)
        return words

    @property
    def row_end(self) -> int:
        """The token after every row, where images have sizes."""
        return int(self.vocabulary[ROW_END])

    def grid(self, units: int) -> int:
        """The token of a side of `units` times 32 pixels."""
        return int(self.vocabulary[_grid(units)])

    @property
    def most_grid(self) -> int:
        """The largest side that has a token, in units of 32 pixels."""
        return max(units for units in range(1, _MOST_GRID + 1) if _grid(units) in self.vocabulary)

    def message(self, text: str) -> list[int]:
        """The ids of a user's message. Raises ModelError without a tokenizer."""
        return [self.bos, *self.encoded(text), self.message_end]


def _grid(units: int) -> str:
    return f"<reserved{GRID + units:05d}>"
