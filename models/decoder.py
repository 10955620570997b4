"""The native transformer stack: RMSNorm, rotary embedding, grouped-query attention and a gated MLP."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .decoder_config import DecoderConfig as DecoderConfig
from .errors import ModelError
from .hidden import Hidden
from .kernels.attention import attend
from .kernels.attention_pattern import AttentionPattern, attention_pattern
from .kernels.matmul import Linear, add_matmul, matmul
from .kernels.ops import Ops, choose_ops
from .kv_cache import KVCache, Slots
from .plan import Plan, plan_on
from .rope import GridRope, Rope

_NARROW = 0.8  # share of the queries wanted, above which the last layer runs on all of them


@dataclass(slots=True)
class _Pass:
    """What all layers of one forward share on one device."""

    plan: Plan
    ops: Ops
    pattern: AttentionPattern
    slots: Slots | None  # where keys and values go in the cache, if there is one
    cos: Tensor
    sin: Tensor


class DecoderLayer(nn.Module):
    """h += out(attention(norm(h))); h += down(activation(gate(n)) * up(n)), n = norm(h)."""

    qkv_bias: nn.Parameter | None
    out_bias: nn.Parameter | None
    gate_up_bias: nn.Parameter | None
    down_bias: nn.Parameter | None
    q_norm: nn.Parameter | None
    k_norm: nn.Parameter | None
    group: dist.ProcessGroup | None = None  # of the processes that hold this layer's other heads and inner units

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        width, heads, kv_heads, dim = config.width, config.heads, config.kv_heads, config.head_dim
        self.config = config
        self.attn_norm = nn.Parameter(torch.ones(width))
        self.qkv_weight = nn.Parameter(torch.empty((heads + 2 * kv_heads) * dim, width))
        self.out_weight = nn.Parameter(torch.empty(width, heads * dim))
        self.mlp_norm = nn.Parameter(torch.ones(width))
        self.gate_up_weight = nn.Parameter(torch.empty(2 * config.mlp_width, width))
        self.down_weight = nn.Parameter(torch.empty(width, config.mlp_width))
        self.register_parameter("qkv_bias", _bias((heads + 2 * kv_heads) * dim, config.qkv_bias))
        self.register_parameter("out_bias", _bias(width, config.out_bias))
        self.register_parameter("gate_up_bias", _bias(2 * config.mlp_width, config.mlp_bias))
        self.register_parameter("down_bias", _bias(width, config.mlp_bias))
        self.register_parameter("q_norm", _bias(dim, config.qk_norm))
        self.register_parameter("k_norm", _bias(dim, config.qk_norm))

    def forward(self, h: Tensor, step: _Pass, index: int, picked: Tensor | None = None) -> Tensor:
        """States h [B * Q, E] through the layer at `index`; with `picked` [B, M], only those queries come out."""
        skip = step.plan.skip
        if not skip or (index, "attn") not in skip:
            h = self._attention(h, step, index, picked)
        if not skip or (index, "mlp") not in skip:
            h = self._mlp(h, step)
        return h

    def _attention(self, h: Tensor, step: _Pass, index: int, picked: Tensor | None) -> Tensor:
        config, ops = self.config, step.ops
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        qkv = matmul(ops.norm(h, self.attn_norm, config.norm_eps), self.qkv_weight, self.qkv_bias)
        qkv = qkv.view(*step.plan.tokens.shape, heads + 2 * kv_heads, dim)
        if config.qk_norm and self.q_norm is not None and self.k_norm is not None:
            q, k, v = torch.split(qkv, [heads, kv_heads, kv_heads], 2)
            q, k = ops.norm(q, self.q_norm, config.norm_eps), ops.norm(k, self.k_norm, config.norm_eps)
            qkv = torch.cat((q, k, v), 2)
        q, k, v = ops.rotary_and_cache(qkv, step.cos, step.sin, heads, step.slots, index)
        pattern = step.pattern
        if picked is not None:
            rows = _flat_rows(picked, q.shape[1])
            h = h.index_select(0, rows)
            q = q.flatten(0, 1).index_select(0, rows).view(*picked.shape, heads, dim)
            pattern = pattern.narrowed(picked)
        out = attend(q, k, v, pattern).reshape(-1, heads * dim)
        return _add_linear(h, out, self.out_weight, self.out_bias, self.group)

    def _mlp(self, h: Tensor, step: _Pass) -> Tensor:
        config, ops = self.config, step.ops
        normed = ops.norm(h, self.mlp_norm, config.norm_eps)
        inner = ops.glu(matmul(normed, self.gate_up_weight, self.gate_up_bias), config.activation)
        return _add_linear(h, inner, self.down_weight, self.down_bias, self.group)


class _Norm(nn.RMSNorm):
    """The layers' norm as a module, which accelerate can bring the weight to."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        ops = choose_ops(x.device, x.dtype, reference=self.training and torch.is_grad_enabled())
        return ops.norm(x, self.weight, self.eps)


class Decoder(nn.Module):
    """Embedding, layers, final norm and head. Runs under accelerate's hooks as well as without."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = nn.Embedding(config.vocab, config.width)
        self.layers = nn.ModuleList([DecoderLayer(config) for _ in range(config.layers)])
        self.norm = _Norm(config.width, eps=config.norm_eps)
        self.head = Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        frequencies = torch.tensor(config.frequencies, dtype=torch.float32, device="cpu")
        self.rope = Rope(frequencies, config.rope_scale) if config.grid is None else GridRope(frequencies, config.grid)
        self.placement: tuple[torch.device, ...] | None = None  # device of each layer where accelerate has spread them
        self._entry: torch.device | None = None

    @property
    def embed_device(self) -> torch.device:
        """Where tokens go in and logits come out."""
        return self._entry or self.embed.weight.device

    @embed_device.setter
    def embed_device(self, device: torch.device) -> None:
        self._entry = device

    @property
    def embedding(self) -> Tensor:
        """The input embeddings [V, E]."""
        return self.embed.weight

    def devices(self) -> list[torch.device]:
        """The device each layer runs on."""
        return list(self.placement or [self.embed.weight.device] * self.config.layers)

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        """An empty cache for `batch` rows of `capacity` slots, each layer's part on its device."""
        config = self.config
        return KVCache(
            layers=config.layers,
            batch=batch,
            capacity=capacity,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=self.embed.weight.dtype,
            device=self.devices(),
        )

    def forward(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Run `plan`; without a cache, queries see the plan's own K/V (slot i is query i).

        `plan.layers` runs a part of the stack: one that starts above 0 takes `plan.soft` as its incoming states.
        """
        chosen = range(self.config.layers)[plan.layers] if plan.layers is not None else range(self.config.layers)
        h = self._enter(plan, chosen).flatten(0, 1)  # [B * Q, E]: one matmul costs less than one for each row
        taps: dict[int, Tensor] = {}
        passes: dict[torch.device, _Pass] = {}
        narrowed = plan.narrow and self._narrows(plan)
        for index, layer in enumerate(self.layers):
            if index not in chosen:
                continue
            device = h.device if self.placement is None else self.placement[index]
            step = passes.get(device)
            if step is None:
                step = passes[device] = self._pass(plan_on(plan, device), cache, device, h.dtype)
            picked = step.plan.want.clamp(min=0) if narrowed and index == self.config.layers - 1 else None
            # Not layer(...): accelerate replaces forward itself, and a call costs more.
            h = layer.forward(h, step, index, picked)
            if index in plan.hidden:
                taps[index] = h.view(*plan.tokens.shape, -1)
        shape = plan.want.shape if narrowed else plan.tokens.shape
        return Hidden(plan, h.view(*shape, -1), self.project, taps, narrowed)

    def _narrows(self, plan: Plan) -> bool:
        """Whether the last layer can leave out the queries that are not wanted, and gains by it."""
        whole = plan.layers is None and not plan.skip and self.config.layers - 1 not in plan.hidden
        return whole and plan.want.shape[1] <= _NARROW * plan.width

    def project(self, states: Tensor) -> Tensor:
        """Final norm and head: states [M, E] -> logits [M, V] in the model's dtype."""
        logits = self.head.forward(self.norm.forward(states))
        return logits if self.placement is None else logits.to(self.embed_device)

    def _enter(self, plan: Plan, chosen: range) -> Tensor:
        if chosen and chosen[0] > 0:
            if plan.soft is None:
                raise ModelError(
                    f"a pass that starts at layer {chosen[0]} needs the states to go on from",
                    "hand in the states of the earlier part as Plan.soft",
                )
            return plan.soft
        h = self.embed.forward(plan.tokens if plan.soft is None else plan.tokens.clamp(min=0))
        if self.config.embedding_scale != 1:  # rounded as the embeddings are
            h = h * float(torch.tensor(self.config.embedding_scale, dtype=h.dtype, device="cpu"))
        if plan.soft is None:
            return h
        return h.masked_fill((plan.tokens < 0)[..., None], 0) + plan.soft.to(h.dtype)

    def _pass(self, plan: Plan, cache: KVCache | None, device: torch.device, dtype: torch.dtype) -> _Pass:
        cos, sin = self.rope.rows(plan, limit=None if cache is None else cache.capacity, device=device)
        extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
        training = self.training and torch.is_grad_enabled()
        return _Pass(
            plan,
            choose_ops(device, dtype, reference=training),
            attention_pattern(plan, extent=extent, dtype=dtype, device=device, reference=training),
            None if cache is None else cache.slots(plan),
            cos,
            sin,
        )


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
    part = matmul(x, weight)
    dist.all_reduce(part, group=group)
    return h + part if bias is None else h + part + bias


def _bias(size: int, present: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(size)) if present else None
