"""Shared by drafters that read a shortened prompt: the text behind it is the row's own, at nearer positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from pardec.models.model import LanguageModel

from ..contracts import DecodeContext
from ..draft_model import DraftModelState


class ShortContextState(DraftModelState):
    """A drafting model whose text is a short prompt [P_b] of each row and what the row has generated."""

    lag: np.ndarray  # type: ignore[misc,assignment]  # [B] tokens of each row's prompt that the model does not read
    short: Tensor  # [B, P] int64 the short prompts, on the text's device
    prompt: np.ndarray  # [B] their lengths

    def __init__(self, context: DecodeContext, model: LanguageModel, prompts: Sequence[np.ndarray]) -> None:
        """`prompts` of each live row, which end as the row's own prompt does."""
        text = context.text
        self.prompt = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
        self.lag = text.prompt - self.prompt
        longest = int((text.limit - self.lag).max())
        super().__init__(context, model, model.new_cache(len(text), longest, scratch=context.scratch), own=True)
        whole = np.zeros((len(text), int(self.prompt.max())), dtype=np.int64)
        for row, prompt in zip(whole, prompts, strict=True):
            row[: len(prompt)] = prompt
        self.short = torch.from_numpy(whole).to(text.device)

    def keep(self, rows: np.ndarray) -> None:
        super().keep(rows)
        self.lag, self.prompt = self.lag[rows], self.prompt[rows]
        self.short = self.short[torch.from_numpy(rows).to(self.short.device)]

    def put(self, where: np.ndarray, other: DraftModelState) -> None:
        assert isinstance(other, ShortContextState), "states of one drafter"
        super().put(where, other)
        self.lag, self.prompt = self.lag.copy(), self.prompt.copy()
        self.lag[where], self.prompt[where] = other.lag, other.prompt
        most = max(self.short.shape[1], other.short.shape[1])
        ours, theirs = (torch.nn.functional.pad(each, (0, most - each.shape[1])) for each in (self.short, other.short))
        self.short = ours.index_copy(0, torch.from_numpy(where).to(ours.device), theirs)

    def _committed_tokens(self, rows: Tensor, where: Tensor) -> Tensor:
        tokens, index = self.context.text.tokens[rows], rows.cpu().numpy()
        lag, prompt = (torch.from_numpy(each[index]).to(where.device)[:, None] for each in (self.lag, self.prompt))
        own = tokens.gather(1, (where + lag).clamp(max=tokens.shape[1] - 1))
        short = self.short[rows].gather(1, where.clamp(max=self.short.shape[1] - 1))
        return torch.where(where < prompt, short, own)
