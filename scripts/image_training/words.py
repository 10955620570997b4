"""The words of captions: a tokenizer of whole words, and captions as rows of ids."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pardec.images.scenes import BACKGROUNDS, COLOURS, POSITIONS, RELATIONS, SHAPES, SIZES, parse, words_of

PLACES_OF_A_CAPTION = 16  # the longest has 12 words
PAD = 0


def vocabulary() -> dict[str, int]:
    """Every word that a caption may have; 0 is padding."""
    phrases = [*POSITIONS, *RELATIONS, *SIZES, *COLOURS, *SHAPES, *BACKGROUNDS, "a", "on"]
    words = dict.fromkeys(word for phrase in phrases for word in phrase.split())
    return {"<pad>": PAD} | {word: number for number, word in enumerate(words, PAD + 1)}


def tokenizer() -> Any:
    """A tokenizer of transformers. It has no token for other words: they cannot be read."""
    from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel(vocabulary()))
    made.normalizer = normalizers.Sequence([normalizers.Lowercase(), normalizers.Replace(Regex(r"[^\w\s]"), " ")])
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", model_max_length=PLACES_OF_A_CAPTION, padding_side="right"
    )


def ids(captions: list[str]) -> Tensor:
    """[B, 16] int64, padding after each caption."""
    known = vocabulary()
    rows = torch.full((len(captions), PLACES_OF_A_CAPTION), PAD)
    for row, caption in enumerate(captions):
        words = [known[word] for word in words_of(caption)]
        rows[row, : len(words)] = torch.tensor(words)
    return rows


def right_aligned(values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """`values` [B, P, D] and `known` [B, P] bool, whose padding stands last, with the padding first."""
    places = known.shape[1]
    source = torch.arange(places, device=known.device) - (places - known.sum(1, keepdim=True))
    taken = values.gather(1, source.clamp(min=0)[..., None].expand_as(values))
    return taken, source >= 0


def read(rows: Tensor) -> list[str]:
    """The captions of rows of ids."""
    words = list(vocabulary())
    return [" ".join(words[token] for token in row if token != PAD) for row in rows.tolist()]


def attributes(captions: list[str]) -> Tensor:
    """[B, 8] int64: each colour's shape (0: none; else size, shape and which of two), position, background."""
    rows = torch.zeros(len(captions), len(COLOURS) + 2, dtype=torch.int64)
    places = (*POSITIONS, *RELATIONS)
    for row, caption in enumerate(captions):
        scene = parse(caption)
        for number, thing in enumerate(scene.things):
            what = 1 + len(SHAPES) * SIZES.index(thing.size) + SHAPES.index(thing.shape)
            # The two things get different numbers, since the position is that of the first one.
            rows[row, list(COLOURS).index(thing.colour)] = what + number * len(SIZES) * len(SHAPES)
        rows[row, -2], rows[row, -1] = places.index(scene.position), list(BACKGROUNDS).index(scene.background)
    return rows


KINDS = (*[1 + 2 * len(SIZES) * len(SHAPES)] * len(COLOURS), len(POSITIONS) + len(RELATIONS), len(BACKGROUNDS))
