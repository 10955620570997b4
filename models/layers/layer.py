"""A layer of the native stack: attention and a gated MLP, dense or made of experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..caches.kv_cache import Slots
from ..caches.readers import Reader
from ..decoder_config import DecoderConfig
from ..kernels.attention import attend
from ..kernels.attention_parts import attend_parts
from ..kernels.attention_pattern import AttentionPattern
from ..kernels.matmul import add_matmul, matmul
from ..kernels.ops import Ops
from ..plan import Plan
from .attention_record import AttentionRecord


@dataclass(slots=True)
class LayerPass:
    """What all layers of one forward share on one device."""

    plan: Plan
    ops: Ops
    pattern: AttentionPattern
    slots: Slots | None  # where keys and values go in the cache, if there is one
    cos: Tensor
    sin: Tensor
    growth: Tensor | None = None  # [B, Q, 1, 1], of queries by their positions
    canvas: Tensor | None = None  # [B * Q, 1] bool: the queries of a canvas that is being denoised
    prefix: AttentionPattern | None = None  # of the cache's shared part; `pattern` is of the rows' own slots then
    reader: Reader | None = None  # of a cache that has its own way of being attended to
    last: Tensor | None = None  # [B, n] the queries that are kept
    queries: list[Tensor] | None = None  # where, layer by layer
    record: AttentionRecord | None = None  # where the attention of chosen layers is kept


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
    group: dist.ProcessGroup | None = None  # of the processes that hold this layer's other heads and inner units

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
        self._make_mlp(config)

    def _make_mlp(self, config: DecoderConfig) -> None:
        """The parameters of the MLP."""
        self.gate_up_weight = nn.Parameter(torch.empty(2 * config.mlp_width, config.width))
        self.down_weight = nn.Parameter(torch.empty(config.width, config.mlp_width))
        self.register_parameter("gate_up_bias", _bias(2 * config.mlp_width, config.mlp_bias))
        self.register_parameter("down_bias", _bias(config.width, config.mlp_bias))

    def forward(self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None = None) -> Tensor:
        """States h [B * Q, E] through the layer at `index`; with `picked` [B, M], only those queries come out."""
        skip = step.plan.skip
        if not skip or (index, "attn") not in skip:
            h = self._attention(h, step, index, picked)
        if not skip or (index, "mlp") not in skip:
            h = self._mlp(h, step)
        return h

    def changes(self, h: Tensor, step: LayerPass, index: int) -> Tensor:
        """[B * Q, E] what attention and MLP add to states h [B * Q, E], if both read h itself."""
        return (self._attention(h, step, index, None) - h) + (self._mlp(h, step) - h)

    def inputs(self, h: Tensor, ops: Ops) -> Tensor:
        """What attention reads of states h [B * Q, E]."""
        return ops.norm(h, self.attn_norm, self.config.norm_eps)

    def _attention(self, h: Tensor, step: LayerPass, index: int, picked: Tensor | None) -> Tensor:
        return self._attend(h, self.inputs(h, step.ops), step, index, picked)

    def _attend(self, h: Tensor, inputs: Tensor, step: LayerPass, index: int, picked: Tensor | None) -> Tensor:
        """h [B * Q, E], or its `picked` queries, plus attention among `inputs` [B * Q, I], which the norm gives."""
        config, ops = self.config, step.ops
        heads, dim = config.heads, config.head_dim
        qkv = matmul(inputs, self.qkv_weight, self.qkv_bias)
        qkv = self._normed_heads(qkv.view(*step.plan.tokens.shape, -1, dim), ops)
        if config.clip_qkv is not None:
            qkv = qkv.clamp(-config.clip_qkv, config.clip_qkv)
        q, k, v = ops.rotary_and_cache(qkv, step.cos, step.sin, heads, step.slots, index)
        if config.query_scale != 1:
            q = q * config.query_scale
        if step.growth is not None:
            q = q * step.growth
        pattern, prefix = step.pattern, step.prefix
        if step.last is not None and step.queries is not None:
            step.queries.append(q.flatten(0, 1)[_flat_rows(step.last, q.shape[1])].view(*step.last.shape, heads, dim))
        if step.record is not None:
            step.record.add(index, q, k, pattern, config.attention_cap)
        if picked is not None:
            rows = _flat_rows(picked, q.shape[1])
            h = h.index_select(0, rows)
            q = q.flatten(0, 1).index_select(0, rows).view(*picked.shape, heads, dim)
            pattern = pattern.narrowed(picked)
            prefix = None if prefix is None else prefix.narrowed(picked)
        if step.reader is not None:
            reader = step.reader if picked is None else step.reader.narrowed(picked)
            out = reader.attend(index, q, k, v, pattern, config.attention_cap)
        elif prefix is None:
            out = attend(q, k, v, pattern, config.attention_cap)
        else:
            assert step.slots is not None, "a cache has the shared part"
            shared = step.slots.shared(index)
            out = attend_parts(q, (*shared, prefix), (k, v, pattern), config.attention_cap)
        out = out.reshape(-1, heads * dim)
        if self.post_attn_norm is None:
            return _add_linear(h, out, self.out_weight, self.out_bias, self.group)
        out = _linear(out, self.out_weight, self.out_bias, self.group)
        return h + ops.norm(out, self.post_attn_norm, config.norm_eps)

    def _normed_heads(self, qkv: Tensor, ops: Ops) -> Tensor:
        """Queries, keys and values [B, Q, H + 2 K, D], queries and keys normalised where the model does so."""
        config = self.config
        if not config.qk_norm or self.q_norm is None or self.k_norm is None:
            return qkv
        q, k, v = torch.split(qkv, [config.heads, config.kv_heads, config.kv_heads], 2)
        q, k = ops.norm(q, self.q_norm, config.norm_eps), ops.norm(k, self.k_norm, config.norm_eps)
        return torch.cat((q, k, v), 2)

    def _mlp(self, h: Tensor, step: LayerPass) -> Tensor:
        config, ops = self.config, step.ops
        normed = ops.norm(h, self.mlp_norm, config.norm_eps)
        inner = ops.glu(matmul(normed, self.gate_up_weight, self.gate_up_bias), config.activation)
        if self.post_mlp_norm is None:
            return _add_linear(h, inner, self.down_weight, self.down_bias, self.group)
        out = _linear(inner, self.down_weight, self.down_bias, self.group)
        return h + ops.norm(out, self.post_mlp_norm, config.norm_eps)


def _flat_rows(picked: Tensor, width: int) -> Tensor:
    """Indices [B * M] into [B * Q] of the queries `picked` [B, M] of each row."""
    if len(picked) > 1:
        picked = picked + torch.arange(0, len(picked) * width, width, device=picked.device)[:, None]
    return picked.flatten()


def _add_linear(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """h + x @ weight.T (+ bias), added by the matmul itself; with a `group`, each process has a part of x."""
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
