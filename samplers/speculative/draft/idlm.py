"""Drafts with masks after the draft that the same forward verifies, for a causal model that has learned to fill them.

Introspective Diffusion Language Models (I-DLM), https://arxiv.org/abs/2604.11035

    a forward feeds  [last, s_1 .. s_n, mask x k]  under the causal mask of the model
    p(. | text, s_1 .. s_i) at s_i verifies s_(i+1);  the mask j after s_n predicts the token j + 1 positions after s_n
    all of s_1 .. s_n accepted:  the token after s_n is drawn, and the masks' predictions draft s_1 .. s_k of the next
    forward, whose q they are;  else nothing is drafted, and the next forward feeds  [last, mask x k]

A stride of N in the paper is k = N - 1. K/V of masks are never kept. The model is a causal one: a checkpoint with
attention="causal", and `mask` is the id that its training fills in. The text is that of the causal model, whatever the
masks predict; how often a draft is accepted is the model's merit.
Deviates from the authors' code: the prompt's forward has no masks, so the first draft comes a round later; rows of any
lengths in a batch. `name` is a LoRA that applies at mask positions only, as with their setting `conditional_lora`: the
text is that of the model without it. Its config may say the mask's id (`mask_token_id`); the input at masks is the
model's own embedding of that id, for which an id that no text has is the best choice.
Exact: greedy and distribution, with an exact acceptance.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from pardec.models import finite
from pardec.models.draft_modules.contracts import ModuleName
from pardec.models.draft_modules.idlm import GatedAdapter, MaskAdapter
from pardec.models.errors import ModelError, PardecError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import TargetStates

from ...limits import check_nodes
from ...registry import register
from ...request import Request
from ...spec import DraftModuleName
from ...traits import Reasons, Trait, Why
from ..contracts import DecodeContext, Draft, ProbeLayout, Uniforms
from ..draft_model import StateDrafter
from ..probe_nodes import after_last
from .probe_drafter import ProbeState

_STATES = TargetStates(normed=True)


@dataclass(frozen=True)
class MaskProbes:
    """The masks of a forward in the role of a draft module: their states give the next draft's logits."""

    target: LanguageModel
    depth: int

    @property
    def step(self) -> tuple[int, ...]:
        return tuple(range(self.depth))

    @property
    def dtype(self) -> torch.dtype:
        return self.target.dtype

    @property
    def device(self) -> torch.device:
        return self.target.device

    def logits(self, normed: Tensor) -> Tensor:
        """Logits, float32 [B, s, V], from the normed states [B, s, E] at the masks."""
        decoder: Any = self.target.decoder
        flat: Tensor = decoder.unembed(normed.flatten(0, 1)).float()
        return flat.view(*normed.shape[:2], -1)


class MaskState(ProbeState):
    """The states of the masks after an accepted draft."""

    adapter: GatedAdapter | None  # applies at the masks
    masks: Tensor  # [k, E] their inputs

    def failure(self) -> PardecError:
        model = self.context.model
        error = finite.by_weights(model.name, "logits", model.decoder)
        return error or ModelError(f"{model.name} gives logits that are not finite at masks")


@register("idlm", exact="greedy", checked="reference:reference.naive_idlm.decode joint")
class Idlm(StateDrafter):
    provides = frozenset(
        {
            Trait.TAKES_SHAPE,
            Trait.TAKES_LENGTH,
            Trait.DRAFTS_DURING_VERIFY,
            Trait.ADDS_VERIFY_NODES,
            Trait.SPLITS_TARGET,
        }
    )
    conflicts: ClassVar[Reasons] = {
        Trait.DRAFTS_TREES: Why("{me} drafts a chain, and {does}", "leave {other} out"),
        Trait.CONDITIONS: Why("{me} drafts text, and the request has image conditions", "draft with eagle"),
    }
    tuning_grid: ClassVar[dict[str, tuple[object, ...]]] = {"k": (3, 7, 2)}

    k: Annotated[int, "masks fed after a draft, one for each token of the next draft"] = 3
    mask: Annotated[int | None, "id of the mask token; default: that of the LoRA, else of the checkpoint"] = None
    name: Annotated[DraftModuleName | None, "LoRA applied at masks only: embedded name, folder or hub id"] = None
    adapter: Annotated[DraftModuleName | None, "another name of the parameter `name`"] = None

    def __post_init__(self) -> None:
        self.require("k", least=1)
        if self.mask is not None:
            self.require("mask", least=0)
        if self.name is not None and self.adapter is not None:
            raise SpecError("idlm: name and adapter both name the LoRA", hint="write one of them")

    @property
    def needed_module(self) -> ModuleName | None:
        lora = self.name or self.adapter
        return None if lora is None else ModuleName("idlm", lora)

    def width(self, model: LanguageModel) -> int:
        if self.needed_module is None:
            self.mask_id(model)
        return self.k + 1

    def mask_id(self, model: LanguageModel, lora: MaskAdapter | None = None) -> int:
        """The id of the masks. Raises SpecError for a model that names none, or has no such id."""
        own = model.decoding_config.denoising
        of_checkpoint = None if own is None else own.mask_id
        of_lora = None if lora is None else lora.mask_id
        mask = next((id for id in (self.mask, of_lora, of_checkpoint) if id is not None), None)
        if mask is None:
            raise SpecError(
                f"idlm: {model.name} is loaded as a causal model without a mask token",
                "write mask=ID, the id that its training fills in",
            )
        if mask >= model.vocab_size:
            raise SpecError(f"idlm: mask={mask} is not one of the {model.vocab_size} ids of {model.name}")
        if not hasattr(model.decoder, "unembed"):
            raise SpecError(
                f"idlm: {model.name} runs through transformers, and idlm needs a native family",
                "draft with another method",
            )
        return mask

    def target_taps(self, model: LanguageModel) -> TargetStates:
        return _STATES

    def most_queries(self, nodes: int, request: Request) -> int:
        check_nodes("idlm", nodes + self.k)
        return self.k

    def start(self, context: DecodeContext) -> MaskState:
        model, lora = context.model, context.request.draft_model
        lora = lora if isinstance(lora, MaskAdapter) else None
        state = MaskState(context, MaskProbes(model, self.k), self.k)
        state.adapter = None if lora is None else lora.gated
        ids = torch.full((self.k, 1), self.mask_id(model, lora), device=context.text.device)
        state.masks = model.embed_mixture(ids, torch.ones_like(ids, dtype=torch.float32))
        return state

    def propose(self, context: DecodeContext, remaining: np.ndarray, uniforms: Uniforms, state: MaskState) -> Draft:
        draft = state.draft(self.k, remaining, uniforms)
        probes = after_last(draft, ProbeLayout.single(self.k), remaining)
        run = None if state.adapter is None else state.adapter.run
        return replace(draft, queries=replace(probes, inputs=state.masks, run=run))
