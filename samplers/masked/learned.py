"""Commits what a small trained network takes for final, from nothing but the confidences of the block.

Learning to Parallel: Accelerating Diffusion Large Language Models via Learnable Parallel Decoding (Learn2PD),
https://arxiv.org/abs/2509.25188

    commit = {i : sigmoid(f(c_1 ... c_W)_i) > tau}, or the best position if there is none

c is the probability of each candidate, and 1 where nothing is open; a block shorter than the filter's is filled up with
ones. The filter is trained on the traces of one model (scripts/train_filter.py); those that ship with the package are
named after theirs. The paper's own weights are not public, nor is its `tau`. Its other half, stopping at an end token,
is `eos`.
Exact: no; `tau=1` is `sequential`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import pad

from pardec.models.errors import SpecError
from pardec.samplers.contracts import Canvas, Proposal
from pardec.samplers.kernels.filters import load_filter, locate_filter
from pardec.samplers.registry import Policy, register


@register("learned", stage="select", paper="arXiv:2509.25188")
@dataclass(frozen=True)
class Learned(Policy):
    tried: ClassVar[dict[str, tuple[object, ...]]] = {"tau": (0.97, 0.99, 0.9, 0.7)}  # by `pardec tune`

    filter: str = "tiny-dream"  # an embedded filter, a folder with filter.safetensors, or file.py:function
    tau: float = 0.97  # the filter's own probability above which a candidate is final

    def __post_init__(self) -> None:
        if not 0 <= self.tau <= 1:
            raise SpecError(f"learned: tau must lie in [0, 1], got {self.tau}")
        locate_filter(self.filter)

    def start(self, canvas: Canvas) -> nn.Module:
        made = load_filter(self.filter).to(canvas.tokens.device)
        length = getattr(made, "block_length", canvas.block_length)
        if canvas.block_length > length:
            raise SpecError(
                f"learned: the filter {self.filter!r} is for blocks of {length}, not of {canvas.block_length}",
                hint=f"decode with block_length={length} or less, or train one for longer blocks",
            )
        return made

    def select(self, proposal: Proposal, canvas: Canvas, state: nn.Module) -> Tensor:
        width = proposal.score.shape[1]
        sure = proposal.evidence.law.probability(proposal.tokens).masked_fill(~proposal.eligible, 1.0)
        verdict: Tensor = state(pad(sure, (0, getattr(state, "block_length", width) - width), value=1.0))
        return verdict[:, :width].sigmoid() > self.tau
