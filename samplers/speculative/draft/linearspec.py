"""Drafts a block with the target itself: masks that its weights fill in, both ways, behind the causal text.

Nemotron-Labs-Diffusion: A Tri-Mode Language Model Unifying Autoregressive, Diffusion, and Self-Speculation Decoding,
https://arxiv.org/abs/2607.05722

    draft:   q_j(.), j = 1 .. k, all of one forward over [last, mask x k]; each sees K/V of the text and the whole block
    verify:  p(. | text, x_1 .. x_j) of one causal forward over [last, x_1 .. x_k], by the same weights

The first forward reads the causal K/V of the text and leaves none: the second writes its own in the same slots. A
round is two forwards, and gains what is accepted and one token more. In a block the logits at a position predict it;
with `shift=1`, the next one.

The weights must do both: those of Nemotron-Labs-Diffusion, loaded with attention="causal". The LoRA that comes with
them (`linear_spec_lora`) is on in the drafting forward and off in the other, which leaves the text as it is. With
`mask`, any causal model drafts in this way, as well as it has learned to.

Deviates from the authors' code: rows of any lengths in a batch; drafts that are sampled have their q, so that any exact
acceptance is exact; trees grow by the block's distributions with `dyspec`. A block has as many masks as tokens are
drafted: length controllers stand for the window of 8 to 32 tokens that ports of it double and halve.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from pardec.models.draft_modules.adapter import draft_adapter
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import SpecError
from pardec.models.model import BlockDenoising, LanguageModel

from ...registry import register
from ..contracts import DecodeContext, Draft, Drafter, Uniforms
from ._masked_blocks import MaskedBlocks


@register(
    "linearspec",
    stage="draft",
    paper="arXiv:2607.05722",
    exact="greedy",
    checked="reference:samplers.speculative.test_linearspec.naive joint",
)
@dataclass(frozen=True)
class LinearSpec(Drafter):
    takes_shape: ClassVar[bool] = True
    takes_length: ClassVar[bool] = True
    one_pass: ClassVar[bool] = True
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (31, 15, 7)}

    k: Annotated[int, "tokens drafted, which is how deep a tree grows; a block has one more"] = 31
    mask: Annotated[int | None, "id of the mask; by default that of a checkpoint that denoises blocks"] = None
    shift: Annotated[int | None, "positions before its own at which a token of a block is predicted: 0 or 1"] = None
    adapter: Annotated[
        str | None, "LoRA that is on while drafting, a folder or hub id; none: the one that the model has; no: without"
    ] = None

    def __post_init__(self) -> None:
        self.require("k", least=1)
        if self.mask is not None:
            self.require("mask", least=0)
        if self.shift not in (None, 0, 1):
            raise SpecError(f"linearspec: shift must be 0 or 1, got {self.shift}")

    def width(self, model: LanguageModel) -> int:
        self.denoising(model)
        return self.k + 1

    def denoising(self, model: LanguageModel) -> BlockDenoising:
        """How the model fills in masks. Raises SpecError for one that does not, or a mask that it does not have."""
        own = model.decoding_config.denoising
        if own is None and self.mask is None:
            raise SpecError(
                f"linearspec: {model.name} is loaded as a causal model that has no mask",
                hint='load one that denoises blocks, too, such as Nemotron with attention="causal"; or write mask=ID',
            )
        mask = self.mask if self.mask is not None or own is None else own.mask_id
        assert mask is not None, "one of both"
        if mask >= model.vocab_size:
            raise SpecError(f"linearspec: mask={mask}, and {model.name} has {model.vocab_size} ids")
        shift = self.shift if self.shift is not None else 0 if own is None else own.shift
        return BlockDenoising(mask, 1 if shift else 0)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """The weights are read once more."""
        return 1.0

    def start(self, context: DecodeContext) -> MaskedBlocks:
        adapter = None if self.adapter == "no" else draft_adapter(context.model, self.adapter)
        return MaskedBlocks(context, self.denoising(context.model), adapter)

    def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Uniforms, state: MaskedBlocks) -> Draft:
        return state.draft(self.k, room, uniforms)
