"""The state of a continuous decode: the vectors of every image, and the positions that are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError

from ..batching import RowRequest, RowState
from ..host_transfer import download, to_host, upload
from ..rng import Source
from ..trace import UNCOMMITTED

if TYPE_CHECKING:
    from pardec.models.images.contracts import Condition


@dataclass(frozen=True)
class ImageRequest(RowRequest):
    """The arguments of one call of the loop, checked by the caller."""

    per_row = ("labels", "conditions")

    labels: tuple[int, ...]  # the class of each row; () with `conditions`
    source: Source
    temperature: float = 1.0  # multiplies the deviation of every transition, but not of the first point
    cfg: float | None = None  # noise_u + cfg * (noise_c - noise_u); None is off
    size: tuple[int, int] | None = None  # height and width in pixels; None: the model's default
    draft_model: ContinuousModel | None = None  # the checkpoint that drafts, where the method needs one
    conditions: tuple[Condition, ...] = ()  # the caption of each row, for models of captions


class ImageState(RowState):
    """The images of a request. Only `commit` writes their tokens."""

    per_row = ("rows", "labels", "latents", "rank", "visits", "count", "nfe", "commit_step", "commit_score")

    def __init__(self, model: ContinuousModel, request: ImageRequest) -> None:
        labels, device = request.labels or range(len(request.conditions)), model.device
        rows, tokens = len(labels), model.backbone.tokens
        if request.size is not None:
            tokens = model.imaging.resized(*request.size).layout.tokens
        self.source, self.device = request.source, device
        self.models = {model.name: model}  # all models whose states were computed
        self.checksum = torch.zeros((), device=device)  # sum of all states and tokens: finite only if they are
        self.rows = np.arange(rows)  # [n] the index of each live row in the request
        self.labels = upload(torch.tensor(labels), device)  # [n] classes, or indices into the request's conditions
        self.latents = torch.zeros(rows, tokens, model.head.size, device=device)  # [n, S, d] float32
        self.rank = self._ranks(model.backbone.causal)  # [n, S] int64: each token's place in the order, from 0
        self.visits = torch.zeros_like(self.rank)  # [n, S] int64: how often a token was drafted and dropped again
        self.count = np.zeros(rows, dtype=np.int64)  # [n] on the host: known tokens
        self.nfe = np.zeros(rows, dtype=np.int64)  # [n] calls of the target's backbone that each took part in
        self.commit_step = np.full((rows, tokens), UNCOMMITTED, dtype=np.int32)
        self.commit_score = np.zeros((rows, tokens), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def tokens(self) -> int:
        """The number of tokens of an image, S."""
        return self.latents.shape[1]

    def _ranks(self, causal: bool) -> Tensor:
        """The order of tokens: raster order for causal models, else a random order keyed by row."""
        count, tokens = self.latents.shape[:2]
        index = torch.arange(tokens, device=self.device).expand(count, tokens)
        if causal:
            return index.clone()
        keys = self.source.uniform(self.rows, np.zeros_like(self.rows), index, "order")
        return keys.argsort(dim=1, stable=True).argsort(dim=1, stable=True)

    def between(self, start: np.ndarray, stop: np.ndarray) -> Tensor:
        """[n, S] bool: the tokens with ranks start[n] to stop[n] - 1."""
        first, last = (upload(each, self.device)[:, None] for each in (start, stop))
        return (self.rank >= first) & (self.rank < last)

    def known(self, count: np.ndarray | None = None) -> Tensor:
        """[n, S] bool: the first count[n] tokens of each row; None: the tokens known now."""
        return self.between(np.zeros_like(self.count), self.count if count is None else count)

    def noise(self, wanted: Tensor, purpose: str, width: int, *, again: int = 0) -> Tensor:
        """[N, width] float32: standard normal noise for the tokens where `wanted` [n, S] is True, row after row.

        Keyed by row, token, how often the token was visited, `again` and purpose: no value is used twice.
        """
        normal: Tensor = torch.special.ndtri(self.uniforms(wanted, purpose, width, again=again)).float()
        return normal

    def uniforms(self, wanted: Tensor, purpose: str, width: int = 0, *, again: int = 0) -> Tensor:
        """[N] or [N, width] uniforms in (0, 1), float64, keyed like `noise`."""
        live = wanted.any(1).nonzero()[:, 0]  # noise is made only for rows with a wanted token
        wanted, rows = wanted[live], self.rows[download(live)]
        index = torch.where(wanted, torch.arange(self.tokens, device=self.device), self.tokens)
        index = index.sort(1).values[:, : int(wanted.sum(1).max())]
        real, index = index < self.tokens, index.clamp(max=self.tokens - 1)
        key = index + self.tokens * self.visits[live].gather(1, index)
        return self.source.uniform(rows, np.full_like(rows, again), key, purpose, width)[real]

    def add_forward(self) -> None:
        """Counts a call of the target's backbone for every live row."""
        self.nfe += 1

    def commit(self, which: Tensor, values: Tensor, score: Tensor | None = None) -> None:
        """Writes `values` [N, d] to the tokens where `which` [n, S] is True: the next ones in each row's order.

        `score` [N] is reported in results, 1 where nothing was tested. Raises ModelError for what is not finite.
        """
        self.latents[which] = values
        self.checksum = self.checksum + values.sum(dtype=torch.float32)
        parts = {"which": which, "checksum": self.checksum}
        host = to_host(parts if score is None else {**parts, "score": score.float()})
        if not np.isfinite(host["checksum"]):
            raise self.failure("vectors")
        marks = host["which"]
        self.commit_step[marks] = np.repeat(self.nfe - 1, marks.sum(1)).astype(np.int32)
        self.commit_score[marks] = host.get("score", 1.0)
        self.count = self.count + marks.sum(1)

    def failure(self, what: str) -> ModelError:
        """The error if `what` is not finite; it names the model whose weights are not finite, if there is one."""
        for model in self.models.values():
            if (error := finite.by_weights(model.name, what, model.backbone, model.head)) is not None:
                return error
        names = " or ".join(self.models)
        return ModelError(f"{names} gives {what} that are not finite", "load it with dtype=float32, or lower cfg")
