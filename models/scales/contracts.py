"""The contract of models that predict an image scale by scale: a transformer and a quantizer.

The transformer gives the logits of codes, the quantizer turns codes into vectors. Scale s is a square map of `sides[s]`
by `sides[s]` codes. Every code of a scale is predicted at once, from all earlier scales. Codes of all scales add up to
one map of vectors, the running sum, at the last scale's size; a decoder turns it into pixels.
Letters: R rows, S scales, n_s codes of scale s, L codes of all scales, V codes of the codebook, C numbers of a vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor

from ..errors import ModelError
from ..images.contracts import Condition, ImageLayout, ImageModel

if TYPE_CHECKING:
    from ..caches.kv_cache import KVCache


@dataclass(frozen=True, slots=True)
class Scales:
    """The sides of the token maps, coarse to fine."""

    sides: tuple[int, ...]

    @staticmethod
    def read(stated: object) -> Scales:
        """The sides that a file states, as a list or, like the authors' argument `pn`, as 1_2_3. Raises ModelError."""
        sides: object = stated
        if isinstance(stated, str):
            sides = [int(side) if side.isdecimal() else side for side in stated.split("_")]
        if (
            not isinstance(sides, list | tuple)
            or not sides
            or not all(type(side) is int and side > 0 for side in sides)
        ):
            raise ModelError(
                f"the sides of the token maps (patch_nums) are {stated!r}",
                'write a list of whole numbers above 0, like {"patch_nums": [1, 2, 3, 4]}',
            )
        return Scales(tuple(sides))

    def __len__(self) -> int:
        return len(self.sides)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of codes per scale."""
        return tuple(side * side for side in self.sides)

    @property
    def starts(self) -> tuple[int, ...]:
        """[S + 1]: where each scale begins among the codes of an image; the last entry is the number of codes."""
        return (0, *accumulate(self.sizes))

    @property
    def tokens(self) -> int:
        """Codes of all scales, L."""
        return self.starts[-1]


class MultiScaleQuantizer(Protocol):
    """Turns the codes of every scale into one map of vectors."""

    @property
    def scales(self) -> Scales: ...

    @property
    def channels(self) -> int:
        """Numbers of a code's vector, C."""
        ...

    @property
    def vocab(self) -> int:
        """Codes of the codebook, V; where a code has several digits, the values of a digit."""
        ...

    @property
    def digits(self) -> int:
        """Digits of a code, drawn independently, the highest first: 1, or the bits of a code that is a number."""
        ...

    def start(self, rows: int) -> Tensor:
        """The running sum [R, C, side, side] before the first scale: zeros, at the last scale's side."""
        ...

    def add(self, total: Tensor, codes: Tensor, scale: int) -> Tensor:
        """The running sum with the `codes` [R, n_s] of `scale`, as a new tensor."""
        ...

    def map_of(self, total: Tensor, scale: int) -> Tensor:
        """The transformer's input at `scale` (from 1): the running sum at that side, [R, n_s, C], in raster order."""
        ...


class TokenReduction(Protocol):
    """Which tokens of a forward's last scale go through each layer; `restore` sets the states of the others."""

    def select(self, layer: int, states: Tensor) -> Tensor | None:
        """The tokens [R, k] int64, ascending, that `layer` computes of `states` [R, n_s, E]; None: all."""
        ...

    def restore(self, layer: int, states: Tensor, tokens: Tensor) -> Tensor:
        """Completes the states after `layer` to [R, n_s, E], given `states` [R, k, E] of `tokens` [R, k]."""
        ...

    def observe(self, layer: int, states: Tensor) -> None:
        """Receives the last scale's states [R, n_s, E] after each layer, whether computed or restored."""
        ...


class ScaleTransformer(Protocol):
    """Computes the logits of a scale from all earlier ones."""

    @property
    def scales(self) -> Scales: ...

    @property
    def classes(self) -> int:
        """Classes of images; the label `classes` is the null class."""
        ...

    @property
    def layers(self) -> int: ...

    def new_cache(self, rows: int) -> KVCache:
        """An empty cache with room for all scales of `rows` rows."""
        ...

    def __call__(
        self,
        labels: Tensor,
        maps: Tensor,
        cache: KVCache,
        *,
        first: int,
        last: int,
        rows: Tensor | None = None,
        logits: Tensor | None = None,
        reduction: TokenReduction | None = None,
    ) -> Tensor:
        """One forward of the scales `first` to `last`, block-causal among them; appends their K/V to the cache.

        Args:
            labels: [R] int64, 0 to `classes`.
            maps: [R, n, C] float32: `MultiScaleQuantizer.map_of` of the scales max(first, 1) to `last`, one after the
                other; n is 0 where only scale 0 is fed, whose input follows from the label.
            cache: of `new_cache`; holds the scales before `first` for these rows.
            rows: [R] int64, which rows of the cache these are; None: all, in order.
            logits: [R] bool on the host, the rows whose logits are wanted; None: all.
            reduction: which tokens of scale `last` each layer computes; None: all.

        Returns:
            [R', n_last, V] float32: logits of scale `last`, of the rows that `logits` marks; of codes with several
            digits the V logits of each digit, one after the other.
        """
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class ScaleModel(ImageModel):
    """A model of token maps; its imaging decodes the codes of all scales, [B, L]."""

    transformer: ScaleTransformer
    guidance: Literal["growing", "constant"] = "growing"  # (1 + t) l_c - t l_u, t = cfg s / (S - 1), or cfg - 1 always

    @property
    def scales(self) -> Scales:
        """The sides of its token maps."""
        return self.transformer.scales

    @property
    def quantizer(self) -> MultiScaleQuantizer:
        """The quantizer of its image tokenizer. Raises ModelError for a model without one."""
        quantizer: MultiScaleQuantizer = self.imaging.quantizer  # type: ignore[attr-defined]
        return quantizer

    def of_size(self, size: tuple[int, int] | None) -> ScaleModel:
        """This model for images of a height and width in pixels, with the same weights; None is its own size.

        Raises ArgumentError for a size that it does not have.
        """
        imaging = self.imaging if size is None else self.imaging.resized(*size)
        if imaging is self.imaging:
            return self
        other = copy(self)
        other.imaging = imaging
        other.transformer = self.transformer.of_scales(imaging.layout.scales)  # type: ignore[attr-defined]
        return other

    def reading(self, conditions: Sequence[Condition], guided: Sequence[int]) -> ScaleTransformer:
        """The transformer for these captions, then for the `guided` ones of them without a caption.

        Its label i is the i-th of all these. Raises ModelError for a condition that it cannot read.
        """
        texts = self.imaging.texts(conditions, guided)  # type: ignore[attr-defined]
        transformer: ScaleTransformer = self.transformer.reading(texts)  # type: ignore[attr-defined]
        return transformer


def values(quantizer: MultiScaleQuantizer) -> str:
    """What a draw chooses among, in words for errors."""
    return f"{quantizer.vocab} codes" if quantizer.digits == 1 else f"{quantizer.vocab} values of each bit"


def check_pair(refiner: ScaleModel, target: ScaleModel) -> None:
    """Raises ModelError unless the two have the same token maps, codes, vectors of codes and classes."""
    for what, ours, theirs in (
        ("sides of the token maps", target.scales.sides, refiner.scales.sides),
        ("codes", target.quantizer.vocab, refiner.quantizer.vocab),
        ("digits of a code", target.quantizer.digits, refiner.quantizer.digits),
        ("dimensions of a code's vector", target.quantizer.channels, refiner.quantizer.channels),
        ("classes", target.transformer.classes, refiner.transformer.classes),
    ):
        if ours != theirs:
            raise ModelError(
                f"{refiner.name} cannot refine the images of {target.name}: its {what} are {theirs}, not {ours}",
                "use a model of the same image tokenizer and classes",
            )
    if not torch.allclose(_probe(target), _probe(refiner).to(target.device), rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"{refiner.name} cannot refine the images of {target.name}: its image tokenizer has other vectors",
            "load both with one image tokenizer",
        )


def _probe(model: ScaleModel) -> Tensor:
    """The contribution of a few codes of scale 0 to the running sum."""
    quantizer = model.quantizer
    codes = torch.arange(min(8, quantizer.vocab), device=model.device)[:, None].expand(-1, model.scales.sizes[0])
    with torch.inference_mode():
        return quantizer.add(quantizer.start(len(codes)), codes, 0).float()


@dataclass(frozen=True, eq=False)
class ScaleLayout(ImageLayout):
    """The layout of all maps' codes; its grid is the last map's."""

    scales: Scales = field(kw_only=True)

    @staticmethod
    def of(scales: Scales) -> ScaleLayout:
        """The layout of these maps."""
        return ScaleLayout(scales.sides[-1], scales.sides[-1], scales=scales)

    @property
    def tokens(self) -> int:
        return self.scales.tokens

    @property
    def code_shape(self) -> tuple[int, ...]:
        return (self.scales.tokens,)

    def codes(self, tokens: Tensor) -> Tensor:
        """Returns tokens [..., L]: they are the codes."""
        return tokens[..., : self.scales.tokens]
