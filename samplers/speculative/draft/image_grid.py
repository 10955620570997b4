"""Guesses for image tokens copied from the left or from above, in raster order."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.images.contracts import ImageLayout
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ..sequences import Sequences


def layout_of(model: LanguageModel, option: str, hint: str) -> ImageLayout:
    """The token grid of the model's images. Raises SpecError, naming `option`, for models without images."""
    if model.imaging is None:
        raise SpecError(f"{option} needs the token grid of an image, and {model.name} generates no images", hint=hint)
    return model.imaging.layout


def columns(model: LanguageModel, option: str, hint: str) -> int:
    """The number of tokens per row of that grid."""
    return layout_of(model, option, hint).stride


def copy_left(text: Sequences, guesses: Tensor, known: np.ndarray, fallback: Tensor, width: int) -> Tensor:
    """`guesses` [B, K] after each row's text, replaced from known[b] on by the token to the left.

    The token to the left may be such a copy itself. The first of the `width` columns gets `fallback` [B, K].
    """
    offset, raster, first = _offsets(text, guesses, known)
    source = torch.where(offset < first, offset, torch.maximum(first - 1, offset - raster % width))
    filled = torch.where(offset < first, guesses, fallback)
    return torch.cat((text.last[:, None], filled), 1).gather(1, source + 1)


def copy_up(text: Sequences, guesses: Tensor, known: np.ndarray, fallback: Tensor, width: int) -> Tensor:
    """Like `copy_left` with the token above, and `fallback` in the first row of the image."""
    offset, raster, first = _offsets(text, guesses, known)
    missing = (offset - first + 1).clamp(min=0)
    up = torch.minimum((missing + width - 1) // width, raster // width)  # rows up, to a token that is not itself a copy
    source = offset - up * width
    filled = torch.where(offset < first, guesses, fallback)
    length = upload(text.length, guesses.device)[:, None]
    committed = text.tokens.gather(1, (source + length).clamp(max=text.tokens.shape[1] - 1))
    return torch.where(source < 0, committed, filled.gather(1, source.clamp(min=0)))


def _offsets(text: Sequences, guesses: Tensor, known: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Each guess's offset after the text [K] and grid cell [B, K], and the first offset without a cell [B, 1]."""
    offset = torch.arange(guesses.shape[1], device=guesses.device)
    raster = upload(text.length - text.prompt, guesses.device)[:, None] + offset
    return offset, raster, upload(known, guesses.device)[:, None]
