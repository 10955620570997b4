"""Chameleon's vocabulary: the ids of codes, the tokens around an image, and the tokenizer of captions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import ModelError, listed
from ..files.tokenizers import load_tokenizer
from .contracts import ImagingParts

BOS, IMAGE_START, IMAGE_END, MESSAGE_END = "<s>", "<racm3:break>", "<eoss>", "<reserved08706>"
ROW_END, GRID = "<reserved08799>", 8800  # Lumina-mGPT's end of a row; a grid of n units is number 8800 + n
CODE = re.compile(r"IMGIMG([A-J]+)Z")  # a code by its digits, A for 0 to J for 9
_MOST_GRID = 64  # units of 32 pixels; larger grids have no token


class ChameleonWords:
    """The tokens that a checkpoint writes before, between and after the codes of an image."""

    def __init__(self, tokenizer: Any, vocabulary: Mapping[str, int], name: str, *, rows: bool = False) -> None:
        """`rows`: whether images have sizes and end tokens of rows.

        Raises ModelError for a vocabulary without codes, or without a token that stands around an image.
        """
        wanted = (BOS, IMAGE_START, IMAGE_END, MESSAGE_END, *((ROW_END, _grid(1)) if rows else ()))
        missing = [token for token in wanted if token not in vocabulary]
        if missing:
            raise ModelError(
                f"the vocabulary of {name} lacks the tokens {listed(missing)}",
                "vocabulary_map in config.json must have every token of an image",
            )
        self.tokenizer, self.name, self.vocabulary = tokenizer, name, vocabulary
        self.bos, self.image_start, self.image_end, self.message_end = (int(vocabulary[token]) for token in wanted[:4])
        codes = {_code(match[1]): int(i) for token, i in vocabulary.items() if (match := CODE.fullmatch(token))}
        if not codes or max(codes) != len(codes) - 1:
            have = f"{len(codes)} codes of images, up to {max(codes)}" if codes else "no codes of images"
            raise ModelError(
                f"the vocabulary of {name} has {have}", "it must have IMGIMGAZ and all following codes, without a gap"
            )
        self.ids: Tensor = torch.tensor([codes[code] for code in range(len(codes))])  # [codes] int64
        if tokenizer is not None:
            other = [t for t in wanted if tokenizer.convert_tokens_to_ids(t) != vocabulary[t]]
            if other:
                raise ModelError(
                    f"the tokenizer of {name} gives {listed(other)} other ids than its vocabulary_map",
                    "the files of the folder are from different checkpoints",
                )

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
        if int(words.ids.max()) >= parts.vocab:
            raise ModelError(f"{name} has codes up to id {int(words.ids.max())} and a vocabulary of {parts.vocab}")
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
        if self.tokenizer is None:
            raise ModelError(
                f"{self.name} has no tokenizer, so it cannot read captions",
                "copy the tokenizer's files into its folder",
            )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return [self.bos, *ids, self.message_end]


def _code(letters: str) -> int:
    return int("".join(str(ord(letter) - ord("A")) for letter in letters))


def _grid(units: int) -> str:
    return f"<reserved{GRID + units:05d}>"
