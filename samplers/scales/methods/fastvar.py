"""At the last scales layers compute only distinctive tokens; other tokens reuse layer outputs of a coarser map.

FastVAR: Linear Visual Autoregressive Modeling via Cached Token Pruning, https://arxiv.org/abs/2503.23367

    keep the tokens with the largest |x - mean(x)|^2 of the map;  of the rest, x <- x + area(c),
    c what the layer added to the last complete map, resized to this one

The share that is kept shrinks by the same factor from scale to scale: 0.5, then 0.25, as published for HART.

Deviates from the authors' code, which chooses tokens anew before the MLP of a layer and keeps what attention and MLP
add apart: here a layer is one step. Theirs names scales by their sides.
Exact: no; `keep=1` is `sequential`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from einops import rearrange
from torch import Tensor
from torch.nn.functional import interpolate

from pardec.models.caches.shares import floor_of_share
from pardec.models.errors import SpecError
from pardec.models.scales.contracts import ScaleModel

from ...registry import register
from ..contracts import RoundResult, ScaleContext
from ..forward import ScaleForward
from .map_decoding import MapMethod, Order


@dataclass(eq=False)
class Pruning:
    """A `TokenReduction`: chooses the tokens of a map that the layers compute."""

    first: int  # the first layer that reduces tokens
    keep_all: bool = True  # whether this map is complete, as the source for later maps
    count: int = 0  # tokens kept if not all are
    before: Tensor | None = None  # [R, n_s, E] the states that go into the current layer
    added: dict[int, Tensor] = field(default_factory=dict)  # layer -> its update at the last complete map

    def select(self, layer: int, states: Tensor) -> Tensor | None:
        """The tokens farthest from the mean of their map; all tokens in an early layer or a complete map."""
        self.before = states if layer >= self.first else None
        if self.before is None or self.keep_all:
            return None
        far = (states - states.mean(1, keepdim=True)).float().square().sum(-1)
        return far.argsort(dim=1, descending=True, stable=True)[:, : self.count].sort(1).values

    def restore(self, layer: int, states: Tensor, tokens: Tensor) -> Tensor:
        """The computed states, and for other tokens their inputs plus the layer's update at the coarser map."""
        assert self.before is not None, "`select` runs before `restore`"
        side = math.isqrt(self.before.shape[1])
        coarse = rearrange(self.added[layer], "r (h w) e -> r e h w", h=math.isqrt(self.added[layer].shape[1]))
        filled = self.before + rearrange(interpolate(coarse, (side, side), mode="area"), "r e h w -> r (h w) e")
        return filled.scatter(1, tokens[..., None].expand(-1, -1, states.shape[-1]), states)

    def observe(self, layer: int, states: Tensor) -> None:
        """Stores the update that a layer adds to a complete map."""
        if self.before is not None and self.keep_all:
            self.added[layer] = states - self.before


@register("fastvar", checked="reference:samplers.scales.test_fastvar.naive")
class FastVAR(MapMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"keep": (0.8, 0.65, 0.5, 0.35)}

    keep: Annotated[float, "share of tokens kept at the first pruned scale; each further scale multiplies it again"] = (
        0.5
    )
    scales: Annotated[int, "how many of the last scales are pruned"] = 2
    layer: Annotated[int, "the first layer that prunes"] = 0
    temperatures: Annotated[
        str | None, "factor of the temperature per scale: 1.1x7/1 is 1.1 at the first seven, then 1"
    ] = None
    top_ks: Annotated[str | None, "top-k per scale, as 900x7/600; 0 keeps all; none: the request's"] = None
    cfgs: Annotated[str | None, "factor of cfg per scale, as 1x7/0.75"] = None
    order: Annotated[Order, "apply first: filters, as published, or temperature, as other samplers do"] = "filters"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("scales", least=1)
        self.require("layer", least=0)
        if not 0 < self.keep <= 1:
            raise SpecError(f"fastvar: keep must be above 0 and at most 1, got {self.keep}")

    @property
    def exact(self) -> str:
        return "distribution" if self.keep == 1 else "relaxed"

    def check_model(self, model: ScaleModel) -> None:
        super().check_model(model)
        for name, value, most, what in (
            ("scales", self.scales, len(model.scales) - 1, "scales, and the first is never pruned"),
            ("layer", self.layer, model.transformer.layers - 1, "layers, counted from 0"),
        ):
            if value > most:
                raise SpecError(
                    f"fastvar: {name}={value}, and {model.name} has {most + 1} {what}", hint=f"{name} is at most {most}"
                )

    def start(self, context: ScaleContext) -> tuple[ScaleForward, Pruning]:
        return ScaleForward(context, context.model), Pruning(self.layer)

    def round(self, context: ScaleContext, state: tuple[ScaleForward, Pruning]) -> RoundResult:
        (forward, pruning), scale, scales = state, context.maps.scale, context.model.scales
        last_complete = len(scales) - self.scales - 1
        size = scales.sizes[scale]
        pruning.count = size - int(floor_of_share(1 - self.keep ** max(0, scale - last_complete), size))
        pruning.keep_all = pruning.count == size
        # Pruned maps reuse updates of the last complete map only, so that no other map and no other request stores any.
        logits, fed = forward.next_logits(
            self.guidance(context), pruning if self.keep < 1 and scale >= last_complete else None
        )
        self.draw(context, logits)
        layers, pruned = context.model.transformer.layers, context.model.transformer.layers - self.layer
        return RoundResult(fed, tokens=round(size - (size - pruning.count) * pruned / layers))
