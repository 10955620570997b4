"""Where the next tokens of each row stand in its picture, for drafters that look to the left and up."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ..sequences import Sequences


def columns(model: LanguageModel, asked: str, hint: str) -> int:
    """Tokens from a row of the model's pictures to the next. Raises SpecError for `asked` where there are none."""
    if model.imaging is None:
        raise SpecError(f"{asked} looks at the cells of a picture, and {model.name} draws none", hint=hint)
    return model.imaging.layout.stride


def beside(text: Sequences, guesses: Tensor, known: np.ndarray, sampled: Tensor, width: int) -> Tensor:
    """`guesses` [B, K] behind each row's text, from known[b] on the token of the cell to the left.

    That one may be such a copy itself. In the first of the `width` columns stands what was `drawn` [B, K].
    """
    place, cell, first = _where(text, guesses, known)
    source = torch.where(place < first, place, torch.maximum(first - 1, place - cell % width))
    filled = torch.where(place < first, guesses, sampled)
    return torch.cat((text.last[:, None], filled), 1).gather(1, source + 1)


def above(text: Sequences, guesses: Tensor, known: np.ndarray, sampled: Tensor, width: int) -> Tensor:
    """The same with the token of the cell above, and what was `drawn` in the first row of the picture."""
    place, cell, first = _where(text, guesses, known)
    missing = (place - first + 1).clamp(min=0)
    up = torch.minimum((missing + width - 1) // width, cell // width)  # rows to what is no copy
    source = place - up * width
    filled = torch.where(place < first, guesses, sampled)
    length = torch.from_numpy(text.length).to(guesses.device)[:, None]
    predicted = text.tokens.gather(1, (source + length).clamp(max=text.tokens.shape[1] - 1))
    return torch.where(source < 0, predicted, filled.gather(1, source.clamp(min=0)))


def _where(text: Sequences, guesses: Tensor, known: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
    """Of each guess its place behind the text [K] and its cell [B, K]; the first place without one [B, 1]."""
    place = torch.arange(guesses.shape[1], device=guesses.device)
    cell = torch.from_numpy(text.length - text.prompt).to(guesses.device)[:, None] + place
    return place, cell, torch.from_numpy(known).to(guesses.device)[:, None]
