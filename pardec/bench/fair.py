"""The fair bound of a decode: the model's own matmuls alone, timed with as many rows as its forwards have.

    bound = sum over forwards of the seconds of all their matmuls, one after the other

`floor` takes the rate of large square matmuls, which no matmul of few rows reaches. Here each forward's matrices are
multiplied as the decoder does, over all layers, so that weights come from where they come from in a decode; attention,
norms and the rest are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pardec.models.decoder import Decoder
from pardec.models.kernels.matmul import matmul

from .floor import best
from .parts import Fed

_MATRICES = ("qkv_weight", "out_weight", "gate_up_weight", "down_weight")
_MOST = 8  # numbers of rows that are timed; a rarer one counts as the next smaller of them


class FairBound:
    """The times of one decoder's matmuls, by number of rows, each measured once."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._seconds: dict[tuple[int, int, int], float] = {}

    @property
    def known(self) -> bool:
        """Whether every layer is made of the four matrices, all used for every query."""
        layers: list[Any] = list(self.decoder.layers)
        return all(all(layer._parameters.get(name) is not None for name in _MATRICES) for layer in layers)

    def of(self, fed: Sequence[Fed], heads: int) -> float:
        """Seconds of the matmuls of the forwards `fed`, with `heads` rows fed to the head in total."""
        share = max(1, heads // max(len(fed), 1))
        sizes = Counter((each.rows * each.width, each.last, share) for each in fed)
        timed = sorted(size for size, _ in sizes.most_common(_MOST - 1))
        timed = sorted({*timed, min(sizes)}) if sizes else timed
        total = 0.0
        for size, count in sizes.items():
            at = max((other for other in timed if other <= size), default=timed[0])
            total += count * self.seconds(*at)
        return total

    @torch.inference_mode()
    def seconds(self, rows: int, last: int, heads: int) -> float:
        """Seconds of the matmuls of a forward of these `queries`; `last` of them go through the whole last layer."""
        key = rows, last, heads
        if key not in self._seconds:
            products = list(self._products(*key))
            device = self.decoder.embed.weight.device

            def run() -> None:
                for x, weight in products:
                    matmul(x, weight)

            self._seconds[key] = best(run, device)
        return self._seconds[key]

    def _products(self, rows: int, last: int, heads: int) -> list[tuple[Tensor, Tensor]]:
        layers: list[Any] = list(self.decoder.layers)
        sized = [
            (last if index == len(layers) - 1 and name != "qkv_weight" else rows, getattr(layer, name))
            for index, layer in enumerate(layers)
            for name in _MATRICES
        ]
        sized.append((heads, self.decoder.head.weight if self.decoder.head.again is None else self.decoder.head.again))
        device, dtype = self.decoder.embed.weight.device, self.decoder.embed.weight.dtype
        made: dict[tuple[int, int], Tensor] = {}
        for count, weight in sized:
            size = count, weight.shape[1]
            if size not in made:
                made[size] = torch.randn(size, device=device).to(dtype)
        return [(made[count, weight.shape[1]], weight) for count, weight in sized]
