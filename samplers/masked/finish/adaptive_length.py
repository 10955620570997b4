"""Shortens a row to the block in which an end token is predicted with confidence, far after the active block.

Orchestrating Dual-Boundaries: An Arithmetic Intensity Inspired Acceleration Framework for Diffusion Language Models
(ODB-dLLM), https://arxiv.org/abs/2511.21759

    when a block that begins at s is entered, by the forward of that step:
    f = the first open position from s + beyond on whose likeliest token is an end token, with a probability >= tau
    the row ends at s + (floor((f - s) / W) + 1) W: where the block of f does

W is `block_length`. Masks after the new end become padding that no forward computes or sees, as if fewer tokens had
been requested. This commits no end token; `eos` ends the row at a committed one. The paper's tau
is 0.9 without a cache, and 0.93 to 0.95 with `prefix` or `dual`.
Deviates from the authors' code, in which words of a prompt format count as ends too (by their ids), and `beyond` is 128
or 0 by the task. Here the end tokens are those of the request. A row with given tokens after the new end stays as it
is, and only positions that the forward has queried count.
Exact: no.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import torch

from ...host_transfer import download, upload
from ...registry import register
from ...traits import Reasons, Why
from ..contracts import CAUSAL_KINDS, Canvas, Finish, Predictions, Request

if TYPE_CHECKING:
    pass


@register("adaptive_length", checked="reference:samplers.masked.test_adaptive_length.naive")
class AdaptiveLength(Finish):
    conflicts: ClassVar[Reasons] = dict.fromkeys(
        CAUSAL_KINDS,
        Why(
            "{me} looks for end tokens after the block, and {does}, which predicts nothing there",
            "use eos, which works with every model",
        ),
    )
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.9, 0.8, 0.95)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.99, 0.95, 0.9, 0.7, 0.5)}

    tau: Annotated[float, "least probability of an end token"] = 0.9
    beyond: Annotated[int, "end tokens nearer to the block's start than this do not count, in positions"] = 128

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        self.require("beyond", least=0)

    def cut(self, predictions: Predictions, canvas: Canvas, request: Request) -> np.ndarray:
        order, begin = np.arange(canvas.length + 1), canvas.block_start[:, None]
        far = canvas.open_host & (order >= begin + self.beyond) & canvas.block_started[:, None]
        if not far.any() or not request.stop_ids:
            return canvas.total
        count = far.sum(1)
        columns = np.argsort(~far, axis=1, kind="stable")[:, : count.max()]
        columns = np.where(np.arange(count.max()) < count[:, None], columns, canvas.length)
        positions = upload(columns, canvas.tokens.device)
        ids, probability = predictions.at(positions).greedy
        ends = torch.isin(ids, upload(torch.tensor(request.stop_ids), ids.device)) & (probability >= self.tau)
        ends_host = download(ends & predictions.has(positions)) & (columns < canvas.length)
        first = np.where(ends_host, columns, canvas.length).min(1)
        size = canvas.block_length
        end = np.minimum(canvas.block_start + ((first - canvas.block_start) // size + 1) * size, canvas.total)
        template = (~canvas.open_host & (order >= end[:, None]) & (order < canvas.total[:, None])).any(1)
        total: np.ndarray = np.where(ends_host.any(1) & ~template, end, canvas.total)
        return total
