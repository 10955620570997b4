"""Kangaroo's adapter: attention on the outputs of the target's first layers, and a norm before the target's head.

Kangaroo: Lossless Self-Speculative Decoding via Double Early Exiting, https://arxiv.org/abs/2404.18911

    a = h_E + Attn(norm(h_E));  logits = target's head norm'(a),  h_E the output of the target's first E layers

There is no MLP. A query has the position of its token. E is not in published files: the authors' code runs them with 2,
`exit_layer` of the config says it where it stands, and `layers=` decides. The base of its rotary embedding is that of
the adapter's config, never the target's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..families.llama_like import shape
from ..files.weights import Published, count_parts
from ..kernels.ops import choose_ops
from ..layers.empty_weights import empty_weights
from ..layers.layer import DecoderLayer, LayerPass
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import Hidden, Plan, TargetStates
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .parameters import fill, layer_names, left_out, parameter

_EXIT = 2  # the authors' choice for models of 7 billion parameters
_HARMLESS = (r".*rotary_emb\.inv_freq", r"embed_tokens\.weight", r"lm_head\.weight")


class AdapterLayer(DecoderLayer):
    """h += out(attention(norm(h)))."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        del self.mlp_norm

    def _make_mlp(self, config: DecoderConfig) -> None:
        """Makes no parameters: the layer has no MLP."""

    def forward(self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None = None) -> Tensor:
        return self._attention(h, step, index, picked)


class Kangaroo(DraftModule):
    """Runs plans whose `soft` [B, Q, E] are the outputs of the target's first `exit_layers` layers."""

    kind: ClassVar[str] = "kangaroo"
    head_read: ClassVar[bool] = True  # loading has looked at every weight

    def __init__(self, files: DraftFiles, target: LanguageModel, config: DecoderConfig, exit_layers: int) -> None:
        super().__init__(files, target)
        self.layers_config, self.exit_layers = config, exit_layers
        self.width, self.states = config.width, TargetStates((exit_layers - 1,))
        self.layers = nn.ModuleList(AdapterLayer(config) for _ in range(config.layers))
        self.norm = parameter(config.width)
        self.rope = Rope.of(config)

    @property
    def parameters_read(self) -> int:
        """Parameters that one drafting forward reads, including the target's layers and head."""
        target = self.target
        ends = target.vocab_size * target.width * 2
        layer = max(0, target.parameters - ends) // target.layers
        return self.parameter_count + self.exit_layers * layer + target.vocab_size * target.width

    def run(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Runs a plan over the states in its `soft`."""
        assert plan.soft is not None, "an adapter reads states"
        ops = choose_ops(self.device, self.dtype)
        step = self.layer_pass(plan, cache, ops)
        h = plan.soft.to(device=self.device, dtype=self.dtype).flatten(0, 1)
        for index, layer in enumerate(self.layers):
            h = layer.forward(h, step, index)
        return Hidden(plan, h.view(*plan.tokens.shape, -1), self._head)

    def _head(self, states: Tensor) -> Tensor:
        """Logits [M, V] of states [M, E]."""
        normed = choose_ops(self.device, self.dtype).norm(states, self.norm, self.layers_config.norm_eps)
        logits: Tensor = self.target.decoder.unembed(normed)  # type: ignore[attr-defined]
        return logits


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    """Whether the tensors are one attention layer without MLP, of the target's width, and a norm."""
    own = {"norm.weight", "layers.0.input_layernorm.weight", "layers.0.self_attn.q_proj.weight"}
    others = {"fc.weight", "fc.fc.weight", "hidden_norm.weight", "layers.0.mlp.gate_proj.weight"}
    return own <= set(published) and not others & set(published)


def _load(files: DraftFiles, target: LanguageModel, *, layers: int | None = None) -> Kangaroo:
    config = _shape(files)
    if config.width != target.width:
        raise ModelError(
            f"{files.name} reads states of width {config.width}; those of {target.name} have {target.width}",
            "it was trained for another target",
        )
    stated = files.config.get("exit_layer")
    if stated is not None and type(stated) is not int:
        raise ModelError(f"the config of {files.name} has exit_layer={stated!r}", "it is a number of layers")
    exit_layers = next(count for count in (layers, stated, _EXIT) if count is not None)
    if not 0 < exit_layers < target.layers:
        raise ModelError(
            f"{files.name} reads the output of layer {exit_layers}, counted from 1, and {target.name} has"
            f" {target.layers} layers",
            "set the number of layers: kangaroo:name=...,layers=2",
        )
    with empty_weights():
        module = Kangaroo(files, target, config, exit_layers)
    names: dict[str, str | tuple[str, ...]] = {"norm": "norm.weight"}
    for index in range(config.layers):
        names |= layer_names(f"layers.{index}.", f"layers.{index}.")
    fill(
        module,
        files,
        names,
        fused_rows=config.fused_rows,
        harmless=_HARMLESS,
    )
    module.rope = Rope.of(config)
    reason = "the authors' default" if stated is None else "exit_layer of its config"
    reason = reason if layers is None else "as requested"
    theirs = {"embed_tokens": target.decoder.embedding}
    if isinstance(head := getattr(getattr(target.decoder, "head", None), "weight", None), Tensor):
        theirs["lm_head"] = head
    about = f"reads the output of the first {exit_layers} layers: {reason}"
    module.about = (about, *left_out(files, config, **theirs))
    return module


def _shape(files: DraftFiles) -> DecoderConfig:
    """The shape of the adapter's layers; an absent key has Llama's default (rotary base 10000, epsilon 1e-6)."""
    settings = {key: value for key, value in files.config.items() if key not in ("sliding_window", "layer_types")}
    absent = [key for key in ("hidden_size", "num_attention_heads") if not settings.get(key)]
    if absent:
        raise ModelError(f"the config of {files.name} lacks {' and '.join(absent)}")
    query = files.published["layers.0.self_attn.q_proj.weight"]
    settings |= {"num_hidden_layers": count_parts(files.published, "layers")}
    settings.setdefault("intermediate_size", settings["hidden_size"])
    if not settings.get("head_dim"):
        settings["head_dim"] = query.shape[0] // settings["num_attention_heads"]
    biased = "layers.0.self_attn.q_proj.bias" in files.published
    return replace(shape(settings, "llama"), qkv_bias=biased, out_bias=False, mlp_bias=False, tied=False)


KANGAROO = register(
    DraftKind(
        name="kangaroo",
        summary="Kangaroo: an adapter on the target's first layers, which draft with the target's head",
        matches=_matches,
        load=_load,
        published={"official: layers.0.self_attn.*, layers.0.input_layernorm, norm": "a naive module"},
    )
)
