"""Adaptive block: a block ends after the most confident delimiter predicted by its first forward.

AdaBlock-dLLM: Semantic-Aware Diffusion LLM Inference via Adaptive Block Size, https://arxiv.org/abs/2509.26432

    a block begins at the first open position s; its first forward sees s to s + scope * L, L the positions to generate
    d = the position there whose likeliest token is a delimiter, with the highest probability p
    block = [s, d + 1) if p >= tau, else [s, s + W)

W is `block_length`. The forward also commits. The published values of tau are 0.3 for LLaDA and 0.5 for Dream, with
newlines as delimiters. Deviates from the published code at temperatures above 0: there the drawn token has to be a
delimiter, here the likeliest.
Exact: no.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch

from pardec.models.caches.shares import floor_of_share
from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ..contracts import Block, Canvas, Evidence, Span

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel


@dataclass
class State:
    """The active block of each row; [B] arrays."""

    block_start: np.ndarray
    block_end: np.ndarray


@register("adablock", checked="reference:reference.naive_blocks.AdaBlock")
class AdaptiveBlock(Block):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.3, 0.5, 0.7)}

    tau: Annotated[float, "least probability of a delimiter that ends a block"] = 0.3
    delimiters: Annotated[str | None, "token ids joined by -, as 198-13; none: the newline tokens"] = None
    scope: Annotated[float, "share of the generated length that is searched for a delimiter"] = 0.25

    def __post_init__(self) -> None:
        self.require("tau", "scope", least=0, most=1)
        if self.delimiters is not None and not all(part.isdecimal() for part in self.delimiters.split("-")):
            raise SpecError(
                f"adablock: delimiters must be token ids joined by -, got {self.delimiters!r}", "delimiters=198-13"
            )

    def fit(self, model: LanguageModel) -> AdaptiveBlock:
        if self.delimiters is not None:
            return self
        tokenizer = model.tokenizer
        ids = [] if tokenizer is None else [i for i in range(len(tokenizer)) if tokenizer.decode([i]) == "\n"]
        if not ids:
            raise SpecError(
                f"adablock: {model.name} has no newline token", "give the ids of its delimiters: delimiters=198-13"
            )
        return replace(self, delimiters="-".join(map(str, ids)))

    def start(self, canvas: Canvas) -> State:
        return State(canvas.prompt.copy(), canvas.prompt.copy())

    def span(self, canvas: Canvas, state: State) -> Span:
        begins = canvas.first_open >= state.block_end
        block_start = np.where(begins, canvas.first_open, state.block_start)
        ahead = np.maximum(self._scope(canvas), canvas.block_length)
        block_end = np.where(begins, np.minimum(block_start + ahead, canvas.total), state.block_end)
        state.block_start, state.block_end = block_start, block_end
        return Span(block_start, block_end, begins)

    def narrow(self, evidence: Evidence, canvas: Canvas, state: State) -> Span | None:
        if not canvas.block_started.any():
            return None
        assert self.delimiters is not None, "filled in by fit"
        ids, probability = evidence.distribution.greedy
        delimiters = upload(torch.tensor([int(part) for part in self.delimiters.split("-")]), ids.device)
        ahead = upload(state.block_start + self._scope(canvas), ids.device)[:, None]
        which = evidence.eligible & torch.isin(ids, delimiters) & (evidence.positions < ahead)
        best, column = torch.where(which, probability, -1.0).max(1)
        found = evidence.positions.gather(1, column[:, None])[:, 0] + 1
        plain = np.minimum(state.block_start + canvas.block_length, canvas.total)
        others = upload(np.where(canvas.block_started, plain, state.block_end), ids.device)
        end = torch.where((best >= self.tau) & upload(canvas.block_started, ids.device), found, others)
        canvas.read_later({"block_end": end}, vars(state).update)
        return Span(state.block_start, end, np.zeros_like(canvas.block_started))

    def _scope(self, canvas: Canvas) -> np.ndarray:
        return floor_of_share(self.scope, canvas.total - canvas.prompt)
