"""Commits the positions that a small trained network predicts to be final from the confidences of the block.

Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable Parallel Decoding (Learn2PD),
https://arxiv.org/abs/2509.25188

    commit = {i : sigmoid(f(c_1 ... c_W)_i) > tau}, or the best position if there is none

c is the probability of each candidate, and 1 where nothing is open; a block shorter than the filter's is padded with
ones. A filter is trained on the traces of one model (scripts/train_filter.py) and names it: those in the package are
for the model that they are named after, and a filter of another model is refused unless `force=true`. The paper's own
weights and `tau` are not public. Its other half, stopping at an end token, is `eos`.
Exact: no; `tau=1` is `sequential`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ...ops.learned_filters import filter_info, filter_names, load_filter, locate_filter
from ...registry import register
from ..contracts import Canvas, Proposal, Select


@register("learned", checked="hand")
class Learned(Select):
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (None, 0.99, 0.9, 0.7)}
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.99, 0.95, 0.9, 0.8, 0.7, 0.5)}

    filter: Annotated[
        str | None, "embedded filter, folder with filter.safetensors, or file.py:function; none: the model's own"
    ] = None
    tau: Annotated[
        float | None, "the filter's probability above which a candidate is final; none: the value stored with it"
    ] = None
    force: Annotated[bool, "allow a filter that was trained on another model"] = False

    def __post_init__(self) -> None:
        self.require("tau", least=0, most=1)
        if self.filter is not None:
            locate_filter(self.filter)

    def fit(self, model: LanguageModel) -> Learned:
        name = model.name if self.filter is None else self.filter
        if self.filter is None and name not in filter_names():
            raise SpecError(
                f"learned: pardec has no embedded filter for the model {name!r}",
                hint="train one (scripts/train_filter.py) and write filter=FOLDER, or try filter=tiny-dream,force=true",
            )
        trained = filter_info(name)
        if trained.model not in (None, model.name) and not self.force:
            raise SpecError(
                f"learned: the filter {name!r} was trained on {trained.model}, not on {model.name}",
                hint="leave filter out for the model's own, train one, or write force=true to use it anyway",
            )
        tau = trained.tau if self.tau is None else self.tau
        return self if (name, tau) == (self.filter, self.tau) else replace(self, filter=name, tau=tau)

    def start(self, canvas: Canvas) -> nn.Module:
        assert self.filter is not None, "set by `fit`"
        network = load_filter(self.filter).to(canvas.tokens.device)
        length = getattr(network, "block_length", canvas.block_length)
        if (own := int(canvas.block_lengths.max())) > length:
            raise SpecError(
                f"learned: the filter {self.filter!r} is for blocks of {length}, not of {own}",
                hint=f"decode with block_length={length} or less, or train one for longer blocks",
            )
        return network

    def select(self, proposal: Proposal, canvas: Canvas, state: nn.Module) -> Tensor:
        sure = proposal.evidence.distribution.probability(proposal.tokens).masked_fill(~proposal.eligible, 1.0)
        # The block begins at the first column, unless blocks move.
        first = canvas.block_start - canvas.prompt if canvas.moving else np.zeros_like(canvas.block_start)
        width, length = sure.shape[1], getattr(state, "block_length", canvas.block_length)
        column = upload(first[:, None] + np.arange(length), sure.device)
        column += length  # both sides are padded: a block may begin before the prompt's end
        logits: Tensor = state(pad(sure, (length, length), value=1.0).gather(1, column))
        assert self.tau is not None
        final = torch.zeros(len(sure), width + 2 * length, dtype=torch.bool, device=sure.device)
        return final.scatter_(1, column, logits.sigmoid() > self.tau)[:, length : length + width]
