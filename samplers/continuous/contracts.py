"""The seams of the continuous loop: pictures whose tokens are vectors, and the Protocol of what draws them.

Each row draws its tokens in an order of its own, some at a time, at its own pace. As in the other loops, methods are
immutable, and what one remembers over a request is the value its `start` made, rows first (`take_rows`).
Letters: n live rows, S tokens of a picture, d numbers of a token, T transitions of the head, N tokens drawn together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.continuous.contracts import ContinuousModel, Head, States
from pardec.models.errors import ModelError

from ..host_transfer import to_host
from ..masked.canvas import NEVER
from ..rng import Source
from ..spec import Spec
from ..stopwatch import Stopwatch


@dataclass(frozen=True)
class PictureRequest:
    """What one call of the loop draws. Checked by the caller."""

    labels: tuple[int, ...]  # the class of each row
    source: Source
    temperature: float = 1.0  # every transition's deviation is multiplied by it; the first point's is not
    cfg: float | None = None  # noise_u + cfg * (noise_c - noise_u); None is off


class ImageState:
    """The pictures of a request. `commit` is the only writer of their tokens."""

    def __init__(self, model: ContinuousModel, request: PictureRequest) -> None:
        rows, tokens, device = len(request.labels), model.backbone.tokens, model.device
        self.source, self.device = request.source, device
        self.asked = {model.name: model}  # whose states were asked for
        self.total = torch.zeros((), device=device)  # of all states and tokens: finite as long as they are
        self.rows = np.arange(rows)  # [n] which of the request's each live row is
        self.labels = torch.tensor(request.labels, device=device)  # [n]
        self.latents = torch.zeros(rows, tokens, model.head.size, device=device)  # [n, S, d] float32
        self.rank = self._ranks(model.backbone.causal)  # [n, S] int64: when each token comes, 0 first
        self.visits = torch.zeros_like(self.rank)  # [n, S] int64: how often a token was drawn and dropped again
        self.done = np.zeros(rows, dtype=np.int64)  # [n] on the host: tokens that are known
        self.nfe = np.zeros(rows, dtype=np.int64)  # [n] calls of the target's backbone each took part in
        self.commit_step = np.full((rows, tokens), NEVER, dtype=np.int16)
        self.commit_score = np.zeros((rows, tokens), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """S."""
        return self.latents.shape[1]

    def _ranks(self, causal: bool) -> Tensor:
        """Raster order for causal models, else an order at random, keyed by row."""
        count, tokens = self.latents.shape[:2]
        place = torch.arange(tokens, device=self.device).expand(count, tokens)
        if causal:
            return place.clone()
        keys = self.source.uniform(self.rows, np.zeros_like(self.rows), place, "order")
        return keys.argsort(dim=1, stable=True).argsort(dim=1, stable=True)

    def between(self, start: np.ndarray, stop: np.ndarray) -> Tensor:
        """[n, S] bool: the tokens that come as number start[n] to stop[n] - 1."""
        first, last = (torch.from_numpy(each).to(self.device)[:, None] for each in (start, stop))
        return (self.rank >= first) & (self.rank < last)

    def known(self, done: np.ndarray | None = None) -> Tensor:
        """[n, S] bool: the first done[n] tokens of each row; None is what is known now."""
        return self.between(np.zeros_like(self.done), self.done if done is None else done)

    def noise(self, wanted: Tensor, purpose: str, width: int, *, again: int = 0) -> Tensor:
        """[N, width] float32 standard normal numbers for the tokens that `wanted` [n, S] marks, row after row.

        Keyed by row, place, how often the place was visited, `again` and purpose: no number serves twice.
        """
        made: Tensor = torch.special.ndtri(self.uniforms(wanted, purpose, width, again=again)).float()
        return made

    def uniforms(self, wanted: Tensor, purpose: str, width: int = 0, *, again: int = 0) -> Tensor:
        """[N], or [N, width], uniforms in (0, 1), float64; keyed as `noise` is."""
        asked = wanted.any(1).nonzero()[:, 0]  # one token of one row must not cost what all rows do
        wanted, rows = wanted[asked], self.rows[asked.cpu().numpy()]
        place = torch.where(wanted, torch.arange(self.tokens, device=self.device), self.tokens)
        place = place.sort(1).values[:, : int(wanted.sum(1).max())]
        real, place = place < self.tokens, place.clamp(max=self.tokens - 1)
        key = place + self.tokens * self.visits[asked].gather(1, place)
        return self.source.uniform(rows, np.full_like(rows, again), key, purpose, width)[real]

    def count(self, calls: int = 1) -> None:
        """Every live row took part in `calls` calls of the backbone."""
        self.nfe += calls

    def commit(self, which: Tensor, values: Tensor, score: Tensor | None = None) -> None:
        """Writes `values` [N, d] to the tokens that `which` [n, S] marks: the next ones of each row's order.

        `score` [N] is what results tell of each, 1 where nothing was tested. Raises ModelError for what is not finite.
        """
        self.latents[which] = values
        self.total = self.total + values.sum(dtype=torch.float32)
        parts = {"which": which, "total": self.total}
        read = to_host(parts if score is None else {**parts, "score": score.float()})
        if not np.isfinite(read["total"]):
            raise self.failure("vectors")
        host = read["which"]
        self.commit_step[host] = np.repeat(self.nfe - 1, host.sum(1)).astype(np.int16)
        self.commit_score[host] = read.get("score", 1.0)
        self.done = self.done + host.sum(1)

    def failure(self, what: str) -> ModelError:
        """Which model gave `what` that are not finite: one whose weights are not."""
        for model in self.asked.values():
            if (found := finite.by_weights(model.name, what, model.backbone, model.head)) is not None:
                return found
        names = " or ".join(self.asked)
        return ModelError(f"{names} gives {what} that are not finite", "load it with dtype=float32, or lower cfg")

    def keep(self, rows: np.ndarray) -> None:
        """Lets all but these live rows go."""
        at = torch.from_numpy(rows).to(self.device)
        for name in ("labels", "latents", "rank", "visits"):
            setattr(self, name, getattr(self, name)[at])
        for name in ("rows", "done", "nfe", "commit_step", "commit_score"):
            setattr(self, name, getattr(self, name)[rows])


@dataclass(frozen=True, eq=False)
class Easel:
    """What a method has to work with for the length of a request."""

    model: ContinuousModel
    head: Head  # the model's, over the transitions that the method asked for
    request: PictureRequest
    painting: ImageState
    watch: Stopwatch

    def states(
        self,
        known: Tensor,
        wanted: Tensor,
        scale: Tensor | None,
        *,
        model: ContinuousModel | None = None,
        name: str = "backbone",
        latents: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> States:
        """One call of a backbone, the target's unless `model` is another; arguments as of `Backbone.states`.

        `latents` and `labels` are the painting's own unless others are given: rows need not be the live ones.
        """
        painting, model = self.painting, model or self.model
        painting.asked[model.name] = model
        with self.watch(name):
            made = model.backbone.states(
                painting.latents if latents is None else latents,
                known,
                painting.labels if labels is None else labels,
                wanted,
                scale,
            )
        for part in (made.said, made.unsaid):
            if part is not None:
                painting.total = painting.total + part.sum(dtype=torch.float32)
        # What tests densities may not stand what is none; elsewhere the host is told with the commit.
        if painting.device.type == "cpu" and not math.isfinite(painting.total):
            raise painting.failure("states")
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Round:
    """What one round of a method did, a number a live row, for results."""

    drafted: np.ndarray | None = None  # [n] tokens that were tested
    accepted: np.ndarray | None = None  # [n] of them, those that stand
    draft_forwards: int | np.ndarray = 0  # calls of a drafting model's backbone, for each row or [n]
    deviation: np.ndarray | None = None  # [n] what a relaxed rule says it adds, in total variation
    contexts: np.ndarray | None = None  # [n] rows that the target's backbone took, guidance not counted; None: one each


class Method(Protocol):
    """How vectors are drawn, round by round.

    What it may say of itself besides: `exact`.
    """

    @property
    def head_steps(self) -> int | None:
        """Transitions of the head; None is the model's own."""
        ...

    def check_model(self, model: ContinuousModel) -> None:
        """Raises for a model that it cannot go with, before weights of a draft are read."""
        ...

    def start(self, easel: Easel) -> Any:
        """What it remembers of this request; rows of tensors and arrays first."""
        ...

    def round(self, easel: Easel, state: Any) -> Round:
        """Calls the backbone at least once (`painting.count`) and commits at least one token of every live row."""
        ...


@dataclass(frozen=True)
class ContinuousSampler:
    """A resolved spec of the continuous loop."""

    spec: Spec
    exact: str
    method: Method

    @cached_property
    def stages(self) -> tuple[Any, ...]:
        """Every stage there is."""
        return (self.method,)
