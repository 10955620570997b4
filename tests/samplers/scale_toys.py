"""Small models of token maps, made of plain tensor operations, for the scale loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from pardec.models.images.contracts import OneSize
from pardec.models.scales.contracts import ScaleLayout, ScaleModel, Scales, TokenReduction
from pardec.samplers.events import Finished
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode


class Quantizer:
    """Adds the vectors of codes, resized to the last scale."""

    digits = 1

    def __init__(self, scales: Scales, vocab: int, channels: int, seed: int = 0) -> None:
        self.scales, self.vocab, self.channels = scales, vocab, channels
        self.codebook = torch.randn(vocab, channels, generator=torch.Generator().manual_seed(seed))

    def start(self, rows: int) -> Tensor:
        return torch.zeros(rows, self.channels, self.scales.sides[-1], self.scales.sides[-1])

    def add(self, total: Tensor, codes: Tensor, scale: int) -> Tensor:
        side = self.scales.sides[scale]
        vectors = self.codebook[codes].view(len(codes), side, side, -1).permute(0, 3, 1, 2)
        return total + interpolate(vectors, total.shape[-2:], mode="nearest")

    def map_of(self, total: Tensor, scale: int) -> Tensor:
        side = self.scales.sides[scale]
        return interpolate(total, (side, side), mode="area").flatten(2).transpose(1, 2)


@dataclass
class Imaging(OneSize):
    """Pixels from the running sum of the known codes, `downsample` by `downsample` for each vector."""

    quantizer: Quantizer
    classes: int
    defaults: Mapping[str, Any] = field(default_factory=dict)
    kind: Literal["class"] = "class"
    can_decode: bool = True
    downsample: int = 2
    name: str = "toy"

    @property
    def layout(self) -> ScaleLayout:
        return ScaleLayout.of(self.quantizer.scales)

    def decode(self, tokens: Tensor) -> Tensor:
        total, starts = self.quantizer.start(len(tokens)), self.quantizer.scales.starts
        for scale in range(len(self.quantizer.scales)):
            codes = tokens[:, starts[scale] : starts[scale + 1]]
            if bool((codes >= 0).all()):
                total = self.quantizer.add(total, codes, scale)
        return total[:, :3].tanh().repeat_interleave(self.downsample, 2).repeat_interleave(self.downsample, 3)


@dataclass
class Cache:
    """States of earlier scales by layer, to which later scales are appended, for all rows of the request."""

    states: list[list[Tensor]]


@dataclass
class Transformer:
    """Layers of x + tanh(W [x, mean of the visible states, class]); the head reads the last states."""

    scales: Scales
    vocab: int
    channels: int
    classes: int = 4
    layers: int = 3
    seed: int = 1
    calls: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        source = torch.Generator().manual_seed(self.seed)
        width = 6
        self.embed = torch.randn(self.channels, width, generator=source)
        self.label = torch.randn(self.classes + 1, width, generator=source)
        self.place = torch.randn(self.scales.tokens, width, generator=source)
        self.mix = torch.randn(self.layers, 3 * width, width, generator=source) / 2
        self.head = torch.randn(width, self.vocab, generator=source)

    def new_cache(self, rows: int) -> Cache:
        return Cache([[] for _ in range(self.layers)])

    def __call__(
        self,
        labels: Tensor,
        maps: Tensor,
        cache: Cache,
        *,
        first: int,
        last: int,
        rows: Tensor | None = None,
        logits: Tensor | None = None,
        reduction: TokenReduction | None = None,
    ) -> Tensor:
        self.calls.append({"first": first, "last": last, "rows": len(labels), "logits": logits})
        assert maps.shape[1] == sum(self.scales.sizes[scale] for scale in range(max(first, 1), last + 1))
        start = self.label[labels][:, None]
        states = torch.cat((start, maps @ self.embed), 1) if first == 0 else maps @ self.embed
        states = states + self.place[self.scales.starts[first] : self.scales.starts[last + 1]]
        sizes = [self.scales.sizes[scale] for scale in range(first, last + 1)]
        for layer in range(self.layers):
            parts = list(states.split(sizes, 1))
            for at, part in enumerate(parts):
                kept = reduction.select(layer, part) if reduction and at == len(parts) - 1 else None
                chosen = part if kept is None else part.gather(1, kept[..., None].expand(-1, -1, part.shape[-1]))
                cache.states[layer].append(chosen)
                seen = torch.cat(cache.states[layer], 1).mean(1, keepdim=True).expand_as(chosen)
                both = torch.cat((chosen, seen, start.expand_as(chosen)), -1)
                result = chosen + torch.tanh(both @ self.mix[layer])
                if reduction and at == len(parts) - 1:
                    result = result if kept is None else reduction.restore(layer, result, kept)
                    reduction.observe(layer, result)
                parts[at] = result
            states = torch.cat(parts, 1)
        chosen = states[:, -sizes[-1] :]
        return (chosen if logits is None else chosen[logits]) @ self.head


def model(
    *sides: int, vocab: int = 8, channels: int = 3, name: str = "toy", seed: int = 1, classes: int = 4, layers: int = 3
) -> ScaleModel:
    """A model of random weights; models with the same vocabulary and number of channels share a tokenizer."""
    scales = Scales(sides or (1, 2, 3, 4))
    imaging: Any = Imaging(Quantizer(scales, vocab, channels), classes)
    transformer: Any = Transformer(scales, vocab, channels, classes, layers, seed)
    return ScaleModel(
        transformer=transformer,
        imaging=imaging,
        config={},
        name=name,
        path=None,
        family="toy",
        device=torch.device("cpu"),
        dtype=torch.float32,
        parameters=100 * layers,
    )


def generate(
    model: ScaleModel,
    spec: str = "sequential",
    labels: tuple[int, ...] = (3,),
    seeds: tuple[int, ...] = (5,),
    **more: Any,
) -> Finished:
    """Images of these classes."""
    more.setdefault("source", Keyed(seeds))
    *_, end = decode(model, resolve(spec, "scales"), ScaleRequest(labels, **more))
    assert isinstance(end, Finished)
    return end
