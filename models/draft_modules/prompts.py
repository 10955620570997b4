"""Prompt tokens that draft: learned input vectors, fed after a token, whose outputs predict the tokens after the next.

PPD: Hardware-Aware Parallel Prompt Decoding for Memory-Efficient Acceleration of LLM Inference,
https://arxiv.org/abs/2405.18628

    vector i of step j is fed j + 1 positions after a token and predicts the token j + 2 positions after it
    logits of a step = the mean over its vectors, or their weighted sum

The layout is that of peft's prompt tuning, with the authors' settings in its config: `prompt_embeddings` [s * c, E],
the c vectors of a step side by side. A vector attends to all vectors before it ("decoder"), or to the one of its own
index in every step before ("ensemble").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..files.weights import Published
from ..model import LanguageModel
from ..plan import TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .parameters import check_head

_VECTORS = "prompt_embeddings"
_WEIGHTS = "weighting_layers.{}.weight"
# Settings that change the meaning of the vectors, with the values that leave it unchanged.
_PLAIN = {"use_custom_lm_head": False, "use_prefix_tuning": False, "num_exits": 1}


class PromptVectors(DraftModule):
    """Learned input vectors; they use the target's layers and head."""

    kind = "prompts"
    states = TargetStates(normed=True)

    def __init__(
        self, files: DraftFiles, target: LanguageModel, vectors: Tensor, weights: Tensor, attention: str
    ) -> None:
        """`vectors` [s * c, E]; `weights` [s, c] of a step's vectors in its logits."""
        super().__init__(files, target)
        self.vectors = nn.Parameter(vectors, requires_grad=False)
        self.weights = nn.Parameter(weights, requires_grad=False)
        self.steps, self.each = weights.shape
        self.depth = self.steps
        self.step = tuple(index // self.each for index in range(len(vectors)))
        back = self.each if attention == "ensemble" else 1
        self.above = tuple(max(index - back, -1) for index in range(len(vectors)))
        if attention == "encoder":
            self.above = (-1,) * len(vectors)
        self.uniform, self.scale = bool((weights == weights[0, 0]).all()), float(weights[0, 0])
        self.about = (
            f"{self.steps} steps of {self.each} vector{'s' * (self.each > 1)}, attention {attention!r}",
            "logits of a step: " + ("the mean over its vectors" if self.uniform else "their weighted sum"),
        )

    def logits(self, normed: Tensor) -> Tensor:
        """Logits, float32 [B, s, V], of each step, from the normed states [B, s * c, E] at its vectors."""
        head: Any = self.target.decoder
        flat: Tensor = head.unembed(normed.flatten(0, 1)).float()
        each = flat.view(len(normed), -1, self.each, flat.shape[-1])
        if self.each == 1 and self.uniform:
            return each[:, :, 0] * self.weights[0, 0].float() if self.scale != 1 else each[:, :, 0]
        return torch.einsum("bscv,sc->bsv", each, self.weights[: each.shape[1]].float())


def load(files: DraftFiles, target: LanguageModel) -> PromptVectors:
    """The vectors of peft files. Raises ModelError for settings of the authors' code that are not supported."""
    config, name = files.config, files.name
    check_head(name, target)
    for key, plain in _PLAIN.items():
        if config.get(key, plain) not in (plain, None):
            raise ModelError(
                f"{name} has {key}={config[key]}: only plain vectors as prompt tokens are supported",
                f"train vectors with {key}={plain}",
            )
    steps, each = (int(config.get(key) or 1) for key in ("num_special_tokens", "virtual_tokens_per_special_token"))
    attention = str(config.get("vt_attention_type", "decoder")).lower().rpartition(".")[2]
    aggregation = str(config.get("aggregation_type", "mean")).lower().rpartition(".")[2]
    if attention not in ("decoder", "ensemble", "encoder") or (attention == "encoder" and each > 1):
        raise ModelError(
            f"{name} has vt_attention_type={attention!r} with {each} vectors per step, which see each other",
            "supported: decoder and ensemble; encoder only with one vector per step",
        )
    if aggregation not in ("mean", "weighted"):
        raise ModelError(f"{name} has aggregation_type={aggregation!r}", "supported: mean and weighted")
    shape = files.published[_VECTORS].shape
    if shape != (steps * each, target.width):
        raise ModelError(
            f"{name}: {_VECTORS} has shape {list(shape)}; {steps} steps of {each} vectors for {target.name} need shape "
            f"{[steps * each, target.width]}",
            "use the target that they were trained with",
        )
    names = {_VECTORS: "vectors"}
    if aggregation == "weighted" and each > 1:
        names |= {_WEIGHTS.format(step): f"weights.{step}" for step in range(steps)}
    tensors = files.read(names, target.dtype, target.device)
    weights = tensors["vectors"].new_full((steps, each), 1 / each)
    if len(names) > 1:
        weights = torch.cat([tensors[f"weights.{step}"].view(1, each) for step in range(steps)])
    return PromptVectors(files, target, tensors["vectors"], weights, attention)


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    """Whether the config has `num_special_tokens`, which peft's usual prompt tuning lacks."""
    return _VECTORS in published and "num_special_tokens" in config


KIND = register(
    DraftKind(
        name="prompts",
        summary="prompt tokens of PPD: learned input vectors after a token",
        matches=_matches,
        load=load,
        published={
            "PPD (peft prompt tuning: adapter_config.json, adapter_model.*)": "independent writer of the layout"
        },
    )
)
