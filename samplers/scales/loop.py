"""The scale loop: samples the token maps of images one after the other, all rows at the same scale.

One round: one forward gives the logits of the next scale of every row, and its codes are drawn and committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pardec.models.scales.contracts import ScaleModel

from ..events import Event, Finished, RowFinished, Started, Step
from ..host_transfer import download
from ..stopwatch import Stopwatch
from ..trace import Fed, Trace
from .contracts import RoundResult, ScaleContext, ScaleRequest, ScaleSampler
from .state import MapState


def decode(model: ScaleModel, sampler: ScaleSampler, request: ScaleRequest, *, steps: bool = True) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, a `Step` for each scale, `RowFinished` for each row, then `Finished`.

    Tokens are the codes of all scales, coarse to fine, each in raster order. Without `steps` there is no `Step`.
    """
    loop = ScaleLoop(model, sampler, request)
    yield loop.started()
    while not loop.maps.complete:
        loop.round()
        if steps:
            yield loop.step_event()
    yield from loop.row_events()
    yield loop.finished()


class ScaleLoop:
    """The scale loop of one request."""

    def __init__(self, model: ScaleModel, sampler: ScaleSampler, request: ScaleRequest) -> None:
        self.sampler, self.request, model = sampler, request, model.of_size(request.size)
        sampler.method.check_model(model)
        self.watch = Stopwatch(model.device)
        with torch.inference_mode():
            self.maps = MapState(model, request)
            self.context = ScaleContext(model, request, self.maps, self.watch)
            self.state: Any = sampler.method.start(self.context)
        self.results: list[RoundResult] = []

    @torch.inference_mode()
    def round(self) -> None:
        """Runs one round of the method: the next scale of every row."""
        scale = self.maps.scale
        self.results.append(self.sampler.method.round(self.context, self.state))
        if self.maps.scale != scale + 1:
            raise RuntimeError(f"a round of {self.sampler.spec} committed {self.maps.scale - scale} scales")

    @property
    def nfe(self) -> int:
        """Forwards of the loaded model so far."""
        return sum(not result.draft for result in self.results)

    # --- events ---

    def started(self) -> Started:
        """The `Started` event: the rows before the first call."""
        count, tokens = self.maps.codes.shape
        empty = np.full((count, tokens), -1, dtype=np.int64)
        return Started(empty, empty < 0, np.zeros(count, dtype=int))

    def step_event(self) -> Step:
        """The event of the last round; its arrays are copies."""
        codes = download(self.maps.codes).copy()
        now = self.maps.positions(self.maps.scale - 1, self.maps.scale - 1)
        committed = np.zeros(codes.shape, dtype=bool)
        committed[:, now.start : now.stop] = True
        return Step(
            number=len(self.results) - 1,
            rows=self.maps.rows,
            nfe=np.full(len(codes), self.nfe),
            tokens=codes,
            open=codes < 0,
            committed=committed,
            settled=np.full(len(codes), now.stop),
        )

    def row_events(self) -> Iterator[RowFinished]:
        """The events of all rows, which end together."""
        codes = download(self.maps.codes)
        for row, tokens in enumerate(codes):
            yield RowFinished(row, tokens.copy(), "length", self.nfe, commit_step=self.maps.commit_step[row])

    def finished(self) -> Finished:
        """The results of all rows. The trace lists the forwards of both models; other counts exclude the refiner's."""
        codes, own = download(self.maps.codes).copy(), [result for result in self.results if not result.draft]
        count, tokens = codes.shape
        fed: tuple[Fed, ...] = tuple(result.fed for result in self.results)
        trace = Trace(
            codes, self.maps.commit_step, self.maps.commit_score, np.full(count, tokens), tuple(fed for _ in codes)
        )
        copies = [1 + self.request.guided(row) for row in range(count)]
        queried = sum(len(result.fed) if result.tokens is None else result.tokens for result in own)
        return Finished(
            tokens=codes,
            reasons=("length",) * count,
            nfe=(len(own),) * count,
            forward_rows=tuple(len(own) * times for times in copies),
            tokens_fed=tuple(queried * times for times in copies),
            trace=trace,
            draft_forwards=(len(self.results) - len(own),) * count,
            seconds=self.watch.seconds,
        )
