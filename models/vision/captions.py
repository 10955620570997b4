"""Captions as a text encoder of transformers reads them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import ArgumentError, ModelError, install, one_line
from pardec.models.quiet import quiet
from pardec.models.vision.words import unknown

_KEPT = 32  # captions whose features are kept; of FLAN-T5-XL, in float32, one takes up to a megabyte


class TextEncoder:
    """An encoder and its tokenizer, loaded with the first caption. Features are padded to no length."""

    def __init__(
        self, name: str, *, most: int, device: torch.device, dtype: torch.dtype, offline: bool, clean: bool = False
    ) -> None:
        """`name` is a folder or a hub id; captions are cut to `most` tokens, and cleaned before if that is asked."""
        self.name, self.most, self.device, self.dtype, self.offline = name, most, device, dtype, offline
        self.clean = clean
        self._kept: dict[str, Tensor] = {}  # the last captions, the newest last
        self._warned = False

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

    def __call__(self, captions: Sequence[str]) -> list[Tensor]:
        """Features [n, D] of each caption, one a token; a caption has the same ones in any batch, to the last bit.

        Raises ArgumentError for a caption that has a word without a token, or of which the tokenizer leaves nothing.
        """
        texts = [cleaner()(caption) if self.clean else caption for caption in captions]
        made: dict[str, Tensor] = {}
        for text in dict.fromkeys(texts):
            known = self._kept.pop(text, None)
            made[text] = self._kept[text] = self._encoded(text) if known is None else known
            if len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return [made[text] for text in texts]

    def _length(self, tokenizer: Any, text: str) -> int:
        """Tokens of the text. Raises ArgumentError naming a word for which the tokenizer has no token."""
        try:
            with quiet():  # it would say that a long caption fits no model, and pardec cuts it
                return len(tokenizer(text)["input_ids"])
        except Exception as error:  # the library has no exception of its own for this
            wrong = unknown(text, tokenizer.get_vocab())
            if wrong is None:
                raise
            raise wrong from error

    @torch.inference_mode()
    def _encoded(self, text: str) -> Tensor:
        """Alone, since what a caption is read with changes its features' last bits."""
        tokenizer, model = self._parts
        length = self._length(tokenizer, text)
        if not length:
            raise ArgumentError(f"the text encoder {self.name} reads nothing in {text!r}", "say it in other words")
        if length > self.most and not self._warned:
            self._warned = True
            start = text if len(text) <= 60 else f"{text[:60]}..."
            warnings.warn(
                f"the caption {start!r} has {length} tokens and {self.most} are read: what comes after is cut off",
                stacklevel=3,
            )
        given = tokenizer(text, max_length=self.most, truncation=True, return_tensors="pt").to(self.device)
        made: Tensor = model(input_ids=given["input_ids"], attention_mask=given["attention_mask"]).last_hidden_state
        return made[0]


@cache
def cleaner() -> Callable[[str], str]:
    """What makes of a caption the text that LlamaGen was trained on, and DeepFloyd IF and PixArt before it.

    Lower case, broken Unicode mended, entities resolved; addresses, tags, CJK and odd punctuation taken out; all of it
    twice. It is diffusers' own where the packages it needs are installed; else the case is lowered, with a warning.
    """
    missing = [name for name, package in _NEEDED.items() if find_spec(package) is None]
    if missing:
        warnings.warn(
            f"captions are read in lower case and otherwise as they are: cleaning them needs {' and '.join(missing)} "
            f"({install('captions')}; clean_captions false in config.json leaves it out)",
            stacklevel=3,
        )
        return lambda caption: caption.lower().strip()
    from diffusers import PixArtAlphaPipeline

    def cleaned(caption: str) -> str:
        for _ in range(2):
            caption = PixArtAlphaPipeline._clean_caption(PixArtAlphaPipeline, caption)
        return caption

    return cleaned


_NEEDED = {"ftfy": "ftfy", "beautifulsoup4": "bs4"}  # distributions and what is imported of them
