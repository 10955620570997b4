"""Captions as a text encoder of transformers reads them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import ModelError, one_line
from pardec.models.quiet import quiet


class TextEncoder:
    """An encoder and its tokenizer, loaded with the first caption. Features are padded to no length."""

    def __init__(self, name: str, *, most: int, device: torch.device, dtype: torch.dtype, offline: bool) -> None:
        """`name` is a folder or a hub id; captions are cut to `most` tokens."""
        self.name, self.most, self.device, self.dtype, self.offline = name, most, device, dtype, offline

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        from transformers import AutoModelForTextEncoding, AutoTokenizer

        try:
            with quiet():
                tokenizer = AutoTokenizer.from_pretrained(self.name, local_files_only=self.offline)
                model = AutoModelForTextEncoding.from_pretrained(
                    self.name, local_files_only=self.offline, dtype=self.dtype
                )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"the text encoder {self.name} cannot be loaded: {one_line(error)}",
                "name a folder or hub id with text_encoder=, or pass what the encoder made: prompt_embeds=",
            ) from error
        return tokenizer, model.to(self.device).eval().requires_grad_(False)

    @torch.inference_mode()
    def __call__(self, captions: Sequence[str]) -> list[Tensor]:
        """Features [n, D] of each caption, one a token; a caption has the same in any batch up to rounding."""
        tokenizer, model = self._parts
        given = tokenizer(list(captions), max_length=self.most, truncation=True, padding=True, return_tensors="pt").to(
            self.device
        )
        made = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
        return [row[mask.bool()] for row, mask in zip(made, given["attention_mask"], strict=True)]
