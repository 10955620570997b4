"""Distributions over the vocabulary at the positions of a block, and sampling from them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from pardec.models import finite
from pardec.models.kernels.choice import backend

from ..host_transfer import upload
from ..rng import gumbel, uniforms
from .confidence import CACHED, Confidence, argmax, confidence, greedy

Noise = Callable[[np.ndarray], Tensor]  # positions [N] of a block -> uniforms [N, V] in (0, 1), float64
Keys = Callable[[np.ndarray], Tensor]  # the same -> keys [N] int64 of those uniforms, see `rng.Keyed.keys`

_NOISE_AT_ONCE = 1 << 24  # noise values made at once on a GPU; on a CPU they have to fit its cache


class Distribution(ABC):
    """softmax(logits) at each position [B, W] of the active block. Statistics are computed once, when first needed."""

    @property
    @abstractmethod
    def vocab(self) -> int:
        """The size of the vocabulary, V."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the logits."""

    @property
    @abstractmethod
    def logits(self) -> Tensor:
        """[B, W, V]."""

    @property
    @abstractmethod
    def confidence(self) -> Confidence:
        """argmax, top-1, top-2, log-sum-exp and entropy, each [B, W]."""

    @property
    def greedy(self) -> tuple[Tensor, Tensor]:
        """The argmax and its probability, [B, W]."""
        return self.confidence.ids, self.confidence.probability

    @abstractmethod
    def highest(self) -> Tensor:
        """[]: finite only if every position with logits has a distribution (see `models.finite`)."""

    @abstractmethod
    def logits_of(self, tokens: Tensor) -> Tensor:
        """[B, W, K]: the logits of `tokens` [B, W, K]."""

    @abstractmethod
    def logits_at(self, positions: np.ndarray | Tensor) -> Tensor:
        """[N, V]: the logits at `positions` [N] of the block, as flat indices over all rows."""

    @abstractmethod
    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        """The distribution with logits changed by a function of each position, [1, N, V] -> [1, N, V]."""

    @abstractmethod
    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """[B, W, E]: `embed` [..., V] -> [..., E] applied to the probabilities at each position."""

    def probability(self, tokens: Tensor) -> Tensor:
        """The probability of `tokens` [B, W]."""
        ids, highest = self.greedy
        if tokens is ids:
            return highest
        pair = self.logits_of(torch.stack((ids, tokens), -1))
        return (pair[..., 1] - pair[..., 0]).exp() * highest

    def boosted(self, tokens: Tensor, by: Tensor) -> Distribution:
        """This distribution with the logits of a few `tokens` [B, W, K] raised `by` [B, W, K], at least 0.

        A token occurs once at a position, except with nothing to add. No second pass over the vocabulary is made.
        """
        return BoostedDistribution(self, tokens, by)

    def scaled(self, temperature: float) -> Distribution:
        """The distribution with its logits divided by the temperature, above 0."""
        return self.mapped(lambda logits: logits if temperature == 1 else logits / temperature)

    def draw(self, positions: np.ndarray, noise: Noise, keys: Keys | None = None) -> Tensor:
        """A token for each of `positions` (see `logits_at`), [N] int64: the Gumbel-max rule, in float64.

        Where there are `keys`, a GPU makes the noise while it reads the logits.
        """
        if keys is not None and backend(self.device) == "triton":
            return self.drawn(positions, keys(positions))
        most = CACHED if self.device.type == "cpu" else _NOISE_AT_ONCE
        chunks = split(positions, most // self.vocab)
        return torch.cat([argmax(gumbel(noise(chunk)).add_(self.logits_at(chunk))) for chunk in chunks])

    def draw_all(self, keys: Tensor) -> Tensor:
        """[B, W] int64: `draw` at every position, with the `keys` [B, W] of their noise."""
        if backend(self.device) == "triton":
            return self._drawn_everywhere(keys.flatten()).view(keys.shape)
        return argmax(gumbel(uniforms(keys, self.vocab)).add_(self.logits))

    def _drawn_everywhere(self, keys: Tensor) -> Tensor:
        from .confidence_triton import statistics

        drawn = statistics(self.logits.flatten(0, -2), keys=keys).drawn
        assert drawn is not None
        return drawn

    def drawn(self, positions: np.ndarray, keys: Tensor) -> Tensor:
        """`draw` in Triton, with the `keys` [N] of the positions' noise."""
        from .confidence_triton import statistics

        drawn = statistics(self.logits_at(positions), keys=keys).drawn
        assert drawn is not None
        return drawn


def split(positions: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """`positions` [N] in chunks of `size`, at least 1; a single empty chunk where there are none."""
    size = max(size, 1)
    return (positions[start : start + size] for start in range(0, max(len(positions), 1), size))


class DenseDistribution(Distribution):
    """A distribution whose logits are in memory.

    With `index`, only some positions have logits, and it says which row holds those of each position; positions without
    logits share another's, which means nothing. Statistics are computed once per row and then aligned to the block.
    """

    def __init__(self, row_logits: Tensor, index: Tensor | None = None, *, known: Confidence | None = None) -> None:
        """`row_logits`: [B, W, V], or [R, V] with `index` [B, W] int64, the row of each position.

        `known` are statistics [B, W] that were computed already.
        """
        self.row_logits, self.index = row_logits, index
        if known is not None:
            self.confidence = known
        self._highest: Tensor | None = None  # the value of `highest`, from a pass that has read the logits

    @property
    def vocab(self) -> int:
        return self.row_logits.shape[-1]

    @property
    def device(self) -> torch.device:
        return self.row_logits.device

    @property
    def count(self) -> int:
        """The number of rows with logits."""
        return self.row_logits.shape[:-1].numel()

    @cached_property
    def logits(self) -> Tensor:
        return self._align(self.row_logits)

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        rows = self.row_logits
        if "confidence" in vars(self) or (rows.is_cuda and backend(rows.device) == "triton"):  # known, or soon needed
            return super().greedy
        ids, probability = greedy(rows)
        return (ids, probability) if self.index is None else (ids.take(self.index), probability.take(self.index))

    @cached_property
    def confidence(self) -> Confidence:
        return self.confidence_at(1)

    def confidence_at(self, temperature: float) -> Confidence:
        """The statistics at a temperature, computed from the undivided logits."""
        if backend(self.device) == "triton":
            return self._read(temperature)[0]
        return Confidence(*map(self._align, confidence(self.row_logits, temperature=temperature)))

    def highest(self) -> Tensor:
        if backend(self.device) == "triton" and "confidence" not in vars(self):
            _ = self.confidence  # soon needed, and found in the same pass
        return finite.highest(self.row_logits) if self._highest is None else self._highest

    def drawn(self, positions: np.ndarray, keys: Tensor) -> Tensor:
        drawn, confidence = self.drawn_at(1, positions, keys)
        if confidence is not None:
            vars(self).setdefault("confidence", confidence)
        return drawn

    def _drawn_everywhere(self, keys: Tensor) -> Tensor:
        return self.drawn(np.arange(len(keys)), keys)  # the statistics are found in the same pass

    def drawn_at(self, temperature: float, positions: np.ndarray, keys: Tensor) -> tuple[Tensor, Confidence | None]:
        """`drawn` at a temperature; and the statistics, where all rows are read."""
        if self.index is None and len(positions) == self.count and (positions == np.arange(self.count)).all():
            confidence, drawn = self._read(temperature, keys.view(self.row_logits.shape[:-1]))
            assert drawn is not None
            return drawn.flatten(), confidence
        from .confidence_triton import statistics

        drawn = statistics(self.logits_at(positions), temperature, keys=keys).drawn
        assert drawn is not None
        return drawn, None

    def _read(self, temperature: float, keys: Tensor | None = None) -> tuple[Confidence, Tensor | None]:
        """The statistics at a temperature, by one pass in Triton, and the tokens that `keys` of all rows draw."""
        from .confidence_triton import statistics

        found = statistics(self.row_logits, temperature, keys=keys)
        if temperature == 1:
            self._highest = found.highest.sum()
        return Confidence(*map(self._align, found[:5])), found.drawn

    def logits_of(self, tokens: Tensor) -> Tensor:
        if self.index is None:
            return self.row_logits.gather(-1, tokens)
        return self.row_logits[self.index[..., None], tokens]

    def logits_at(self, positions: np.ndarray | Tensor) -> Tensor:
        at = upload(positions, self.device)
        return self.logits_of_rows(at if self.index is None else self.index.flatten()[at])

    def logits_of_rows(self, rows: Tensor) -> Tensor:
        """[N, V]: the logits of `rows` [N]."""
        return self.row_logits.flatten(0, -2).index_select(0, rows)

    def reindexed(self, index: Tensor) -> DenseDistribution:
        """The same rows at other positions, `index` [B, W]."""
        return DenseDistribution(self.row_logits.flatten(0, -2), index)

    def scaled(self, temperature: float) -> Distribution:
        if backend(self.device) == "triton":  # statistics are found once
            return self if temperature == 1 else ScaledDistribution(self, temperature)
        return super().scaled(temperature)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        rows = self.row_logits
        return DenseDistribution(change(rows.flatten(0, -2)[None])[0].view(rows.shape), self.index)

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return self._align(embed(self.row_logits.softmax(-1)))

    def _align(self, values: Tensor) -> Tensor:
        return values if self.index is None else align(values, self.index)


def align(values: Tensor, index: Tensor) -> Tensor:
    """`values` [R, ...] per row, gathered at the row `index` [B, W] of each position."""
    return values.take(index) if values.dim() == 1 else values[index]  # the same, in half the time


class DerivedDistribution(Distribution):
    """A distribution that is made from another, `base`, over the same vocabulary."""

    base: Distribution

    @property
    def vocab(self) -> int:
        return self.base.vocab

    @property
    def device(self) -> torch.device:
        return self.base.device


class BoostedDistribution(DerivedDistribution):
    """`base` with the logits of a few tokens raised; computes its statistics from the statistics of `base`.

    The full logits [B, W, V] are built only if a method asks for them.
    """

    def __init__(self, base: Distribution, tokens: Tensor, by: Tensor) -> None:
        self.base, self.tokens, self.by = base, tokens, by

    @cached_property
    def _dense(self) -> DenseDistribution:
        return DenseDistribution(self.base.logits.scatter_add(-1, self.tokens, self.by))

    @property
    def logits(self) -> Tensor:
        return self._dense.logits

    @cached_property
    def greedy(self) -> tuple[Tensor, Tensor]:
        if "confidence" in vars(self.base):
            return super().greedy
        first, probability = self.base.greedy
        top1 = self.base.logits_of(first[..., None])
        old, new, rivals = self._raise(first, top1)
        ids, top = self._lead(first, rivals)
        rest = (probability.reciprocal() - (old - top1).exp().sum(-1)).clamp(min=0)  # of all tokens not raised
        return ids, 1 / (rest * (top1[..., 0] - top).exp() + (new - top[..., None]).exp().sum(-1))

    @cached_property
    def confidence(self) -> Confidence:
        base = self.base.confidence
        old, new, rivals = self._raise(base.ids, base.top1[..., None])
        ids, top = self._lead(base.ids, rivals)
        old, new, rise = old - base.top1[..., None], new - top[..., None], top - base.top1
        rest = (base.mass - old.exp().sum(-1)).clamp(min=0)
        moment = base.mass * (base.mass.log() - base.entropy) - _moment(old)  # of all tokens not raised
        mass = rest * (-rise).exp() + new.exp().sum(-1)
        moment = (moment - rest * rise) * (-rise).exp() + _moment(new)
        # The second of `base` keeps its logit, unless it was raised: then its own new logit among the rivals is higher.
        second = torch.cat((rivals, base.top2[..., None]), -1).topk(2).values[..., 1]
        return Confidence(ids, top, second, mass, (mass.log() - moment / mass).clamp(min=0))

    def confidence_at(self, temperature: float) -> Confidence:
        """The statistics at a temperature, computed from the base's logits."""
        return confidence(self.base.logits, temperature=temperature, tokens=self.tokens, by=self.by)

    def highest(self) -> Tensor:
        return self.by.sum()  # the base's value was checked before

    def logits_of(self, tokens: Tensor) -> Tensor:
        same = tokens[..., None] == self.tokens[..., None, :]
        return self.base.logits_of(tokens) + torch.where(same, self.by[..., None, :], 0).sum(-1)

    def logits_at(self, positions: np.ndarray | Tensor) -> Tensor:
        return self._dense.logits_at(positions)

    def scaled(self, temperature: float) -> Distribution:
        if temperature != 1 and backend(self.device) == "triton":
            return ScaledDistribution(self, temperature)
        return super().scaled(temperature)

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        return self._dense.mapped(change)

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return self._dense.expected(embed)

    def _raise(self, first: Tensor, top1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The logits of the raised tokens before and after, [B, W, K] each, and of all candidates for the new argmax.

        The candidates [B, W, 1 + K] are the old argmax `first` [B, W], with logit `top1` [B, W, 1] before, and the
        raised tokens: no other token can rank above the old argmax.
        """
        old = self.base.logits_of(self.tokens).masked_fill(self.by == 0, -torch.inf)
        new = old + self.by
        own = self.tokens == first[..., None]
        before = top1 + torch.where(own, self.by, 0).amax(-1, keepdim=True)
        return old, new, torch.cat((before, new.masked_fill(own, -torch.inf)), -1)

    def _lead(self, first: Tensor, rivals: Tensor) -> tuple[Tensor, Tensor]:
        """The new argmax and its logit, [B, W]."""
        top = rivals.amax(-1, keepdim=True)
        names = torch.cat((first[..., None], self.tokens), -1)
        return names.masked_fill(rivals < top, torch.iinfo(names.dtype).max).amin(-1), top[..., 0]


class ScaledDistribution(DerivedDistribution):
    """A distribution at a temperature, for GPUs: the kernel divides while reading, so no divided logits are stored."""

    base: DenseDistribution | BoostedDistribution

    def __init__(self, base: DenseDistribution | BoostedDistribution, temperature: float) -> None:
        self.base, self.temperature = base, temperature

    @property
    def logits(self) -> Tensor:
        return self.base.logits / self.temperature

    @cached_property
    def confidence(self) -> Confidence:
        return self.base.confidence_at(self.temperature)

    def highest(self) -> Tensor:
        return self.base.highest() / self.temperature

    def drawn(self, positions: np.ndarray, keys: Tensor) -> Tensor:
        if not isinstance(self.base, DenseDistribution):
            return super().drawn(positions, keys)
        drawn, confidence = self.base.drawn_at(self.temperature, positions, keys)
        if confidence is not None:
            vars(self).setdefault("confidence", confidence)
        return drawn

    def _drawn_everywhere(self, keys: Tensor) -> Tensor:
        dense = isinstance(self.base, DenseDistribution)
        return self.drawn(np.arange(len(keys)), keys) if dense else super()._drawn_everywhere(keys)

    def logits_of(self, tokens: Tensor) -> Tensor:
        return self.base.logits_of(tokens) / self.temperature

    def logits_at(self, positions: np.ndarray | Tensor) -> Tensor:
        return self.base.logits_at(positions) / self.temperature

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Distribution:
        return self.base.mapped(lambda logits: change(logits / self.temperature))

    def expected(self, embed: Callable[[Tensor], Tensor]) -> Tensor:
        return self.mapped(lambda logits: logits).expected(embed)


def _moment(logits: Tensor) -> Tensor:
    """The sum of exp(l) l over the last dimension; entries with l = -inf add 0."""
    return (logits.exp() * logits.clamp(min=torch.finfo(logits.dtype).min)).sum(-1)


def filter_logits(
    logits: Tensor,
    *,
    temperature: float,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    order: Literal["top_p", "top_k"] = "top_p",
) -> Tensor:
    """`logits` [B, W, V] divided by the temperature, with tokens outside top-p, top-k and min-p at -inf.

    `order` names the filter that comes first: masked models began with top-p, autoregressive ones with top-k. min-p
    comes last, as in transformers. A temperature of 0 leaves the logits undivided: the argmax is the same and the
    filters still shape the distribution.
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
