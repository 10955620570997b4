"""I-DLM: a LoRA, applied at mask positions only, with which the target fills in masks after its text.

Introspective Diffusion Language Models (I-DLM), https://arxiv.org/abs/2604.11035

    masks at p + 1 .. p + s see the text up to p and one another in order;  mask j predicts the token at p + j + 1

The target runs them with W + B A in place of each matrix W of its layers, and the text with W; only A and B learn. The
masks' input is the target's embedding of an id that no text has, which stays as it is. Deviates from the authors'
recipe: the target is frozen and the loss compares with its distributions (fkl by default); masks are placed after
tokens of the answers, s after each, where the authors mask whole texts beside the clean ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from pardec.models.caches.kv_cache import KVCache
from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.idlm import gated_adapter, matrix_shapes
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.lora import MASK_ID, NUM_MASKS, Update, read_adapter
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan

from .contracts import Options, Target
from .prompts import AnchoredNetwork


class MaskLora(AnchoredNetwork):
    kind = "idlm"
    file = "adapter_model.safetensors"
    config_file = "adapter_config.json"
    anchors = 0.4

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        model, noise = target.model, torch.Generator().manual_seed(options.seed)
        self.mask_id = _mask_of(model) if options.mask_id is None else options.mask_id
        if not 0 <= self.mask_id < model.vocab_size:
            raise SpecError(f"the mask id {self.mask_id} is not one of the {model.vocab_size} ids of {model.name}")
        self.names = {name.removesuffix(".weight"): shape for name, shape in matrix_shapes(model).items()}
        self.a, self.b = nn.ParameterDict(), nn.ParameterDict()
        for name, (rows, columns) in self.names.items():
            start = torch.randn(options.rank, columns, generator=noise) / math.sqrt(columns)
            self.a[_key(name)] = nn.Parameter(start)
            self.b[_key(name)] = nn.Parameter(torch.zeros(rows, options.rank))

    def draft_ids(self, ids: Tensor) -> None:
        raise SpecError("idlm drafts with the target's whole head", "leave out --vocab")

    def inputs(self) -> Tensor:
        ids = torch.full((self.depths, 1), self.mask_id, device=self.device)
        return self.target.model.embed_mixture(ids, torch.ones_like(ids, dtype=torch.float32))

    def run(self, plan: Plan, cache: KVCache) -> Hidden:
        updates = {f"{name}.weight": Update(a=self.a[_key(name)], b=self.b[_key(name)]) for name in self.names}
        return gated_adapter(self.target.model, "in training", updates).run(plan, cache)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        rank = self.options.rank
        config: dict[str, Any] = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "inference_mode": True,
            "r": rank,
            "lora_alpha": rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "target_modules": sorted({name.rpartition(".")[2] for name in self.names}),
            MASK_ID: self.mask_id,
            NUM_MASKS: self.depths,
        }
        halves = {"A": self.a, "B": self.b}
        return config, {
            f"base_model.model.{name}.lora_{half}.weight": values[_key(name)]
            for name in self.names
            for half, values in halves.items()
        }

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        config, updates = files.config, read_adapter(files.folder).updates
        ranks = {len(update.a) if update.a is not None else 0 for update in updates.values()}
        if len(ranks) != 1 or any(not update.low_rank or update.scale != 1 for update in updates.values()):
            raise ModelError(
                f"{files.name} has layers of several ranks, or scaled ones, which cannot be trained here",
                "train one from the target: leave --init out",
            )
        return {"rank": ranks.pop(), "mask_id": config.get(MASK_ID), "heads": int(config.get(NUM_MASKS, 3))}


def _key(name: str) -> str:
    """The name of a matrix as that of a parameter, which has no dots."""
    return name.replace(".", "/")


def _mask_of(model: LanguageModel) -> int:
    """The id of the tokenizer's mask token. Raises SpecError where it has none."""
    mask = getattr(model.tokenizer, "mask_token_id", None)
    if mask is None:
        raise SpecError(
            f"the tokenizer of {model.name} has no mask token", "write --mask-id ID, an id that no text has"
        )
    return int(mask)
