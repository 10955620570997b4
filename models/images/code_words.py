"""The tokens of images in a vocabulary of words: their codes by name, and the tokens around them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ModelError, listed


class CodeWords:
    """The tokens that a checkpoint writes before, between and after the codes of an image."""

    code: ClassVar[re.Pattern[str]]  # the token of a code; its first group is the code's number
    first: ClassVar[str]  # the token of code 0

    def __init__(self, tokenizer: Any, vocabulary: Mapping[str, int], name: str, wanted: Sequence[str]) -> None:
        """Raises ModelError for a vocabulary without codes, or without one of the tokens `wanted` around an image."""
        missing = [token for token in wanted if token not in vocabulary]
        if missing:
            raise ModelError(
                f"the vocabulary of {name} lacks the tokens {listed(missing)}",
                "vocabulary_map in config.json must have every token of an image",
            )
        self.tokenizer, self.name, self.vocabulary = tokenizer, name, vocabulary
        codes = {self.number(hit[1]): int(i) for token, i in vocabulary.items() if (hit := self.code.fullmatch(token))}
        if not codes or max(codes) != len(codes) - 1:
            have = f"{len(codes)} codes of images, up to {max(codes)}" if codes else "no codes of images"
            raise ModelError(
                f"the vocabulary of {name} has {have}",
                f"it must have {self.first} and all following codes, without a gap",
            )
        self.ids: Tensor = torch.tensor([codes[code] for code in range(len(codes))])  # [codes] int64
        other = [t for t in wanted if tokenizer is not None and tokenizer.convert_tokens_to_ids(t) != vocabulary[t]]
        if other:
            raise ModelError(
                f"the tokenizer of {name} gives {listed(other)} other ids than its vocabulary_map",
                "the files of the folder are from different checkpoints",
            )

    @staticmethod
    def number(text: str) -> int:
        """The number of a code, from the first group of its token."""
        return int(text)

    def check_size(self, vocab: int) -> None:
        """Raises ModelError for codes beyond a vocabulary of `vocab` ids."""
        if int(self.ids.max()) >= vocab:
            raise ModelError(f"{self.name} has codes up to id {int(self.ids.max())} and a vocabulary of {vocab}")

    def encoded(self, text: str) -> list[int]:
        """The ids of a text alone. Raises ModelError without a tokenizer."""
        if self.tokenizer is None:
            raise ModelError(
                f"{self.name} has no tokenizer, so it cannot read captions",
                "copy the tokenizer's files into its folder",
            )
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
