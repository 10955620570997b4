"""A law: the distribution that some logits stand for, and drawing from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from pardec.models import finite
from pardec.models.kernels.choice import backend

from ..rng import gumbel
from .confidence import CACHED, Confidence, confidence, greedy
from .rank import argmax

Noise = Callable[[np.ndarray], Tensor]  # places [N] of a block -> uniforms [N, V] in (0, 1), float64

_HELD = 1 << 24  # numbers whose noise is there at once, where no cache has to hold it


@dataclass(frozen=True)
class Distribution:
    """softmax(logits) at each position of the active block. Statistics are computed once, when first asked for.

    With `place`, only some positions have logits, and each of the block's says where its own stand; those without share
    another's, which means nothing. Statistics are then computed for the few and handed out aligned to the block.
    """

    rows: Tensor  # [B, W, V], or with `place` [R, V]
    place: Tensor | None = None  # [B, W] int64, row of `rows`

    @cached_property
    def logits(self) -> Tensor:
        """[B, W, V]."""
        return self.rows if self.place is None else self.aligned(self.rows)

    @cached_property
    def vocab(self) -> int:
        """V."""
        return self.rows.shape[-1]

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.rows.device

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        """The argmax and its probability, [B, W]."""
        if "confidence" in vars(self) or backend(self.device) == "triton":  # computed already, or on the way
            return self.confidence.ids, self.confidence.probability
        ids, probability = greedy(self.rows)
        return self.aligned(ids), self.aligned(probability)

    @cached_property
    def confidence(self) -> Confidence:
        """argmax, top-1, top-2, log-sum-exp and entropy, each [B, W]."""
        return Confidence(*map(self.aligned, confidence(self.rows)))

    def highest(self) -> Tensor:
        """[]: finite as long as every position that has logits has a distribution (see `models.finite`)."""
        return finite.highest(self.rows)

    def probability(self, tokens: Tensor) -> Tensor:
        """The probability of `tokens` [B, W]."""
        ids, highest = self.greedy
        if tokens is ids:
            return highest
        chosen = self.at(torch.stack((ids, tokens), -1))
        return (chosen[..., 1] - chosen[..., 0]).exp() * highest

    def at(self, tokens: Tensor) -> Tensor:
        """The logits of some `tokens` at each position, [B, W, K] both."""
        return self.rows.gather(-1, tokens) if self.place is None else self.rows[self.place[..., None], tokens]

    def boosted(self, tokens: Tensor, by: Tensor) -> Distribution:
        """This law with the logits of a few `tokens` [B, W, K] raised `by` [B, W, K], at least 0.

        A token stands once at a position, except with nothing to add. No second pass over the vocabulary is made.
        """
        return BoostedDistribution(self, tokens, by)

    def some(self, places: np.ndarray) -> Tensor:
        """The logits at some `places` [N] of the block, counted over all rows; [N, V]."""
        index = torch.from_numpy(places).to(self.device)
        row = index if self.place is None else self.place.flatten()[index]
        return self.rows.flatten(0, -2).index_select(0, row)

    def draw(self, places: np.ndarray, noise: Noise) -> Tensor:
        """A token for each of `places` (see `some`), [N] int64: the Gumbel-max rule, in float64."""
        most = CACHED if self.device.type == "cpu" else _HELD
        parts = parted(places, most // self.vocab)
        return torch.cat([argmax(gumbel(noise(part)).add_(self.some(part))) for part in parts])

    def scaled(self, temperature: float) -> Distribution:
        """The law with its logits over the temperature, above 0."""
        if temperature != 1 and backend(self.device) == "triton":
            return ScaledDistribution(self, temperature)
        return self.mapped(lambda logits: logits if temperature == 1 else logits / temperature)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        """The law with its logits changed, [1, N, V] -> [1, N, V], position by position."""
        return Distribution(change(self.rows.flatten(0, -2)[None])[0].view(self.rows.shape), self.place)

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """`embed` of the probabilities, [..., V] -> [..., E], for each position [B, W, E]."""
        return self.aligned(embed(self.rows.softmax(-1)))

    def aligned(self, found: Tensor) -> Tensor:
        """What was computed for `rows`, handed out for the block: [R, ...] -> [B, W, ...]."""
        if self.place is None:
            return found
        return found.take(self.place) if found.dim() == 1 else found[self.place]  # the same, in half the time


def parted(places: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """`places` [N] in parts of `size`, at least of one; of no places, one part without any."""
    size = max(size, 1)
    return (places[start : start + size] for start in range(0, max(len(places), 1), size))


class ScaledDistribution(Distribution):
    """A law over a temperature: its statistics are read off the other law's logits, and its own are not kept."""

    def __init__(self, base: Distribution, temperature: float) -> None:
        vars(self).update(base=base, temperature=temperature, place=base.place)  # frozen, as laws are
        self.base: Distribution
        self.temperature: float

    @property
    def device(self) -> torch.device:
        return self.base.device

    @property
    def rows(self) -> Tensor:
        return self.base.rows / self.temperature

    @property
    def logits(self) -> Tensor:
        return self.base.logits / self.temperature

    @cached_property
    def vocab(self) -> int:
        return self.base.vocab

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        return self.confidence.ids, self.confidence.probability

    @cached_property
    def confidence(self) -> Confidence:
        distribution = self.base
        if isinstance(distribution, BoostedDistribution):
            return confidence(
                distribution.base.logits, temperature=self.temperature, tokens=distribution.tokens, by=distribution.by
            )
        return Confidence(*map(self.aligned, confidence(distribution.rows, temperature=self.temperature)))

    def highest(self) -> Tensor:
        return self.base.highest() / self.temperature

    def at(self, tokens: Tensor) -> Tensor:
        return self.base.at(tokens) / self.temperature

    def some(self, places: np.ndarray) -> Tensor:
        return self.base.some(places) / self.temperature


class BoostedDistribution(Distribution):
    """A law with a few logits raised: its statistics follow from the other law's, its logits are made if asked for."""

    place = None

    def __init__(self, base: Distribution, tokens: Tensor, by: Tensor) -> None:
        vars(self).update(base=base, tokens=tokens, by=by)  # frozen, as laws are
        self.base: Distribution
        self.tokens: Tensor
        self.by: Tensor

    @property
    def device(self) -> torch.device:
        return self.base.device

    @cached_property
    def rows(self) -> Tensor:
        """[B, W, V]."""
        return self.base.logits.scatter_add(-1, self.tokens, self.by)

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        if "confidence" in vars(self.base):
            return self.confidence.ids, self.confidence.probability
        first, probability = self.base.greedy
        top1 = self.base.at(first[..., None])
        old, new, rivals = self._raise(first, top1)
        ids, top = self._lead(first, rivals)
        rest = (probability.reciprocal() - (old - top1).exp().sum(-1)).clamp(min=0)  # everything not raised
        return ids, 1 / (rest * (top1[..., 0] - top).exp() + (new - top[..., None]).exp().sum(-1))

    @cached_property
    def confidence(self) -> Confidence:
        found = self.base.confidence
        old, new, rivals = self._raise(found.ids, found.top1[..., None])
        ids, top = self._lead(found.ids, rivals)
        old, new, rise = old - found.top1[..., None], new - top[..., None], top - found.top1
        rest = (found.mass - old.exp().sum(-1)).clamp(min=0)
        moment = found.mass * (found.mass.log() - found.entropy) - _moment(old)  # of everything not raised
        mass = rest * (-rise).exp() + new.exp().sum(-1)
        moment = (moment - rest * rise) * (-rise).exp() + _moment(new)
        # The second was raised and is a rival now, or was not and keeps its logit.
        second = torch.cat((rivals, found.top2[..., None]), -1).topk(2).values[..., 1]
        return Confidence(ids, top, second, mass, (mass.log() - moment / mass).clamp(min=0))

    def highest(self) -> Tensor:
        return self.by.sum()  # the other law was asked before

    def at(self, tokens: Tensor) -> Tensor:
        same = tokens[..., None] == self.tokens[..., None, :]
        return self.base.at(tokens) + torch.where(same, self.by[..., None, :], 0).sum(-1)

    def _raise(self, first: Tensor, top1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of what was raised before and after, [B, W, K], and of what may lead: the old argmax, then those.

        Whatever was not raised stands behind the old argmax `first` [B, W], whose logit was `top1` [B, W, 1].
        """
        old = self.base.at(self.tokens).masked_fill(self.by == 0, -torch.inf)
        new = old + self.by
        own = self.tokens == first[..., None]
        before = top1 + torch.where(own, self.by, 0).amax(-1, keepdim=True)
        return old, new, torch.cat((before, new.masked_fill(own, -torch.inf)), -1)

    def _lead(self, first: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
        """The new argmax and its logit, [B, W]."""
        top = rivals.amax(-1, keepdim=True)
        names = torch.cat((first[..., None], self.tokens), -1)
        return names.masked_fill(rivals < top, torch.iinfo(names.dtype).max).amin(-1), top[..., 0]


def _moment(logits: Tensor) -> Tensor:
    """sum exp(l) l over the last dimension; nothing where l is -inf."""
    return (logits.exp() * logits.clamp(min=torch.finfo(logits.dtype).min)).sum(-1)


def filtered(
    logits: Tensor,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: Literal["top_p", "top_k"] = "top_p",
) -> Tensor:
    """`logits` [B, W, V] over the temperature, then without what top-p, top-k and min-p leave out (-inf).

    `order` names the filter that comes first: masked models began with top-p, autoregressive ones with top-k. min-p
    comes last, as in transformers. A temperature of 0 leaves the logits undivided: the argmax is the same and the
    filters still shape the law.
    """
    if temperature > 0 and temperature != 1:
        logits = logits / temperature
    if top_k is None and top_p is None and min_p is None:
        return logits
    from transformers.generation.logits_process import MinPLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    warpers: list[Any] = [TopPLogitsWarper(top_p)] if top_p is not None and top_p < 1 else []
    warpers += [TopKLogitsWarper(top_k)] if top_k is not None else []
    warpers = warpers[::-1] if order == "top_k" else warpers
    warpers += [MinPLogitsWarper(min_p)] if min_p is not None else []
    rows = rearrange(logits, "b w v -> (b w) v")
    for warper in warpers:
        rows = warper(None, rows)
    return rearrange(rows, "(b w) v -> b w v", b=len(logits))
