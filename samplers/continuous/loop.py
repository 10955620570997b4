"""The continuous loop: pictures whose tokens are vectors, drawn round by round, every row at its own pace.

One round: the method asks backbones for states and the head for laws, and commits tokens of every live row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from pardec.models.continuous.contracts import ContinuousModel

from ..batching import take_rows
from ..events import Event, Finished, RowFinished, Sampled, Started
from ..stopwatch import Stopwatch
from ..trace import Fed, Trace
from .contracts import ContinuousSampler, Easel, ImageState, PictureRequest, Round


def decode(
    model: ContinuousModel, sampler: ContinuousSampler, request: PictureRequest, *, steps: bool = True
) -> Iterator[Event]:
    """Decodes a request, yielding `Started`, then `Painted` and `RowFinished` events, and at last `Finished`.

    Without `steps` no `Painted` is told. A vector has no id: where ids are told, 0 stands for one that is known.
    """
    loop = ContinuousLoop(model, sampler, request)
    try:
        yield loop.started()
        while len(loop.painting):
            before = loop.painting.done
            loop.round()
            if steps:
                yield loop.told(before)
            yield from loop.retire()
        yield loop.finished()
    finally:
        loop.state = None  # it may reach the easel, which reaches it


class ContinuousLoop:
    """The state of one request; it dies with it."""

    def __init__(self, model: ContinuousModel, sampler: ContinuousSampler, request: PictureRequest) -> None:
        self.sampler, self.request = sampler, request
        sampler.method.check_model(model)
        head = model.head.respaced(sampler.method.head_steps or model.head.steps)
        self.painting = ImageState(model, request)
        self.watch = Stopwatch(model.device)
        self.easel = Easel(model, head, request, self.painting, self.watch)
        with torch.inference_mode():
            self.state: Any = sampler.method.start(self.easel)
        self.rounds = 0
        count, tokens = len(self.painting), self.painting.tokens
        self.latents = np.zeros((count, tokens, head.size), dtype=np.float32)
        self.commit_step = np.zeros((count, tokens), dtype=np.int16)
        self.commit_score = np.zeros((count, tokens), dtype=np.float32)
        self.done: dict[int, RowFinished] = {}
        self.contexts: list[list[int]] = [[] for _ in range(count)]
        self.drafted: list[list[int]] = [[] for _ in range(count)]
        self.accepted: list[list[int]] = [[] for _ in range(count)]
        self.draft_forwards = np.zeros(count, dtype=np.int64)
        self.deviation: np.ndarray | None = None  # [B], where the method tells of any

    @torch.inference_mode()
    def round(self) -> None:
        """One round of the method for every live row."""
        painting = self.painting
        before, nfe = painting.done, painting.nfe.copy()
        made = self.sampler.method.round(self.easel, self.state)
        if not (painting.done > before).all():
            raise RuntimeError(f"{self.sampler.spec} made a round that draws nothing in a row")
        self._note(made, painting.nfe - nfe)
        self.rounds += 1

    def _note(self, made: Round, calls: np.ndarray) -> None:
        """Keeps what a round tells, a number a call of the backbone; what was tested is told of the last."""
        rows, count = self.painting.rows, len(self.painting)
        contexts = np.ones(count, dtype=np.int64) if made.contexts is None else made.contexts
        drafted = np.zeros(count, dtype=np.int64) if made.drafted is None else made.drafted
        accepted = np.zeros(count, dtype=np.int64) if made.accepted is None else made.accepted
        for at, row in enumerate(rows.tolist()):
            quiet = [0] * (int(calls[at]) - 1)
            self.contexts[row] += [*(1 for _ in quiet), int(contexts[at]) - len(quiet)]
            self.drafted[row] += [*quiet, int(drafted[at])]
            self.accepted[row] += [*quiet, int(accepted[at])]
        self.draft_forwards[rows] += made.draft_forwards
        if made.deviation is not None:
            if self.deviation is None:
                self.deviation = np.zeros(len(self.drafted))
            self.deviation[rows] += made.deviation

    # --- what is told ---

    def started(self) -> Started:
        """The rows before the first call."""
        count, tokens = self.commit_step.shape
        return Started(
            np.full((count, tokens), -1, dtype=np.int64),
            np.ones((count, tokens), dtype=bool),
            np.zeros(count, dtype=int),
        )

    def told(self, before: np.ndarray) -> Sampled:
        """The round just made; copies, so that it may be kept."""
        painting = self.painting
        known, was = painting.known().cpu().numpy(), painting.known(before).cpu().numpy()
        return Sampled(
            number=self.rounds - 1,
            rows=painting.rows,
            nfe=painting.nfe.copy(),
            tokens=np.where(known, 0, -1),
            open=~known,
            committed=known & ~was,
            settled=painting.done.copy(),
            latents=painting.latents.cpu().numpy().copy(),
        )

    def retire(self) -> Iterator[RowFinished]:
        """Lets finished rows leave."""
        painting = self.painting
        over = painting.done == painting.tokens
        if not over.any():
            return
        for at in np.flatnonzero(over).tolist():
            row = int(painting.rows[at])
            self.latents[row] = painting.latents[at].cpu().numpy()
            self.commit_step[row], self.commit_score[row] = painting.commit_step[at], painting.commit_score[at]
            self.done[row] = RowFinished(
                row, np.zeros(painting.tokens, dtype=np.int64), "length", int(painting.nfe[at])
            )
            yield self.done[row]
        keep = np.flatnonzero(~over)
        painting.keep(keep)
        self.state = take_rows(self.state, keep)

    def finished(self) -> Finished:
        """All rows are done."""
        count, tokens = self.commit_step.shape
        copies = 1 if self.request.cfg is None else 2
        blank = np.zeros((count, tokens), dtype=np.int64)
        fed: tuple[tuple[Fed, ...], ...] = tuple(tuple(range(tokens) for _ in calls) for calls in self.contexts)
        trace = Trace(
            blank,
            self.commit_step,
            self.commit_score,
            np.full(count, tokens),
            fed,
            drafted=tuple(map(tuple, self.drafted)),
            accepted=tuple(map(tuple, self.accepted)),
        )
        ends = [self.done[row] for row in range(count)]
        rows = tuple(sum(calls) * copies for calls in self.contexts)
        return Finished(
            tokens=blank,
            reasons=tuple(end.reason for end in ends),
            nfe=tuple(end.nfe for end in ends),
            forward_rows=rows,
            tokens_fed=tuple(number * tokens for number in rows),
            trace=trace,
            draft_forwards=tuple(self.draft_forwards.tolist()),
            deviation=() if self.deviation is None else tuple(self.deviation.tolist()),
            latents=self.latents,
            seconds=self.watch.seconds,
        )
