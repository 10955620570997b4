"""Kangaroo: attention on the outputs of the target's first layers, before the target's head.

Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    a_t = h_t + Attn(norm(h))_t;  q = softmax(head(norm'(a_t))): the distribution of x_(t+1),  h the output of layer E

A correct draft equals the target's own text, so one pass over that text does all that drafting does: there are no steps
to unroll. Weights start as the attention of layer E + 1 and the final norm. Deviates from the authors' recipe: the loss
compares with the target's distributions alone (fkl by default).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.weights import count_parts
from pardec.models.model import LanguageModel

from ..losses import Loss
from ..states import Batch, States
from .contracts import AttentionNetwork, Options, Target
from .parts import attention_tensors, copy_attention, linear, rms


def exit_taps(layers: int) -> tuple[int, ...]:
    """The layer that is read by default: the second, or the first of a shallow target."""
    return (1,) if layers > 4 else (0,)


class Kangaroo(AttentionNetwork):
    kind = "kangaroo"

    def __init__(self, target: Target, options: Options) -> None:
        super().__init__(target, options)
        self.taps = options.taps or exit_taps(target.model.layers)
        if len(self.taps) != 1 or not 0 <= self.taps[0] < target.model.layers - 1:
            raise SpecError(
                f"kangaroo reads the output of one layer below the last, got taps {'-'.join(map(str, self.taps))}",
                f"name one of 0 .. {target.model.layers - 2}: --taps 1 drafts with the first 2 layers",
            )
        width = target.model.width
        self.depths = 1
        self.make_attention(width, torch.Generator().manual_seed(options.seed))
        self.input_norm, self.norm = nn.Parameter(torch.ones(width)), nn.Parameter(target.norm.clone())

    def draft_ids(self, ids: Tensor) -> None:
        raise SpecError("kangaroo drafts with the target's whole head", "leave out --vocab")

    def prepare(self, states: States) -> None:
        if self.options.start == "random":
            return
        layer = self.target.layer(self.taps[0] + 1)
        with torch.no_grad():
            copy_attention(self, layer)
            self.input_norm.copy_(layer["input_layernorm"])

    def _states(self, h: Tensor) -> Tensor:
        """The states [B, T, E] for the head, from the outputs h [B, T, E] of the first layers."""
        eps, (batch, width, _) = self.target.eps, h.shape
        x = rms(h, self.input_norm, eps)
        q, k, v = self.project(x, torch.arange(width, device=h.device))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, width, -1)
        return rms(h + self.drop(linear(out, self.o)), self.norm, eps)

    def loss(self, batch: Batch, divergence: Loss, generator: torch.Generator) -> tuple[Tensor, list[float]]:
        chosen = self.weights(batch, generator)[:, 1:]  # the state at t predicts x_(t+1)
        states = self._states(self.drop(batch.taps[:, :-1, 0].to(self.compute)))[chosen]
        head = self.draft_head().to(self.compute)
        total, rate = self.compare(states, head, batch.normed[:, :-1][chosen], batch.best[:, :-1][chosen], divergence)
        return total, [rate]

    @torch.no_grad()
    def chain(self, batch: Batch, length: int) -> Tensor:
        """Drafts in one pass over the text, which agrees with real drafts up to their first wrong token."""
        states = self._states(batch.taps[:, :, 0].to(self.compute))
        best = linear(states, self.draft_head()).argmax(-1)
        return torch.stack([F.pad(best[:, 1 + j :], (0, min(1 + j, batch.width)), value=-1) for j in range(length)], -1)

    def export(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        model, shape = self.target.model, self.target.shape
        config = self.decoder_config(
            architectures=["LlamaForCausalLM"],
            exit_layer=self.taps[0] + 1,
            hidden_size=model.width,
            intermediate_size=shape.mlp_width,
            vocab_size=model.vocab_size,
            tie_word_embeddings=False,
        )
        tensors = attention_tensors(self, "layers.0.")
        return config, {**tensors, "layers.0.input_layernorm.weight": self.input_norm, "norm.weight": self.norm}

    @classmethod
    def read_shape(cls, files: DraftFiles, target: LanguageModel) -> dict[str, Any]:
        config, layers = files.config, count_parts(files.published, "layers")
        if layers != 1:
            raise ModelError(f"{files.name} has {layers} layers, and only one can be trained here")
        exit_layer = int(config.get("exit_layer", 2))
        return {
            "layers": 1,
            "kv_heads": int(config.get("num_key_value_heads", config["num_attention_heads"])),
            "taps": (exit_layer - 1,),
        }
