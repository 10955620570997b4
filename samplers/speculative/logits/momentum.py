"""Penalizes tokens that would close a circuit: repeating a short piece is allowed, repeating a long one is not.

Momentum Decoding: Open-ended Text Generation As Graph Exploration, https://arxiv.org/abs/2212.02175

    next = argmax p                                    if that token is not in the text
           argmax over the k likeliest of p(v) - alpha * f(d(v))      otherwise

The text, prompt included, is a path in a graph whose nodes are tokens. A token that the text has closes a circuit; its
depth d(v) is the length of the longest end of "text, v" that the text has already, and 0 for a new token. f(0) = 0, and
`resistance` is f(1), f(2), ...; greater depths are taken for its last.

The published rule is deterministic. Above temperature 0 a token is sampled in the second case from the k likeliest in
proportion to the positive part of p(v) - alpha * f(d(v)), and in the first from p; temperature and filters then apply
to that. Temperature 0 is the limit. Where nothing is positive, the highest is taken at any temperature.

Deviates from the authors' code: nowhere at temperature 0, but for ties, which go to the lowest id. Of the resistance
functions in their repository the default is that of its first version; 1-2-3-4-5 is a later one.
Exact: no; `alpha=0` changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from torch import Tensor

from pardec.models.errors import SpecError

from ...host_transfer import upload
from ...registry import register
from ...traits import Reasons, Trait, Why
from ..contracts import Logits

if TYPE_CHECKING:
    pass


@register("momentum", checked="reference:samplers.speculative.test_momentum.naive_text")
class Momentum(Logits):
    alpha: Annotated[float, "weight of the resistance, in probability; 0 is off"] = 0.2
    k: Annotated[int, "candidates considered where the likeliest token would close a circuit"] = 5
    resistance: Annotated[str, "resistance of circuits of depth 1, 2, ...; deeper ones have the last"] = "1-3-4-5-6"

    def __post_init__(self) -> None:
        self.require("alpha", least=0)
        self.require("k", least=1)
        if not all(value >= 0 for value in self.by_depth):
            raise SpecError(
                f"momentum: resistance must be at least 0 at every depth, got {self.resistance!r}",
                hint="leave resistance out",
            )

    @property
    def by_depth(self) -> tuple[float, ...]:
        """The penalties f(1), f(2), ... by depth."""
        try:
            return tuple(float(value) for value in self.resistance.split("-"))
        except ValueError:
            raise SpecError(
                f"momentum: resistance must be numbers joined by '-', got {self.resistance!r}",
                hint="1-3-4-5-6 is the published one",
            ) from None

    @property
    def exact(self) -> str:
        return "relaxed" if self.alpha else "greedy"

    conflicts: ClassVar[Reasons] = {
        Trait.CONDITIONS: Why("{me} is for text, and images repeat their codes", "leave {me} out")
    }

    def scores(self, ids: Tensor, logits: Tensor, prompts: Tensor) -> Tensor:
        if not self.alpha:
            return logits
        depth = self._depths(ids, logits.shape[-1])
        friction = upload(torch.tensor([0.0, *self.by_depth], dtype=torch.float32), depth.device)
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)  # equal logits by id
        candidates = order[:, : self.k]
        margin = logits.softmax(-1).gather(-1, candidates) - self.alpha * friction[depth.gather(-1, candidates)]
        margin = margin.masked_fill(ordered[:, : self.k] == -torch.inf, -torch.inf)
        highest = margin == margin.amax(-1, keepdim=True)
        stuck = (margin <= 0).all(-1, keepdim=True)
        resisted = torch.full_like(logits, -torch.inf)
        resisted.scatter_(-1, candidates, torch.where(stuck, highest.float().log(), margin.clamp(min=0).log()))
        new = depth.gather(-1, candidates[:, :1]) == 0
        return torch.where(new, logits, resisted)

    def _depths(self, ids: Tensor, vocabulary: int) -> Tensor:
        """[N, V] int64: the depth of the circuit that each token would close after `ids` [N, C], cut to the table."""
        count, length = ids.shape
        deepest = len(self.by_depth)
        # agreed[:, j]: how many tokens before position j equal those at the end of the text, one by one from the end.
        going = torch.ones_like(ids, dtype=torch.bool)
        agreed = torch.zeros_like(ids)
        for back in range(1, min(deepest, length)):
            same = torch.zeros_like(going)
            same[:, back:] = ids[:, :-back] == ids[:, length - back, None]
            going = going & same
            agreed = agreed + going
        depths = ids.new_zeros(count, vocabulary)
        return depths.scatter_reduce_(-1, ids, agreed + 1, "amax")
