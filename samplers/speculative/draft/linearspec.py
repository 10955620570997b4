"""Drafts a block with the target itself: masks after the causal text, filled in with bidirectional attention.

Nemotron-Labs-Diffusion: A Tri-Mode Language Model Unifying Autoregressive, Diffusion, and Self-Speculation Decoding,
https://arxiv.org/abs/2607.05722
S2D2, https://arxiv.org/abs/2603.25702 (its exact form: always verified, without a fallback)

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
drafted: length controllers replace the window of 8 to 32 tokens that some ports double and halve.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.draft_modules.adapter import DraftAdapter, draft_adapter
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.model import BlockDenoising, LanguageModel
from pardec.models.plan import Plan, Visible

from ...batching import RowState
from ...host_transfer import upload
from ...registry import register
from ...traits import Trait
from ..contracts import DecodeContext, Draft, Drafter, DraftModel, Uniforms
from ..draft_model import depth_budget


class MaskedBlocks(RowState, DraftModel):
    """The target as its own drafter in one round; it keeps no state between rounds."""

    marginals: Tensor  # float32 [B, k, V] raw logits of this round's blocks
    highest: Tensor  # [] the sum of the highest logits: see `models.finite`

    def __init__(self, context: DecodeContext, denoising: BlockDenoising, adapter: DraftAdapter | None = None) -> None:
        self.context, self.denoising, self.adapter = context, denoising, adapter
        self.runs: list[finite.Run] = []  # the last drafting forward
        self.level = 0  # levels of this round drafted so far
        shape, request = context.sampler.shape, context.request
        assert shape is not None, "drafters that take a shape have one"
        self.shape, self.unprocessed = shape, Trait.UNPROCESSED_SCORES in shape.provides
        # A distribution depends on the depth alone unless processors read the path.
        self.pathless = not request.reads_history

    def draft(self, most: int, remaining: np.ndarray, uniforms: Uniforms) -> Draft:
        """Drafts by the spec's shape and length, at most `most` tokens and `remaining` [B] deep."""
        context, budget = self.context, depth_budget(self.context, most, remaining)
        if not (budget > 0).any():
            return Draft.none(context.text)
        self._denoise(np.flatnonzero(budget > 0), budget)
        draft = self.shape.grow(self, context, budget, uniforms, context.state(self.shape))
        return replace(draft, forwards=1, highest=self.highest)

    def _denoise(self, live: np.ndarray, budget: np.ndarray) -> None:
        """One forward over the blocks of the `live` rows, of `budget` [B] masks each."""
        model, text, count = self.context.model, self.context.text, int(budget.max())
        rows = None if len(live) == len(text) else upload(live, text.device)
        masks, first = budget[live], text.length[live] - 1
        same = bool((masks == count).all() and (first == first[0]).all())
        start, sizes = (upload(each, text.device)[:, None] for each in (first, masks + 1))
        order = torch.arange(count + 1, device=text.device).expand(len(live), -1)
        slots = torch.where(order < sizes, start + order, -1)
        tokens = torch.full_like(slots, self.denoising.mask_id)
        tokens[:, 0] = text.last if rows is None else text.last[rows]
        stop, before = int((first + masks).max()) + 1, int(first.min())
        visible = torch.arange(before, stop, device=text.device) < (start + sizes)  # [b, stop - before]
        plan = Plan(
            tokens=tokens,
            positions=slots,
            slots=slots,
            visible=Visible.mask(visible[:, None].expand(-1, count + 1, -1), before),
            lengths=(start + sizes)[:, 0],
            want=order[:, :-1] + (1 - self.denoising.shift),
            rows=rows,
            uniform=stop if same else None,
            span=(before, stop) if same else None,
        )
        self.runs[:] = [(plan, self.context.cache)]
        run = model.run if self.adapter is None else self.adapter.run
        raw = run(plan, self.context.cache).logits()
        self.highest = torch.where(order[:, :-1] < sizes - 1, raw.amax(-1), 0).sum()
        self.marginals = raw if rows is None else raw.new_zeros(len(text), *raw.shape[1:]).index_copy_(0, rows, raw)
        self.level = 0

    def forward(self, draft: Draft, nodes: Tensor) -> Tensor:
        """Logits after the next level of nodes; all nodes of one depth share a block position."""
        level, self.level = self.level, self.level + 1
        raw, wide = self.marginals[:, level : level + 1], (-1, nodes.shape[1], -1)
        if self.unprocessed or not self.pathless:
            raw = raw.expand(wide)
            return raw if self.unprocessed else self.context.distribution(raw, draft, nodes)
        return self.context.distribution(raw, draft, nodes[:, :1]).expand(wide)

    def prune(self, nodes: Tensor) -> None:
        """Does nothing: no state of the nodes is kept."""

    def failure(self) -> PardecError:
        """The error for logits of this round that are not finite."""
        model = self.context.model
        error = finite.failure(model, self.runs, cfg=self.context.request.cfg)
        return error or ModelError(f"{model.name} gives logits that are not finite while it drafts for itself")


@register("linearspec", exact="greedy", checked="reference:samplers.speculative.test_linearspec.naive joint")
class LinearSpec(Drafter):
    provides = frozenset({Trait.TAKES_SHAPE, Trait.TAKES_LENGTH, Trait.ONE_FORWARD_DRAFTS})
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (31, 15, 7)}

    k: Annotated[int, "tokens drafted, which is how deep a tree grows; the block also has the last token"] = 31
    mask: Annotated[int | None, "id of the mask token; default: that of the checkpoint, if it denoises blocks"] = None
    shift: Annotated[
        int | None, "offset of the output that predicts a token of a block: 0, or 1 for the position before"
    ] = None
    adapter: Annotated[
        str | None, "LoRA used while drafting, a folder or hub id; none: the model's own; no: no LoRA"
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
        """The model's denoising settings. Raises SpecError for a model that fills in no masks, or an unknown mask."""
        own = model.decoding_config.denoising
        if own is None and self.mask is None:
            raise SpecError(
                f"linearspec: {model.name} is loaded as a causal model without a mask token",
                hint='use one that also denoises blocks, such as Nemotron with attention="causal", or write mask=ID',
            )
        mask = self.mask if self.mask is not None or own is None else own.mask_id
        assert mask is not None, "one of both"
        if mask >= model.vocab_size:
            raise SpecError(f"linearspec: mask={mask} is not one of the {model.vocab_size} ids of {model.name}")
        shift = self.shift if self.shift is not None else 0 if own is None else own.shift
        return BlockDenoising(mask, 1 if shift else 0)

    def cost_ratio(self, target: LanguageModel, draft_model: LanguageModel | DraftModule | None) -> float | None:
        """1: a draft reads the weights once more."""
        return 1.0

    def start(self, context: DecodeContext) -> MaskedBlocks:
        adapter = None if self.adapter == "no" else draft_adapter(context.model, self.adapter)
        return MaskedBlocks(context, self.denoising(context.model), adapter)

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: MaskedBlocks) -> Draft:
        return state.draft(self.k, remaining, uniforms)
