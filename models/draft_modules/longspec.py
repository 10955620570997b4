"""LongSpec's drafter: one layer that attends to the text's last tokens and to the keys of the target's last layer.

LongSpec: Long-Context Lossless Speculative Decoding with Efficient Drafting and Verification,
https://arxiv.org/abs/2502.17421

    h = e(x);  h += self(norm(h)) over the last 512 tokens;  h += cross(norm(h));  h += mlp(norm(h))
    cross:  q rotated at its position, K/V those of the target's last layer at verified positions before it
    logits = target's head h, without a norm before it

What it reads of itself does not grow with the text, and the cross-attention has no keys of its own. Deviates from the
paper, whose cache is as long as the window: that one layer has room for the whole text.

Layout: `self_attn.*`, `cross_attn.*`, `mlp.*`, `input_layernorm`, `post_self_attention_layernorm`,
`post_cross_attention_layernorm`, with or without a prefix; k and v of `cross_attn`, which nothing reads, may be there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..cuda_graphs.runner import plain_decoder
from ..decoder_config import DecoderConfig
from ..errors import ModelError
from ..files.weights import Published
from ..kernels.attention import AttentionPattern, attend
from ..kernels.choice import backend
from ..kernels.matmul import add_matmul, matmul
from ..kernels.ops import apply_rotary, choose_ops
from ..layers.empty_weights import empty_weights
from ..layers.layer import DecoderLayer, LayerPass
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import Hidden, Plan
from .contracts import DraftFiles, DraftKind, DraftModule, register
from .parameters import fill, left_out, parameter

_QUERY = "cross_attn.q_proj.weight"
_WINDOW = 512


@dataclass(frozen=True, slots=True, eq=False)
class TargetKeys:
    """K and V of the target's last layer for the rows of a plan; slots from `count` on are not verified yet."""

    k: Tensor  # [B, >= S, K, D]
    v: Tensor  # [B, >= S, K, D]
    count: Tensor  # [B] int64
    uniform: int | None = None  # host knowledge: every row's count is this, and all queries come after it


class CrossLayer(DecoderLayer):
    """Self-attention, cross-attention, MLP."""

    query_bias: nn.Parameter | None

    def __init__(self, config: DecoderConfig, *, query_bias: bool) -> None:
        super().__init__(config)
        heads = config.heads * config.head_dim
        self.cross_norm, self.query_weight = parameter(config.width), parameter(heads, config.width)
        self.register_parameter("query_bias", parameter(heads) if query_bias else None)
        self.cross_out_weight = parameter(config.width, heads)

    def forward_with(self, h: Tensor, step: LayerPass, keys: TargetKeys) -> Tensor:
        """The states after the layer, from states h [B * Q, E]."""
        h = self._attention(h, step, 0, None)
        return self._mlp(self._cross(h, step, keys), step)

    def _cross(self, h: Tensor, step: LayerPass, keys: TargetKeys) -> Tensor:
        config, plan = self.config, step.plan
        q = matmul(step.ops.norm(h, self.cross_norm, config.norm_eps), self.query_weight, self.query_bias)
        q = apply_rotary(q.view(*plan.tokens.shape, config.heads, config.head_dim), step.cos, step.sin)
        out = attend(q, keys.k, keys.v, _verified(plan, keys, q.dtype))
        return add_matmul(h, out.reshape(len(h), -1), self.cross_out_weight, None)


def _verified(plan: Plan, keys: TargetKeys, dtype: torch.dtype) -> AttentionPattern:
    """The pattern of the queries over the target's keys: each attends to the verified ones before it."""
    device = keys.k.device
    if keys.uniform is not None:
        return AttentionPattern("c" if backend(device, dtype) == "c" else "reference", keys.uniform)
    extent = max(1, int(keys.count.max()))
    order = torch.arange(extent, device=device)
    visible = order < plan.positions[..., None].minimum(keys.count[:, None, None])
    visible |= ~visible.any(-1, keepdim=True)  # the text's first token, and padding
    mask = torch.zeros(visible.shape, dtype=dtype, device=device).masked_fill_(~visible, -torch.inf)
    dead = (order >= keys.count.clamp(min=1)[:, None])[..., None, None]
    return AttentionPattern("reference", extent, mask=mask[:, None], dead=dead)


class LongSpecModule(DraftModule):
    """Runs plans over tokens, with attention to the target's keys as well."""

    kind: ClassVar[str] = "longspec"
    head_read: ClassVar[bool] = True  # loading has looked at every weight

    def __init__(self, files: DraftFiles, target: LanguageModel, config: DecoderConfig, *, query_bias: bool) -> None:
        super().__init__(files, target)
        self.layers_config, self.width = config, config.width
        self.layer = CrossLayer(config, query_bias=query_bias)
        self.rope = Rope.of(config)

    @property
    def parameters_read(self) -> int:
        return self.parameter_count + self.vocab_size * self.width

    def run(self, plan: Plan, cache: KVCache, keys: TargetKeys) -> Hidden:
        """One forward."""
        config = self.layers_config
        step = self.layer_pass(plan, cache, choose_ops(self.device, self.dtype), window=config.window)
        h = self.layer.forward_with(self.embed(plan.tokens).flatten(0, 1), step, keys)
        return Hidden(plan, h.view(*plan.tokens.shape, -1), self._head)

    def _head(self, states: Tensor) -> Tensor:
        logits: Tensor = self.target.decoder.unembed(states)  # type: ignore[attr-defined]
        return logits.to(self.device)


def _matches(config: Mapping[str, Any], published: Mapping[str, Published]) -> bool:
    return any(name.endswith(_QUERY) for name in published)


def _load(files: DraftFiles, target: LanguageModel) -> LongSpecModule:
    """Raises ModelError unless the target is a native decoder whose keys have the drafter's sizes."""
    own = getattr(target.decoder, "config", None)
    if plain_decoder(target.decoder) is None or not isinstance(own, DecoderConfig) or own.canvas or own.post_norms:
        raise ModelError(f"{files.name} reads the target's keys, which {target.name} does not expose", "use eagle")
    last, published = own.of(own.layers - 1), files.published
    prefix = next(name for name in published if name.endswith(_QUERY)).removesuffix(_QUERY)
    rows = {
        part: _rows(files, f"{prefix}{part}") for part in ("self_attn.k_proj.weight", "mlp.gate_proj.weight", _QUERY)
    }
    biased = f"{prefix}self_attn.q_proj.bias" in published
    config = replace(
        last,
        layers=1,
        each=(),
        experts=None,
        vocab=1,
        heads=rows[_QUERY] // last.head_dim,
        kv_heads=rows["self_attn.k_proj.weight"] // last.head_dim,
        mlp_width=rows["mlp.gate_proj.weight"],
        window=files.config.get("window", _WINDOW),
        qkv_bias=biased,
        out_bias=False,
        mlp_bias=False,
        qk_norm=False,
        query_scale=1.0,
        values_from_keys=False,
    )
    if config.heads % last.kv_heads:
        raise ModelError(
            f"{files.name} has {config.heads} heads, no multiple of {target.name}'s {last.kv_heads} KV heads"
        )
    with empty_weights():
        module = LongSpecModule(files, target, config, query_bias=f"{prefix}cross_attn.q_proj.bias" in published)
    names = {f"layer.{name}": tuple(prefix + stem for stem in stems) for name, stems in _NAMES.items()}
    fill(
        module,
        files,
        {name: stems if len(stems) > 1 else stems[0] for name, stems in names.items()},
        fused_rows=config.fused_rows,
        harmless=(rf"{prefix}cross_attn\.[kv]_proj\.(weight|bias)", r".*rotary_emb\.inv_freq"),
    )
    module.rope = Rope.of(config)
    about = f"a layer of width {config.width}, a window of {config.window}, keys of the target's last layer"
    module.about = (about, *left_out(files, config))
    return module


def _rows(files: DraftFiles, name: str) -> int:
    if name not in files.published:
        raise ModelError(f"{files.name} lacks {name}", "the files are not complete")
    return int(files.published[name].shape[0])


_NAMES: dict[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm.weight",),
    "qkv_weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
    "qkv_bias": tuple(f"self_attn.{part}_proj.bias" for part in "qkv"),
    "out_weight": ("self_attn.o_proj.weight",),
    "cross_norm": ("post_self_attention_layernorm.weight",),
    "query_weight": (_QUERY,),
    "query_bias": ("cross_attn.q_proj.bias",),
    "cross_out_weight": ("cross_attn.o_proj.weight",),
    "mlp_norm": ("post_cross_attention_layernorm.weight",),
    "gate_up_weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "down_weight": ("mlp.down_proj.weight",),
}


KIND = register(
    DraftKind(
        name="longspec",
        summary="LongSpec: a layer with a window of its own and cross-attention to the target's last keys",
        matches=_matches,
        load=_load,
        published={"glide layer (self_attn, cross_attn, mlp)": "a plain version"},
    )
)
