"""The projection of the target's tapped states, learned on inputs of unit size.

A few dimensions of a layer's output are hundreds of times larger than the others, and their weights would dominate
every optimizer step. The weights that are learned multiply x / s, s the root mean square of each dimension; the
exported ones multiply x.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..states import States

_SAMPLE = 40_000  # positions that sizes and the first weights are estimated from
_SINK = 4  # first positions of a text, whose states are unusual
_RIDGE = 1e-3


class Features(nn.Module):
    """x [..., n E] -> [..., E]."""

    scale: Tensor

    def __init__(self, width: int, size: int, generator: torch.Generator) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, size, generator=generator) * size**-0.5)
        self.register_buffer("scale", torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x / self.scale.to(x.dtype), self.weight.to(x.dtype))

    def load_exported(self, value: Tensor) -> None:
        """Loads weights [E, n E] that multiply x itself; the estimated sizes stay."""
        with torch.no_grad():
            self.weight.copy_(value.to(self.scale.device) * self.scale)

    @property
    def exported(self) -> Tensor:
        """The weights [E, n E] that multiply x itself."""
        return self.weight / self.scale

    def fit(self, states: States, embedding: Tensor, norm: Tensor, ahead: int, linear: bool) -> None:
        """Estimates the sizes; with `linear`, starts as the best linear guess of the state `ahead` positions later.

        The guess is made from the features and the next token's embedding together, and keeps the features' part.
        """
        xs, ys, tokens, rows = [], [], [], 0
        for text in states.texts[:: max(1, len(states.texts) * 200 // _SAMPLE)]:
            batch = states.batch([text])
            if text.length <= _SINK + ahead + 1:
                continue
            xs.append(batch.taps[0, _SINK : -ahead - 1].flatten(1).float())
            ys.append(batch.normed[0, _SINK + ahead : -1].float() / norm)
            tokens.append(batch.ids[0, _SINK + 1 : text.length - ahead])
            rows += len(xs[-1])
            if rows > _SAMPLE:
                break
        if not xs:  # every text is short
            return
        x, y = torch.cat(xs), torch.cat(ys)
        self.scale.copy_(x.pow(2).mean(0).sqrt().clamp(min=1e-6))
        if not linear:
            return
        x = x / self.scale
        embedded = embedding[torch.cat(tokens)].float()
        x = torch.cat((x, embedded / embedded.pow(2).mean().sqrt()), 1)
        square = x.T @ x / len(x)
        square.diagonal().add_(_RIDGE * float(square.diagonal().mean()))
        solution = torch.linalg.solve(square, x.T @ y / len(x))
        with torch.no_grad():
            self.weight.copy_(solution[: len(self.scale)].T)
