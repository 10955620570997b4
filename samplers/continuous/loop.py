"""The continuous loop: samples images whose tokens are vectors, round by round, every row at its own pace.

One round: the method gets states from backbones and distributions from the head, and commits tokens of every live row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pardec.models.continuous.contracts import ContinuousModel

from ..batching import take_rows
from ..events import Event, Finished, RowFinished, Sampled, Started
from ..host_transfer import download
from ..stopwatch import Stopwatch
from ..trace import Fed, Trace
from .contracts import ContinuousContext, ContinuousSampler, ImageRequest, RoundResult
from .state import ImageState


def decode(
    model: ContinuousModel, sampler: ContinuousSampler, request: ImageRequest, *, steps: bool = True
) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Sampled` and `RowFinished` events, and at last `Finished`.

    Without `steps` there is no `Sampled`. A vector has no id: where events hold ids, 0 marks a known one.
    """
    loop = ContinuousLoop(model, sampler, request)
    try:
        yield loop.started()
        while len(loop.images):
            before = loop.images.count
            loop.round()
            if steps:
                yield loop.step_event(before)
            yield from loop.retire()
        yield loop.finished()
    finally:
        loop.state = None  # breaks a reference cycle: the state may refer to the context


class ContinuousLoop:
    """The continuous loop of one request."""

    def __init__(self, model: ContinuousModel, sampler: ContinuousSampler, request: ImageRequest) -> None:
        self.sampler, self.request = sampler, request
        sampler.method.check_model(model)
        head = model.head.respaced(sampler.method.head_steps or model.head.steps)
        self.images = ImageState(model, request)
        self.watch = Stopwatch(model.device)
        self.context = ContinuousContext(model, head, request, self.images, self.watch)
        with torch.inference_mode():
            self.state: Any = sampler.method.start(self.context)
        self.rounds = 0
        count, tokens = len(self.images), self.images.tokens
        self.latents = np.zeros((count, tokens, head.size), dtype=np.float32)
        self.commit_step = np.zeros((count, tokens), dtype=np.int32)
        self.commit_score = np.zeros((count, tokens), dtype=np.float32)
        self.row_events: dict[int, RowFinished] = {}
        self.copies = 1 if request.cfg is None else 2
        self.forward_rows = np.zeros(count, dtype=np.int64)
        self.tokens_fed = np.zeros(count, dtype=np.int64)
        self.fed: list[list[Fed]] = [[] for _ in range(count)]
        self.drafted: list[list[int]] = [[] for _ in range(count)]
        self.accepted: list[list[int]] = [[] for _ in range(count)]
        self.draft_forwards = np.zeros(count, dtype=np.int64)
        self.deviation: np.ndarray | None = None  # [B], if the method reports it

    @torch.inference_mode()
    def round(self) -> None:
        """Runs one round of the method for every live row."""
        images = self.images
        before, nfe = images.count, images.nfe.copy()
        result = self.sampler.method.round(self.context, self.state)
        if not (images.count > before).all():
            raise RuntimeError(f"a round of {self.sampler.spec} committed no token of a row")
        self._record(result, images.nfe - nfe)
        self.rounds += 1

    def _record(self, result: RoundResult, calls: np.ndarray) -> None:
        """Adds a round to the trace, with one number per backbone call; tested tokens count for the last call."""
        rows, count = self.images.rows, len(self.images)
        contexts = np.ones(count, dtype=np.int64) if result.contexts is None else result.contexts
        drafted = np.zeros(count, dtype=np.int64) if result.drafted is None else result.drafted
        accepted = np.zeros(count, dtype=np.int64) if result.accepted is None else result.accepted
        cached = self.context.backbone(self.context.model).fed
        copies = self.copies if result.copies is None else result.copies
        self.forward_rows[rows] += copies * contexts
        for at, row in enumerate(rows.tolist()):
            earlier = int(calls[at]) - 1
            self.drafted[row] += [0] * earlier + [int(drafted[at])]
            self.accepted[row] += [0] * earlier + [int(accepted[at])]
            fed: Fed = range(self.images.tokens) if cached is None else range(*cached.spans[at])
            fed = fed if result.computed is None else result.computed[at]
            self.fed[row] += [fed] * (earlier + 1)
            self.tokens_fed[row] += copies * len(fed) * (int(contexts[at]) if cached is None else earlier + 1)
        self.draft_forwards[rows] += result.draft_forwards
        if result.deviation is not None:
            if self.deviation is None:
                self.deviation = np.zeros(len(self.drafted))
            self.deviation[rows] += result.deviation

    # --- events ---

    def started(self) -> Started:
        """The `Started` event: the rows before the first call."""
        count, tokens = self.commit_step.shape
        return Started(
            np.full((count, tokens), -1, dtype=np.int64),
            np.ones((count, tokens), dtype=bool),
            np.zeros(count, dtype=int),
        )

    def step_event(self, before: np.ndarray) -> Sampled:
        """The event of the last round; its arrays are copies."""
        images = self.images
        known, was = download(images.known()), download(images.known(before))
        return Sampled(
            number=self.rounds - 1,
            rows=images.rows,
            nfe=images.nfe.copy(),
            tokens=np.where(known, 0, -1),
            open=~known,
            committed=known & ~was,
            settled=np.where(known.all(1), images.tokens, known.argmin(1)),
            latents=download(images.latents).copy(),
        )

    def retire(self) -> Iterator[RowFinished]:
        """Removes finished rows."""
        images = self.images
        complete = images.count == images.tokens
        if not complete.any():
            return
        for at in np.flatnonzero(complete).tolist():
            row = int(images.rows[at])
            self.latents[row] = download(images.latents[at])
            self.commit_step[row], self.commit_score[row] = images.commit_step[at], images.commit_score[at]
            self.row_events[row] = RowFinished(
                row, np.zeros(images.tokens, dtype=np.int64), "length", int(images.nfe[at])
            )
            yield self.row_events[row]
        keep = np.flatnonzero(~complete)
        images.keep(keep)
        self.state = take_rows(self.state, keep)

    def finished(self) -> Finished:
        """The `Finished` event with the results of all rows."""
        count, tokens = self.commit_step.shape
        blank = np.zeros((count, tokens), dtype=np.int64)
        trace = Trace(
            blank,
            self.commit_step,
            self.commit_score,
            np.full(count, tokens),
            tuple(map(tuple, self.fed)),
            drafted=tuple(map(tuple, self.drafted)),
            accepted=tuple(map(tuple, self.accepted)),
        )
        ends = [self.row_events[row] for row in range(count)]
        cached = self.context.backbone(self.context.model).fed
        tokens_fed = self.tokens_fed if cached is None else self.tokens_fed + cached.prompts
        return Finished(
            tokens=blank,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=tuple(self.forward_rows.tolist()),
            tokens_fed=tuple(tokens_fed.tolist()),
            trace=trace,
            draft_forwards=tuple(self.draft_forwards.tolist()),
            deviation=() if self.deviation is None else tuple(self.deviation.tolist()),
            latents=self.latents,
            seconds=self.watch.seconds,
        )
