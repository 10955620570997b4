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
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import finite
from ..errors import ArgumentError, ModelError
from ..files.sources import read_json
from .chameleon_words import ChameleonWords
from .conditioned import Prefix
from .contracts import Condition, ImageLayout, ImagingParts, OneSize
from .vqgan import PATTERNS, VQGAN, find_vqgan, load_vqgan

_DOWNSAMPLE = 16  # pixels per code
_STEP = 32  # pixels per unit of Lumina-mGPT's grid tokens
_DEFAULTS: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.9, "cfg": 3.0}  # of Chameleon's authors
_LUMINA_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "top_k": 2000, "cfg": 3.0}
_TEMPLATE = "Generate an image of {width}x{height} according to the following prompt:\n{caption}"


class ChameleonImaging(OneSize):
    """The image interface of one Chameleon or Anole checkpoint."""

    kind: Literal["text"] = "text"
    classes = 0
    defaults: Mapping[str, Any]

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
        self.words, self.embedding, self.name = words, embedding, name
        self._source, self._device, self._vqgan = decoder, device, None
        side = math.isqrt(tokens)
        if side * side != tokens:
            raise ModelError(f"{name} has {tokens} codes per image, which is no square number")
        self.layout = self._layout(side, side)
        self.defaults = {**self._own_defaults(), **(defaults or {})}

    _vqgan: VQGAN | None

    def _own_defaults(self) -> Mapping[str, Any]:
        return _DEFAULTS

    def _layout(self, rows: int, columns: int) -> ImageLayout:
        return ImageLayout(rows, columns, closing=(self.words.image_end,), ids=self.words.ids)

    @property
    def can_decode(self) -> bool:
        return self._source is not None

    @property
    def vqgan(self) -> VQGAN:
        """The image tokenizer's decoder. Raises ModelError where there is none, or that of another model."""
        if self._vqgan is None:
            if self._source is None:
                raise ModelError(
                    f"{self.name} has no image tokenizer, so its codes cannot be decoded",
                    'load it with decoder="vqgan.ckpt", or put that file beside the weights',
                )
            vqgan = load_vqgan(self._source, device=self._device)
            if vqgan.shape.codes != len(self.words.ids):
                raise ModelError(
                    f"the image tokenizer {self._source} has {vqgan.shape.codes} codes, but {self.name} "
                    f"has {len(self.words.ids)}",
                    "name the image tokenizer that the model was trained with",
                )
            self._vqgan = vqgan
        return self._vqgan

    @property
    def downsample(self) -> int:
        return self.vqgan.shape.downsample if self.can_decode else _DOWNSAMPLE

    @property
    def codebook(self) -> Tensor | None:
        return self.vqgan.codebook.weight if self.can_decode else None

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {}

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        table = self.embedding()
        cond, uncond = [], []
        for row, condition in enumerate(conditions):
            cond.append(self._states(table, self.prompt(condition.own_caption(self.name, row))))
            away = self.unconditional() if condition.negative is None else self.prompt(condition.negative)
            uncond.append(self._states(table, away))
        return Prefix(tuple(cond), tuple(uncond))

    def prompt(self, caption: str) -> list[int]:
        """The ids before an image of this caption."""
        return [*self.words.message(caption), self.words.image_start]

    def unconditional(self) -> list[int]:
        """The ids before an image of no caption."""
        return [self.words.bos, self.words.image_start]

    def _states(self, table: Tensor, ids: list[int]) -> Tensor:
        return F.embedding(torch.tensor(ids, device=table.device), table)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        vqgan = self.vqgan
        return finite.pixels(self.name, vqgan.decode(codes.to(self._device)), vqgan)


class LuminaImaging(ChameleonImaging):
    """The image interface of one Lumina-mGPT checkpoint."""

    def _own_defaults(self) -> Mapping[str, Any]:
        return _LUMINA_DEFAULTS

    def _layout(self, rows: int, columns: int) -> ImageLayout:
        words = self.words
        return ImageLayout(rows, columns, row_end=words.row_end, closing=(words.image_end,), ids=words.ids)

    @property
    def sizes(self) -> str | None:  # type: ignore[override]
        return f"multiples of {_STEP} pixels, up to {self.words.most_grid * _STEP}"

    def resized(self, height: int, width: int) -> LuminaImaging:
        units = height // _STEP, width // _STEP
        if height % _STEP or width % _STEP or not all(1 <= unit <= self.words.most_grid for unit in units):
            raise ArgumentError(
                f"size is {height} by {width} pixels, and {self.name} draws {self.sizes}",
                f"for example size=({_near(height)}, {_near(width)})",
            )
        other = copy(self)
        other.layout = self._layout(height // _DOWNSAMPLE, width // _DOWNSAMPLE)
        return other

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
        files = [file for pattern in PATTERNS for file in sorted(folder.glob(pattern))]
        decoder = str(files[0]) if len(files) == 1 else None
    settings = read_json(folder / "generation_config.json")
    own = {key: settings[key] for key in ("temperature", "top_k", "top_p") if settings.get(key) is not None}
    if settings.get("guidance_scale"):
        own["cfg"] = float(settings["guidance_scale"])
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


def _near(pixels: int) -> int:
    return max(round(pixels / _STEP), 1) * _STEP
