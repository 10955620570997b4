"""A layer of the native stack: attention and a gated MLP, dense or made of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from ..caches.kv_cache import Slots
from ..decoder_config import DecoderConfig
from ..kernels.attention import AttentionPattern, attend
from ..kernels.cpu.layers import LayerWeights
from ..kernels.matmul import add_matmul, add_matmul_into, matmul
from ..kernels.ops import Fused, Ops
from ..plan import Plan
from .layer_hooks import LayerHooks, flat_rows


@dataclass(slots=True)
class LayerPass:
    """The values that all layers of one forward share on one device."""

    plan: Plan
    ops: Ops
    pattern: AttentionPattern
    slots: Slots | None  # where keys and values go in the cache, if there is one
    cos: Tensor
    sin: Tensor
    hooks: LayerHooks | None = None  # deviations from the plain stack; None: there are none


class DecoderLayer(nn.Module):
    """h += out(attention(norm(h))); h += down(activation(gate(n)) * up(n)), n = norm(h)."""

    qkv_bias: nn.Parameter | None
    out_bias: nn.Parameter | None
    gate_up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None
    q_norm: nn.Parameter | None
    k_norm: nn.Parameter | None
    post_attn_norm: nn.Parameter | None
    post_mlp_norm: nn.Parameter | None
    group: dist.ProcessGroup | None = None  # the processes that hold this layer's other heads and inner units
    replacements: ClassVar[int] = 0  # how often parameters were set or moved, for what is derived from them

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, heads, dim = config.width, config.heads, config.head_dim
        self.config = config
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.qkv_weight = nn.Parameter(torch.empty(sum(config.fused_rows("qkv_weight")), width))
        self.out_weight = nn.Parameter(torch.empty(width, heads * dim))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.register_parameter("qkv_bias", _bias(sum(config.fused_rows("qkv_bias")), config.qkv_bias))
        self.register_parameter("out_bias", _bias(width, config.out_bias))
        self.register_parameter("q_norm", _bias(dim, config.qk_norm))
        self.register_parameter("k_norm", _bias(dim, config.qk_norm))
        self.register_parameter("post_attn_norm", _bias(width, config.post_norms))
        self.register_parameter("post_mlp_norm", _bias(width, config.post_norms))
        self.norms_heads = config.qk_norm  # whether queries and keys are normalised head by head
        self._make_mlp(config)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        DecoderLayer.replacements += 1
        super().register_parameter(name, param)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> DecoderLayer:
        DecoderLayer.replacements += 1
        layer: DecoderLayer = super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        return layer

    def _make_mlp(self, config: DecoderConfig) -> None:
        """The parameters of the MLP."""
        self.gate_up_weight = nn.Parameter(torch.empty(2 * config.mlp_width, config.width))
        self.down_weight = nn.Parameter(torch.empty(config.width, config.mlp_width))
        self.register_parameter("gate_up_bias", _bias(2 * config.mlp_width, config.mlp_bias))
        self.register_parameter("down_bias", _bias(config.width, config.mlp_bias))

    def forward(self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None = None) -> Tensor:
        """The states after the layer at `index`, from h [B * Q, E]; with `picked` [B, M], only of those queries."""
        if step.hooks is not None and step.hooks.skip:
            if (index, "attn") not in step.hooks.skip:
                h = self._attention(h, step, index, picked)
            return h if (index, "mlp") in step.hooks.skip else self._mlp(h, step)
        if step.ops.fused is not None and self._fuses():
            return self._fused(h, step, index, picked, step.ops.fused)
        return self._mlp(self._attention(h, step, index, picked), step)

    def weights_in_c(self) -> LayerWeights | None:
        """The weights, where kernels in C can run the whole layer; None where they lack one of its operations."""
        config, weights = self.config, self._parameters
        more = weights["out_bias"], weights["down_bias"], weights["post_attn_norm"], weights["post_mlp_norm"]
        if any(each is not None for each in (*more, config.clip_qkv, self.group)) or "forward" in vars(self):
            return None
        if config.attention_sink:
            return None
        if config.activation != "silu" or config.query_scale != 1 or config.values_from_keys:
            return None
        own: dict[str, Any] = weights
        return LayerWeights(
            qkv=own["qkv_weight"],
            out=own["out_weight"],
            gate_up=own["gate_up_weight"],
            down=own["down_weight"],
            mlp_norm=own["mlp_norm"],
            epsilon=config.norm_eps,
            heads=config.heads,
            kv_heads=config.kv_heads,
            dim=config.head_dim,
            attention_norm=own.get("attn_norm"),
            head_norms=(own["q_norm"], own["k_norm"]) if self.norms_heads else None,
            qkv_bias=own["qkv_bias"],
            gate_up_bias=own["gate_up_bias"],
        )

    def changes(self, h: Tensor, step: LayerPass, index: int) -> Tensor:
        """[B * Q, E] the sum of what attention and MLP add to states h [B * Q, E], if both read h itself."""
        return (self._attention(h, step, index, None) - h) + (self._mlp(h, step) - h)

    def inputs(self, h: Tensor, ops: Ops) -> Tensor:
        """The input of attention: states h [B * Q, E], normalised where the layer has a norm."""
        weight = self._parameters.get("attn_norm")
        return h if weight is None else ops.norm(h, weight, self.config.norm_eps)

    def _attention(
        self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None, inputs: Tensor | None = None
    ) -> Tensor:
        """h [B * Q, E], or its `picked` queries, plus attention among `inputs` [B * Q, I]; None: among h, normed."""
        ops, eps = step.ops, self.config.norm_eps
        weights: dict[str, Any] = self._parameters
        if inputs is None:
            norm = weights.get("attn_norm")
            inputs = h if norm is None else ops.norm(h, norm, eps)

        weight, bias = weights["qkv_weight"], weights["qkv_bias"]
        qkv = matmul(inputs, weight, bias)
        h, out = self._attended(h, qkv, step, index, picked)

        weight, bias, norm = weights["out_weight"], weights["out_bias"], weights["post_attn_norm"]
        if norm is not None:
            return h + ops.norm(_linear(out, weight, bias, self.group), norm, eps)
        return _add_linear(h, out, weight, bias, self.group)

    def _attended(
        self, h: Tensor, qkv: Tensor, step: LayerPass, index: int, picked: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """h [B * Q, E], or its `picked` queries, and their attention [B * Q, H * D], from the matmul's result `qkv`."""
        config, ops = self.config, step.ops
        heads, dim = config.heads, config.head_dim
        qkv = qkv.view(*step.plan.tokens.shape, -1, dim)
        plain = type(self)._normed_heads is DecoderLayer._normed_heads and config.clip_qkv is None
        if self.norms_heads and plain and ops.fused is not None:
            norms = self.q_norm, self.k_norm, config.norm_eps
            q, k, v = ops.fused.norm_rotary(qkv, step.cos, step.sin, heads, step.slots, index, norms)
        else:
            if self.norms_heads:
                qkv = self._normed_heads(qkv, ops)
            if config.clip_qkv is not None:
                qkv = qkv.clamp(-config.clip_qkv, config.clip_qkv)
            q, k, v = ops.rotary_and_cache(qkv, step.cos, step.sin, heads, step.slots, index)
        if config.query_scale != 1:
            q = q * config.query_scale

        hooks, pattern = step.hooks, step.pattern
        if hooks is not None:
            q = hooks.on_queries(index, q, k, pattern, config)
        if picked is not None:
            rows = picked.flatten() if len(picked) == 1 else flat_rows(picked, q.shape[1])
            h = h.index_select(0, rows)
            q = q.flatten(0, 1).index_select(0, rows).view(*picked.shape, heads, dim)
            pattern = pattern.narrowed(picked)
        if hooks is None:
            out = attend(q, k, v, pattern, config.attention_cap, sink=config.attention_sink)
        else:
            out = hooks.attend(index, q, k, v, pattern, config, step.slots, picked)
        return h, out.reshape(-1, heads * dim)

    def _fuses(self) -> bool:
        """Whether `_fused` computes all that the layer does."""
        weights = self._parameters
        matrices = "qkv_weight", "out_weight", "gate_up_weight", "down_weight"
        return (
            type(self) is DecoderLayer
            and self.group is None
            and self.config.activation == "silu"
            and weights["post_attn_norm"] is None
            and weights["post_mlp_norm"] is None
            and all(type(weights[name]) is nn.Parameter for name in matrices)
        )

    def _fused(self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None, fused: Fused) -> Tensor:
        """`forward` where the residual sum and the norm after it are one operation."""
        weights: dict[str, Any] = self._parameters
        eps, ops = self.config.norm_eps, step.ops
        qkv = matmul(self.inputs(h, ops), weights["qkv_weight"], weights["qkv_bias"])
        h, out = self._attended(h, qkv, step, index, picked)
        h, inputs = fused.add_norm(h, matmul(out, weights["out_weight"], weights["out_bias"]), weights["mlp_norm"], eps)
        inner = ops.glu(matmul(inputs, weights["gate_up_weight"], weights["gate_up_bias"]), "silu")
        h, bias = add_matmul_into(h, inner, weights["down_weight"]), weights["down_bias"]
        return h if bias is None else h + bias

    def _normed_heads(self, qkv: Tensor, ops: Ops) -> Tensor:
        """Queries, keys and values [B, Q, H + 2 K, D], queries and keys normalised, for a layer with `norms_heads`."""
        config = self.config
        assert self.q_norm is not None
        assert self.k_norm is not None
        q, k, v = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], 2)
        q, k = ops.norm(q, self.q_norm, config.norm_eps), ops.norm(k, self.k_norm, config.norm_eps)
        return torch.cat((q, k, v), 2)

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        """h [N, E] plus the MLP of its norm, where the layer has one."""
        config, ops = self.config, step.ops
        weights: dict[str, Any] = self._parameters
        norm = weights.get("mlp_norm")
        inputs = h if norm is None else ops.norm(h, norm, config.norm_eps)

        weight, bias = weights["gate_up_weight"], weights["gate_up_bias"]
        gate_up = matmul(inputs, weight, bias)
        inner = ops.glu(gate_up, config.activation)

        weight, bias, norm = weights["down_weight"], weights["down_bias"], weights["post_mlp_norm"]
        if norm is not None:
            return h + ops.norm(_linear(inner, weight, bias, self.group), norm, config.norm_eps)
        return _add_linear(h, inner, weight, bias, self.group)


def _add_linear(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """h + x @ weight.T (+ bias), added by the matmul itself; with a `group`, each process holds a part of x."""
    if group is None:
        return add_matmul(h, x, weight, bias)
    return h + _linear(x, weight, bias, group)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup | None) -> Tensor:
    """x @ weight.T (+ bias), summed over the processes of a `group`."""
    if group is None:
        return matmul(x, weight, bias)
    part = matmul(x, weight)
    dist.all_reduce(part, group=group)
    return part if bias is None else part + bias


def _bias(size: int, present: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(size)) if present else None


_EPS = 1e-5  # epsilon of the heads' norms; the others have the config's


class HeadNormLayer(DecoderLayer):
    """Chameleon's layer: Llama's, with q, k <- LN(q) * w_h + b_h, LN(k) * w_h + b_h of each head's queries and keys."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        self.norms_heads = True
        for name, heads in (("q_norm", config.heads), ("k_norm", config.kv_heads)):
            self.register_parameter(name, nn.Parameter(torch.ones(heads, config.head_dim)))
            self.register_parameter(f"{name}_bias", nn.Parameter(torch.zeros(heads, config.head_dim)))

    q_norm_bias: nn.Parameter
    k_norm_bias: nn.Parameter

    def _normed_heads(self, qkv: Tensor, ops: Ops) -> Tensor:
        config = self.config
        assert self.q_norm is not None
        assert self.k_norm is not None
        q, k, v = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], 2)
        q = F.layer_norm(q, (config.head_dim,), eps=_EPS) * self.q_norm + self.q_norm_bias
        k = F.layer_norm(k, (config.head_dim,), eps=_EPS) * self.k_norm + self.k_norm_bias
        return torch.cat((q, k, v), 2)


class PostNormLayer(HeadNormLayer):
    """HeadNormLayer with RMSNorms after attention and MLP instead of before."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__(config)
        del self.attn_norm, self.mlp_norm


def modulated(
    x: Tensor, scale: Tensor, shift: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None
) -> Tensor:
    """scale * LN(x) + shift of x [..., E]; LN has a weight and a bias if they are given."""
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], weight, bias, eps), scale)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of q [R, Q, H, D] over k, v [R, S, H, D] -> [R, Q, H * D].

    `mask` is bool, of any shape that broadcasts to [R, H, Q, S]: the slots that each query sees. None: all.
    """
    return attend(q, k, v, AttentionPattern("reference", k.shape[1], mask=mask)).flatten(-2)


def mlp(x: Tensor, layers: nn.ModuleDict, approximate: str = "none") -> Tensor:
    """fc2(gelu(fc1(x))) of the linear layers `fc1` and `fc2`."""
    out: Tensor = layers["fc2"](F.gelu(layers["fc1"](x), approximate=approximate))
    return out
