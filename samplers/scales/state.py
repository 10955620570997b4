"""The state of a decode scale by scale: the codes of every image, and the running sum that gives the inputs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import ModelError
from pardec.models.scales.contracts import ScaleModel

from ..batching import RowRequest
from ..host_transfer import to_host, upload
from ..rng import Source
from ..trace import UNCOMMITTED

if TYPE_CHECKING:
    from pardec.models.images.contracts import Condition


@dataclass(frozen=True)
class ScaleRequest(RowRequest):
    """The arguments of one call of the loop, checked by the caller."""

    per_row = ("labels", "conditions")

    labels: tuple[int, ...]  # the class of each row, -1: no class; () with `conditions`
    source: Source
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    cfg: float | None = None  # the strength of guidance, see `ScaleModel.guidance`; None is off
    size: tuple[int, int] | None = None  # height and width in pixels; None: the model's default
    refiner: ScaleModel | None = None  # the model that samples some of the scales, where the method needs one
    conditions: tuple[Condition, ...] = ()  # the caption of each row, for models of captions

    @property
    def rows(self) -> int:
        """Number of images."""
        return len(self.labels or self.conditions)

    def guided(self, row: int) -> bool:
        """Whether `row` has an unconditional copy; a row without a class is unconditional itself."""
        return self.cfg is not None and (not self.labels or self.labels[row] >= 0)


class MapState:
    """The images of a request. Only `commit` writes their codes."""

    def __init__(self, model: ScaleModel, request: ScaleRequest) -> None:
        rows, device = request.rows, model.device
        self.source, self.device = request.source, device
        self.scales, self.quantizer = model.scales, model.quantizer
        self.models = {model.name: model}  # all models whose logits were computed
        self.rows = np.arange(rows)
        self.scale = 0  # the next scale to be sampled
        self.codes = torch.full((rows, self.scales.tokens), -1, device=device)  # [n, L] int64
        self.total = self.quantizer.start(rows)  # [n, C, side, side]
        self.inputs: list[Tensor] = []  # [n, n_s, C] for each scale from 1 up to the next one
        self.commit_step = np.full((rows, self.scales.tokens), UNCOMMITTED, dtype=np.int32)
        self.commit_score = np.zeros((rows, self.scales.tokens), dtype=np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def complete(self) -> bool:
        """Whether every scale is sampled."""
        return self.scale == len(self.scales)

    def positions(self, first: int, last: int) -> range:
        """The positions among L of the scales `first` to `last`."""
        return range(self.scales.starts[first], self.scales.starts[last + 1])

    def read(self, first: int) -> Tensor:
        """[n, m, C]: the concatenated inputs of a transformer at the scales max(first, 1) to the next one."""
        inputs = self.inputs[max(first, 1) - 1 :]
        if not inputs:
            return torch.zeros(len(self), 0, self.quantizer.channels, device=self.device)
        return torch.cat(inputs, 1)

    def uniforms(self) -> Tensor:
        """[n, n_s * digits] uniforms in (0, 1), float64: one per digit of the next scale's codes, by row and index."""
        at, digits = self.positions(self.scale, self.scale), self.quantizer.digits
        index = torch.tensor(range(at.start * digits, at.stop * digits))
        index = upload(index, self.device).expand(len(self), -1)
        return self.source.uniform(self.rows, np.zeros_like(self.rows), index, "token")

    def commit(self, codes: Tensor, score: Tensor, highest: Tensor) -> None:
        """Writes the codes [n, n_s] of the next scale, with their probabilities [n, n_s] for results.

        `highest` [] is `finite.highest` of the logits that they were drawn from. Raises ModelError unless it is finite.
        """
        host = to_host({"score": score.float().contiguous(), "highest": highest.float()})
        if not np.isfinite(host["highest"]):
            raise self._failure()
        at = self.positions(self.scale, self.scale)
        self.codes[:, at.start : at.stop] = codes
        self.commit_step[:, at.start : at.stop] = self.scale  # each round is one forward
        self.commit_score[:, at.start : at.stop] = host["score"]
        self.total = self.quantizer.add(self.total, codes, self.scale)
        self.scale += 1
        if not self.complete:
            self.inputs.append(self.quantizer.map_of(self.total, self.scale))

    def _failure(self) -> ModelError:
        """The error for logits that are not finite; it names the model with weights that are not, if there is one."""
        for model in self.models.values():
            if (error := finite.by_weights(model.name, "logits", model.transformer)) is not None:
                return error
        names = " or ".join(self.models)
        return ModelError(f"{names} gives logits that are not finite", "load it with dtype=float32, or lower cfg")
