"""The image interface of models that read captions with their own embedding and draw codes of one vocabulary.

    input        the ids of a prompt template around the caption, then the grid of codes
    guidance     the same template with a placeholder for no caption, or with a negative prompt

A family says what its template is, where its codes are, and which decoder turns them into pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import torch
from torch import Tensor

from .. import finite
from ..errors import ModelError, one_line
from ..files.sources import read_json
from ..files.tokenizers import load_tokenizer
from .conditioned import Prefix
from .contracts import Condition, ImageLayout, ImagingParts


class CodeDecoder(Protocol):
    """Turns codes into pixels."""

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        ...

    def decode(self, codes: Tensor) -> Tensor:
        """Codes [B, h, w] to pixels [B, 3, H, W] in [-1, 1], float32."""
        ...


class CaptionedImaging:
    """The image interface of one checkpoint; a subclass defines its family's template."""

    kind: Literal["text"] = "text"
    classes = 0
    codebook: Tensor | None = None  # only stages for autoregressive models compare codes by distance
    defaults: Mapping[str, Any]
    weights: ClassVar[Mapping[str, Tensor]] = {}
    where: ClassVar[str]  # how to name the decoder, for an error

    def __init__(
        self,
        name: str,
        layout: ImageLayout,
        tokenizer: Any,
        embedding: Callable[[], Tensor],
        *,
        load: Callable[[], CodeDecoder] | None = None,
        defaults: Mapping[str, Any] | None = None,
    ) -> None:
        """`load` makes the decoder, on first use; without it images cannot be decoded."""
        self.name, self.layout, self.tokenizer, self.embedding, self.load = name, layout, tokenizer, embedding, load
        self.defaults = dict(defaults or {})
        self._decoder: Any = None

    def ids(self, caption: str | None) -> Sequence[int] | Tensor:
        """The ids before the grid; None means no caption."""
        raise NotImplementedError

    def caption(self, condition: Condition, row: int) -> str:
        """The caption of a row. Raises ModelError for a condition that is none."""
        return condition.own_caption(self.name, row)

    @property
    def can_decode(self) -> bool:
        return self.load is not None

    @property
    def decoder(self) -> Any:
        """The decoder of codes. Raises ModelError where there is none, or its files cannot be read."""
        if self._decoder is None:
            if self.load is None:
                raise ModelError(f"{self.name} has no image tokenizer, so its codes cannot be decoded", self.where)
            self._decoder = self.load()
        return self._decoder

    @property
    def downsample(self) -> int:
        return int(self.decoder.downsample)

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        return finite.pixels(self.name, self.decoder.decode(codes), self.decoder)

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        table = self.embedding()
        captions = [self.caption(condition, row) for row, condition in enumerate(conditions)]
        negatives = [condition.negative for condition in conditions]
        cond, uncond = (tuple(self._states(table, self.ids(text)) for text in texts) for texts in (captions, negatives))
        return Prefix(cond, uncond)

    def read(self, text: str) -> list[int]:
        """The ids of a text, as the checkpoint's tokenizer gives them. Raises ModelError where it cannot."""
        try:
            return list(self.tokenizer(text)["input_ids"])
        except Exception as error:  # tokenizers raise errors of any class
            raise ModelError(f"the tokenizer of {self.name} cannot read {text!r}: {one_line(error)}") from error

    def _states(self, table: Tensor, ids: Sequence[int] | Tensor) -> Tensor:
        index = torch.as_tensor(ids, device=table.device)
        if int(index.max()) >= len(table):
            raise ModelError(
                f"a prompt of {self.name} has the id {int(index.max())}, and the embedding has {len(table)} ids",
                "check that the tokenizer and the weights belong together",
            )
        return table[index]


def generation_defaults(folder: Path) -> dict[str, Any]:
    """The sampling arguments that a folder's generation_config.json states, by pardec's names."""
    return sampling_arguments(read_json(folder / "generation_config.json"))


def sampling_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling arguments among transformers' settings, by pardec's names.

    `do_sample: false` is temperature 0, and a `guidance_scale` of 0 or 1 is no guidance. Raises ModelError for a
    `do_sample` that is neither true nor false.
    """
    names = {"temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
    names |= {"guidance_scale": "cfg"}
    own = {ours: settings[theirs] for theirs, ours in names.items() if settings.get(theirs) is not None}
    if not isinstance(sample := settings.get("do_sample"), bool | None):
        raise ModelError(f"generation_config.json: do_sample is {sample!r}", "it must be true or false")
    if sample is False:
        own |= {"temperature": 0.0, "top_k": None, "top_p": None, "min_p": None}
    return own | ({"cfg": None} if own.get("cfg") in (0, 1) else {})


def reader(parts: ImagingParts) -> tuple[Any, Callable[[], Tensor]]:
    """The checkpoint's tokenizer, and its embeddings. Raises ModelError for a folder without a tokenizer."""
    tokenizer = load_tokenizer(parts.source.tokenizer)
    if tokenizer is None:
        raise ModelError(
            f"{parts.source.name} has no tokenizer, which captions need",
            "copy tokenizer.json and tokenizer_config.json into its folder",
        )
    assert parts.embedding is not None, "the model is loaded"
    return tokenizer, parts.embedding


def grid(parts: ImagingParts, tokens: int) -> int:
    """Codes along a side, from `num_vq_tokens` in the config or `tokens`. Raises ModelError if that is no square."""
    count = parts.config.get("num_vq_tokens") or tokens
    side = isqrt(int(count))
    if side * side != count:
        raise ModelError(f"{parts.source.name} has images of {count} codes, which is no square number")
    return side


def codes(parts: ImagingParts, first: int, count: int) -> Tensor:
    """The ids of `count` codes from `first` on. Raises ModelError where the model has fewer ids."""
    if first + count > parts.vocab:
        raise ModelError(
            f"{parts.source.name} has {parts.vocab} ids, too few for {count} codes from id {first} on",
            "correct codebook_size in config.json",
        )
    return torch.arange(first, first + count)
