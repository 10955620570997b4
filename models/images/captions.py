"""Captions, encoded by a text encoder of transformers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, ModelError, install, one_line
from ..files.catalog import EMBEDDED, embedded_names
from ..files.tokenizers import require_vocabulary
from ..hf.hf_logging import silence
from .words import unknown

_CACHED = 32  # captions whose features are cached; one of FLAN-T5-XL takes up to a megabyte in float32


FLAN_T5_XL = ("google/flan-t5-xl", 2048)  # the text encoder of published models of captions, and its width


def encoder_name(folder: Path, named: str | None, features: int) -> str | None:
    """The text encoder: the named one, the one in the weights' folder, or FLAN-T5-XL for features of its width.

    None where there is none.
    """
    beside = [folder / name for name in ("text_encoder", "flan-t5-xl") if (folder / name).is_dir()]
    if named is None and beside:
        return str(beside[0])
    if named in embedded_names():
        return str(EMBEDDED / str(named) / "text_encoder")
    return FLAN_T5_XL[0] if named is None and features == FLAN_T5_XL[1] else named


class TextEncoder:
    """An encoder and its tokenizer, loaded with the first caption. Features are not padded."""

    def __init__(
        self, name: str, *, most: int, device: torch.device, dtype: torch.dtype, offline: bool, clean: bool = False
    ) -> None:
        """`name` is a folder or a hub id; captions are cut to `most` tokens, with `clean` after cleaning."""
        self.name, self.most, self.device, self.dtype, self.offline = name, most, device, dtype, offline
        self.clean = clean
        self._cache: dict[str, Tensor] = {}  # the last captions, the newest last
        self._warned = False

    @cached_property
    def _parts(self) -> tuple[Any, Any]:
        from transformers import AutoModelForTextEncoding, AutoTokenizer

        try:
            with silence():
                tokenizer = AutoTokenizer.from_pretrained(self.name, local_files_only=self.offline)
                if Path(self.name).is_dir():
                    require_vocabulary(Path(self.name), tokenizer)
                model = AutoModelForTextEncoding.from_pretrained(
                    self.name, local_files_only=self.offline, dtype=self.dtype
                )
        except (OSError, ValueError, KeyError) as error:
            raise ModelError(
                f"the text encoder {self.name} cannot be loaded: {one_line(error)}",
                "name a folder or hub id with text_encoder=, or pass the encoder's output: prompt_embeds=",
            ) from error
        return tokenizer, model.to(self.device).eval().requires_grad_(False)

    def __call__(self, captions: Sequence[str]) -> list[Tensor]:
        """Features [n, D] of each caption, one per token; they are bit-identical in any batch.

        Raises ArgumentError for a caption with a word that has no token, or one that the tokenizer reduces to nothing.
        """
        texts = [cleaner()(caption) if self.clean else caption for caption in captions]
        features: dict[str, Tensor] = {}
        for text in dict.fromkeys(texts):
            known = self._cache.pop(text, None)
            features[text] = self._cache[text] = self._encode(text) if known is None else known
            if len(self._cache) > _CACHED:
                del self._cache[next(iter(self._cache))]
        return [features[text] for text in texts]

    def _length(self, tokenizer: Any, text: str) -> int:
        """Tokens of the text. Raises ArgumentError naming a word for which the tokenizer has no token."""
        try:
            with silence():  # a warning that a long caption fits no model would be wrong: it is cut below
                return len(tokenizer(text)["input_ids"])
        except Exception as error:  # the library has no specific exception for this
            wrong = unknown(text, tokenizer.get_vocab())
            if wrong is None:
                raise
            raise wrong from error

    @torch.inference_mode()
    def _encode(self, text: str) -> Tensor:
        """Encodes one caption alone: in a batch, the last bits of its features would depend on the others."""
        tokenizer, model = self._parts
        length = self._length(tokenizer, text)
        if not length:
            raise ArgumentError(f"the text encoder {self.name} finds no token in {text!r}", "use other words")
        if length > self.most and not self._warned:
            self._warned = True
            start = text if len(text) <= 60 else f"{text[:60]}..."
            warnings.warn(
                f"the caption {start!r} has {length} tokens and the model takes {self.most}: the rest is cut off",
                stacklevel=3,
            )
        inputs = tokenizer(text, max_length=self.most, truncation=True, return_tensors="pt").to(self.device)
        states: Tensor = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).last_hidden_state
        return states[0]


@cache
def cleaner() -> Callable[[str], str]:
    """The function that cleans a caption as LlamaGen's training data was, and DeepFloyd IF's and PixArt's before.

    Lower case, broken Unicode mended, entities resolved; addresses, tags, CJK and odd punctuation taken out; all of it
    twice. It is diffusers' own if the packages that it needs are installed; else text is lower-cased, with a warning.
    """
    missing = [name for name, package in _NEEDED.items() if find_spec(package) is None]
    if missing:
        warnings.warn(
            f"captions are only lower-cased, since cleaning them needs {' and '.join(missing)} "
            f"({install('captions')}; clean_captions=false in config.json turns cleaning off)",
            stacklevel=3,
        )
        return lambda caption: caption.lower().strip()
    from diffusers import PixArtAlphaPipeline

    def clean(caption: str) -> str:
        for _ in range(2):
            caption = PixArtAlphaPipeline._clean_caption(PixArtAlphaPipeline, caption)
        return caption

    return clean


_NEEDED = {"ftfy": "ftfy", "beautifulsoup4": "bs4"}  # package -> module
