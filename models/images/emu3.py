"""Emu3's image interface: a prompt that names the token grid in words, rows with an end, and the VQ of transformers.

Emu3: Next-Token Prediction is All You Need, https://arxiv.org/abs/2409.18869

    prompt   <bos> caption <image start> h*w <image token>        unconditional: the same with a negative prompt
    image    h times: w codes, <end of row>;  then <end of frame> <image end> <eos>, each the only token in its position

The authors end every caption with a few words of praise and have a negative prompt of their own: both are defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, one_line
from ..files.sources import Source, read_json
from ..files.tokenizers import load_tokenizer
from .captioned import CaptionedImaging, generation_defaults
from .code_words import CodeWords
from .contracts import AnySize, Condition, ImageLayout, ImagingParts
from .emu3_vq import Emu3VQ

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
            defaults=defaults,
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


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults in generation_config.json; for the others, the authors' values."""
    return {**_DEFAULTS, **generation_defaults(source.folder)}


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
        defaults=defaults(parts.source, parts.config),
        name=name,
    )


def _area(parts: ImagingParts) -> Any:
    return read_json(parts.source.folder / "processor_config.json").get("image_area")


# The tokens, in the order of `Tokens`.
TOKENS = (
    *("<|extra_203|>", "<|extra_204|>", "<|image start|>", "<|image token|>"),
    *("<|extra_200|>", "<|extra_201|>", "<|image end|>"),
)
RANKS, VISION = "emu3.tiktoken", "emu3_vision_tokens.txt"  # the authors' own tokenizer
_EXTRAS = 205
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Tokens:
    """Ids of the tokens around an image."""

    bos: int
    eos: int
    image_start: int
    image: int  # the last token of a prompt
    row_end: int
    frame_end: int
    image_end: int


class Emu3Words(CodeWords):
    """The tokens of images in Emu3's vocabulary."""

    code, first = re.compile(r"<\|visual token (\d+)\|>"), "<|visual token 000000|>"

    def __init__(self, tokenizer: Any, vocabulary: Mapping[str, int], name: str) -> None:
        """Raises ModelError as `CodeWords` does."""
        super().__init__(tokenizer, vocabulary, name, TOKENS)
        self.tokens = Tokens(*(int(vocabulary[token]) for token in TOKENS))

    @classmethod
    def of(cls, parts: ImagingParts) -> Emu3Words:
        """From a checkpoint's files. Raises ModelError where they name no ids for the tokens of images."""
        folder, name = parts.source.tokenizer, parts.source.name
        vocabulary: Any = parts.config.get("vocabulary_map")
        if vocabulary is None and (folder / RANKS).is_file():
            tokenizer = from_ranks(folder)
            vocabulary = tokenizer.get_vocab()
        elif not isinstance(vocabulary, Mapping):
            raise ModelError(
                f"{name} does not say which ids are codes of images",
                f"add vocabulary_map to config.json, or {RANKS} and {VISION} of the authors' layout",
            )
        else:
            tokenizer = load_tokenizer(folder)
        words = cls(tokenizer, vocabulary, name)
        words.check_size(parts.vocab)
        return words

    def prompt(self, caption: str, grid: tuple[int, int]) -> Tensor:
        """[P] int64: the ids of a prompt. Raises ModelError without a tokenizer."""
        bos, _, start, image, *_ = TOKENS
        return torch.tensor(self.encoded(f"{bos}{caption}{start}{grid[0]}*{grid[1]}{image}"))


def from_ranks(folder: Path) -> Any:
    """The authors' tokenizer, from its byte pairs by rank and its list of vision tokens. Raises ModelError."""
    from tokenizers import normalizers
    from transformers import PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import TikTokenConverter

    class Converter(TikTokenConverter):  # type: ignore[misc]
        @staticmethod
        def load_tiktoken_bpe(path: str) -> dict[bytes, int]:
            return ranks(Path(path))

    count = len(ranks(folder / RANKS))
    try:
        vision = [line.strip() for line in (folder / VISION).read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(
            f"{folder / VISION} cannot be read: {one_line(error)}",
            f"download it again: it lists the tokens that {RANKS} lacks",
        ) from error
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *_extras(), *vision]
    converted = Converter(str(folder / RANKS), SPLIT, extra_special_tokens=special).converted()
    converted.normalizer = normalizers.NFC()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=converted, bos_token=TOKENS[0], eos_token=TOKENS[1], pad_token="<|endoftext|>"
    )
    if tokenizer.convert_tokens_to_ids(special[-1]) != count + len(special) - 1:
        raise ModelError(f"{folder / VISION} repeats a token", "download it again")
    return tokenizer


def _extras() -> Iterable[str]:
    return (f"<|extra_{index}|>" for index in range(_EXTRAS))


def ranks(file: Path) -> dict[bytes, int]:
    """The rank of each token, from a file with lines of a base64 token and its rank. Raises ModelError."""
    from base64 import b64decode

    try:
        pairs = [line.split() for line in file.read_bytes().splitlines() if line]
        known = {b64decode(token): int(rank) for token, rank in pairs}
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} cannot be read: {one_line(error)}", "download it again") from error
    if sorted(known.values()) != list(range(len(known))):
        raise ModelError(f"the ranks in {file} have a gap", "download it again")
    return known
