"""EAGLE of every version: one small transformer over pairs of a token and the target's state before it.

EAGLE: Speculative Sampling Requires Rethinking Feature Uncertainty, https://arxiv.org/abs/2401.15077
EAGLE-2: Faster Inference of Language Models with Dynamic Draft Trees, https://arxiv.org/abs/2406.16858
EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test,
https://arxiv.org/abs/2503.01840

    EAGLE-1:  u = fc [e(x_i); g_(i-1)];  g_i = layers(u), the first without a norm before it;
              logits = target's head g_i
    EAGLE-3:  g = fc [f_a; f_b; f_c] of the target;  q, k, v of [norm(e(x_i)); norm(g_(i-1))], added to g_(i-1);
              logits = head(norm(g_i)) over the ids of `d2t`
    FSPAD (https://arxiv.org/abs/2408.15562), as EAGLE-1 but for
              b = fc [e; g];  u = b + down(silu(gate e) * up(norm b));  the layer gives [g_i; what the head reads]
    Dovetail (https://arxiv.org/abs/2412.18934), as EAGLE-1 but for
              u = s * fc1 g_(i-1) + (1 - s) * e(x_i),  s = sigmoid(gate [g_(i-1); e(x_i)])

g_(i-1) is the target's state where the target has run, and the drafter's own output elsewhere. A pair has the slot and
the position of its state, i - 1. Base and epsilon are those of the drafter's config, never the target's. e(x) is the
embedding as stored: a target such as Gemma multiplies it by a scale, and its drafters do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property, partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..kernels.cpu.layers import LayersInC
from ..kernels.cpu.packed import PackedWeight
from ..kernels.matmul import matmul, matmul_into
from ..kernels.ops import Ops, choose_ops
from ..layers.layer import DecoderLayer, LayerPass
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import Hidden, Plan
from .contracts import DraftFiles, DraftModule, looked_up
from .eagle_files import EagleLayout
from .eagle_taps import Taps
from .few_pairs import few_pairs
from .pair_chain import PairChain, chains
from .parameters import parameter
from .vocabulary import OwnIds, own_ids

_NARROW = 0.8  # above this share of wanted queries, the last layer computes all of them


class PairLayer(DecoderLayer):
    """The first layer: attention reads states of width `inputs`, without a norm in the layer."""

    def __init__(self, config: DecoderConfig, inputs: int) -> None:
        super().__init__(config)
        del self.attn_norm
        self.qkv_weight = nn.Parameter(torch.empty(sum(config.fused_rows("qkv_weight")), inputs))

    def pair(self, h: Tensor, inputs: Tensor, step: LayerPass, picked: Tensor | None) -> Tensor:
        """h [M, E], or its `picked` queries, plus attention among `inputs` [M, I], then the MLP."""
        return self._mlp(self._attention(h, step, 0, picked, inputs), step)

    @cached_property
    def in_c(self) -> LayersInC | None:
        """The layer for the kernels in C, of packed weights; None for a layer that they do not support."""
        weights, limits = self.weights_in_c(), (self.config.window, self.config.attention_cap)
        if weights is None or any(each is not None for each in limits) or len(self.down_weight) != self.config.width:
            return None
        own = weights.qkv, weights.out, weights.gate_up, weights.down
        return LayersInC([weights]) if all(isinstance(each, PackedWeight) for each in own) else None


class SplitLayer(PairLayer):
    """FSPAD's layer: its MLP gives [M, 2 E], one half to feed back and one for the head; both add to the states."""

    def __init__(self, config: DecoderConfig, inputs: int) -> None:
        super().__init__(config, inputs)
        self.down_weight = nn.Parameter(torch.empty(2 * config.width, config.mlp_width))

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        inner = matmul(step.ops.norm(h, self.mlp_norm, self.config.norm_eps), self.gate_up_weight)
        return torch.cat((h, h), -1) + matmul(step.ops.glu(inner, self.config.activation), self.down_weight)


class Fusion(nn.Module):
    """FSPAD's b + down(silu(gate e) * up(norm b)) [M, E] of embeddings e and b, both [M, E]."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.norm, self.gate, self.up = parameter(width), parameter(inner, width), parameter(inner, width)
        self.down = parameter(width, inner)

    def forward(self, embedded: Tensor, both: Tensor, ops: Ops, epsilon: float) -> Tensor:
        gate = nn.functional.silu(matmul(embedded, self.gate))
        return both + matmul(gate * matmul(ops.norm(both, self.norm, epsilon), self.up), self.down)


class EagleModule(DraftModule):
    """Runs plans whose `soft` [B, Q, E] are the states before each token: `fuse` makes them of the target's."""

    kind: ClassVar[str] = "eagle"
    head_read: ClassVar[bool] = True  # loading has looked at every weight
    more_names: ClassVar[dict[str, str]] = {}  # published names of parameters that a subclass adds: looked up by rows
    taps: Taps | None = None  # set for an EAGLE-3
    own: OwnIds | None = None  # ids that `with_ids` adds to the vocabulary

    def __init__(self, files: DraftFiles, target: LanguageModel, form: EagleLayout, *, own_embedding: bool) -> None:
        super().__init__(files, target)
        config = form.config
        self.form, self.layers_config = form, config
        self.width, self.epsilon = config.width, config.norm_eps
        paired = form.version == "3"
        read = form.features * target.width if paired else config.width if form.gated else 2 * config.width
        self.fc_weight = parameter(config.width, read)
        self.gate_weight = parameter(config.width, 2 * config.width) if form.gated else None
        self.gate_bias = parameter(config.width) if "gate.bias" in files.published else None
        self.fc_bias = parameter(config.width) if form.names(files.published)["fc_bias"] in files.published else None
        self.inputs_norm = parameter(form.features * target.width) if form.norm_inputs == "all" else None
        self.each_norm = nn.ParameterList(
            [parameter(target.width) for _ in range(form.features)] if form.norm_inputs == "each" else []
        )
        self.embed_norm = parameter(config.width) if paired else None
        self.state_norm = parameter(config.width) if paired else None
        split = form.version == "fspad"
        self.fusion = Fusion(config.width, config.mlp_width) if split else None
        self.first = (SplitLayer if split else PairLayer)(config, config.width * (2 if paired else 1))
        self.later = nn.ModuleList(DecoderLayer(config) for _ in range(config.layers - 1))
        self.norm = parameter(config.width) if form.norm_head or form.norm_output else None
        self.head = None if form.vocabulary is None or form.tied else parameter(form.vocabulary, config.width)
        self.embedding = parameter(config.vocab, config.width) if own_embedding else None
        self.rope = Rope.of(config)

    @property
    def parameter_count(self) -> int:
        copy = self.head.numel() if self.form.tied and self.head is not None else 0
        return super().parameter_count - copy

    @property
    def parameters_read(self) -> int:
        looked_up = 0 if self.embedding is None else self.embedding.numel()
        shared = self.vocab_size * self.width if self.head is None else 0
        return super().parameter_count - looked_up + shared

    def with_ids(self, rows: Sequence[np.ndarray]) -> EagleModule:
        """A copy of the module that also drafts the ids rows[b] in row b of its cache, with rows of the target's head.

        Raises ModelError where its head is not the target's, or all ids are drafted anyway.
        """
        if self.vocabulary is None or not self.form.tied:
            why = "drafts all of them" if self.vocabulary is None else "has its own head, without rows for other ids"
            raise ModelError(f"{self.name} cannot draft further ids: it {why}", "leave prompt_ids out")
        own = own_ids(rows, self.vocabulary, self.target.decoder.head.weight)  # type: ignore[attr-defined]
        if not len(own.ids):
            return self
        module = copy(self)
        module.own, module.vocabulary = own, torch.cat((self.vocabulary, own.ids))
        return module

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., E] the embeddings of ids [...] as stored, without the target's scale; 0 where the id is -1."""
        return looked_up(self.target.decoder.embedding if self.embedding is None else self.embedding, tokens)

    def fuse(self, states: Tensor) -> Tensor:
        """[..., E] the part of pairs that is made of the target's `states` [..., S]."""
        states = states.to(device=self.device, dtype=self.dtype)
        if self.form.version != "3":
            return states
        ops = choose_ops(self.device, self.dtype)
        if self.inputs_norm is not None:
            states = ops.norm(states, self.inputs_norm, self.epsilon)
        elif self.each_norm:
            parts = torch.split(states, self.target.width, -1)
            normed = [
                ops.norm(part.contiguous(), weight, self.epsilon)
                for part, weight in zip(parts, self.each_norm, strict=True)
            ]
            states = torch.cat(normed, -1)
        return matmul(states, self.fc_weight, self.fc_bias)

    def fed_back(self, states: Tensor) -> Tensor:
        """[..., E] the part of a result's `states` that replaces the target's state in the next pair."""
        return states[..., : self.width] if self.fusion is not None else states

    def run(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Runs a plan of pairs."""
        assert plan.soft is not None, "a pair has a state"
        narrowed = plan.narrow and plan.want.shape[1] <= _NARROW * plan.width
        ops = choose_ops(self.device, self.dtype)
        entry, inputs = self._enter(self.embed(plan.tokens).flatten(0, 1), plan.soft.flatten(0, 1), ops)
        h = None
        if cache is not None and self.first.in_c is not None and not self.later:
            h = few_pairs(self.first.in_c, entry, inputs, plan, cache, self.rope, last=narrowed)
        if h is None:
            step = self.layer_pass(plan, cache, ops, window=self.layers_config.window)
            h = self._layers(entry, inputs, step, plan.want.clamp(min=0) if narrowed else None)
        if self.form.norm_output:
            h = self._normed(h)
        shape = plan.want.shape if narrowed else plan.tokens.shape
        return Hidden(plan, h.view(*shape, -1), partial(self._head, plan), {}, narrowed, subset=self.subset)

    def chain(self, cache: KVCache) -> PairChain | None:
        return PairChain(self, cache) if type(self) is EagleModule and chains(self, cache) else None

    def _layers(self, h: Tensor, inputs: Tensor, step: LayerPass, picked: Tensor | None) -> Tensor:
        """All layers over pairs h [M, E], of which the first attends among `inputs`; or those `picked` by the last."""
        last = len(self.later)
        h = self.first.pair(h, inputs, step, None if last else picked)
        for index, layer in enumerate(self.later, 1):
            h = layer.forward(h, step, index, picked if index == last else None)
        return h

    def _enter(self, embedded: Tensor, states: Tensor, ops: Ops) -> tuple[Tensor, Tensor]:
        """The first layer's residual input [M, E], and its attention's input [M, I]."""
        if self.embed_norm is None or self.state_norm is None:
            if self.gate_weight is not None:
                gate = matmul(torch.cat((states, embedded), -1), self.gate_weight, self.gate_bias).sigmoid()
                both = gate * matmul(states, self.fc_weight, self.fc_bias) + (1 - gate) * embedded
                return both, both
            both = matmul(torch.cat((embedded, states), -1), self.fc_weight, self.fc_bias)
            if self.fusion is not None:
                both = self.fusion.forward(embedded, both, ops, self.epsilon)
            return both, both
        normed = ops.norm(states, self.state_norm, self.epsilon)
        inputs = torch.cat((ops.norm(embedded, self.embed_norm, self.epsilon), normed), -1)
        return normed if self.form.norm_residual else states, inputs

    def _head(self, plan: Plan, states: Tensor) -> Tensor:
        """Logits [M, Vd] over the ids that it drafts of a result's states [M, E], M / B per row of its plan."""
        if self.fusion is not None:
            states = states[:, self.width :]
        if self.form.norm_head and not self.form.norm_output:
            states = self._normed(states)
        if self.head is None:
            logits: Tensor = self.target.decoder.unembed(states)  # type: ignore[attr-defined]
            return logits.to(self.device)
        count, more = len(self.head), 0 if self.own is None else len(self.own.ids)
        logits = torch.empty(len(states), count + more, device=self.device)
        matmul_into(logits[:, :count], states, self.head)
        if self.own is not None:
            logits[:, count:] = self.own.logits(states, plan)
        cap: float | None = self.target.decoder.config.logit_cap if self.form.tied else None  # type: ignore[attr-defined]
        return logits if cap is None else (logits / cap).tanh() * cap

    def _normed(self, states: Tensor) -> Tensor:
        assert self.norm is not None
        return choose_ops(self.device, self.dtype).norm(states, self.norm, self.epsilon)
