"""The one native transformer stack: RMSNorm, RoPE, grouped-query attention, SwiGLU; optional biases and q/k norm."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .decoder_config import DecoderConfig as DecoderConfig
from .errors import ModelError
from .hidden import Hidden
from .kernels.attention import attend
from .kernels.attention_pattern import AttentionPattern, look
from .kernels.choice import Backend, backend
from .kernels.cpu.layer import turn_c, usable
from .kernels.matmul import Linear, added, product
from .kernels.norm import norm
from .kernels.rotary import turn_and_store
from .kernels.swiglu import gated
from .kv_cache import Address, KVCache, Views
from .plan import Plan, moved
from .rope import GridRope, Rope, rotate

_NARROW = 0.8  # share of the queries wanted, above which the last layer runs on all of them


@dataclass(slots=True)
class _Pass:
    """What all layers of one forward share on one device."""

    plan: Plan
    cache: KVCache | None
    address: Address | None
    views: list[Views] | None
    attention_pattern: AttentionPattern
    cos: Tensor
    sin: Tensor
    kernels: Backend  # of what is faster in Triton or C ...
    norms: Backend  # ... and of norms, which the library does as fast
    where: Tensor | None  # [B * Q] flat slots, for Triton

    def store(self, cache: KVCache, index: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Writes k, v [B, Q, K, D] of layer `index`; what its queries read, [rows, >= S, K, D] each."""
        if self.views is not None:
            to_k, to_v, from_k, from_v = self.views[index]
            to_k.copy_(k)
            to_v.copy_(v)
            return from_k, from_v
        cache.write(index, k, v, self.plan, self.address)
        return cache.k[index], cache.v[index]


class DecoderLayer(nn.Module):
    """h += out(attention(norm(h))); h += down(silu(gate(n)) * up(n)), n = norm(h)."""

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
        config, cache, attention_pattern = self.config, step.cache, step.attention_pattern
        heads, kv_heads, dim = config.heads, config.kv_heads, config.head_dim
        fused = product(norm(h, self.attn_norm, config.norm_eps, step.norms), self.qkv_weight, self.qkv_bias)
        fused = fused.view(*step.plan.tokens.shape, heads + 2 * kv_heads, dim)
        v = fused[:, :, heads + kv_heads :]
        if config.qk_norm:
            q = norm(fused[:, :, :heads], self.q_norm, config.norm_eps, step.norms)
            k = norm(fused[:, :, heads : heads + kv_heads], self.k_norm, config.norm_eps, step.norms)
            fused = torch.cat((q, k) if step.where is None else (q, k, v), 2)
        if cache is not None and step.where is not None:
            k, v = cache.k[index], cache.v[index]
            q = turn_and_store(fused, step.cos, step.sin, k, v, step.where, heads, step.kernels)
        elif step.kernels == "c" and not config.qk_norm and (cache is None or step.views is not None):
            stored = None if step.views is None else step.views[index]
            q, k = turn_c(fused, step.cos, step.sin, heads, stored and stored[:2])
            if stored is not None:
                k, v = stored[2:]
        else:
            turned = rotate(fused[:, :, : heads + kv_heads], step.cos, step.sin)
            q, k = turned[:, :, :heads], turned[:, :, heads:]
            if cache is not None:
                k, v = step.store(cache, index, k, v)
        if picked is not None:
            rows, width = picked, q.shape[1]
            if len(q) > 1:
                rows = rows + torch.arange(0, len(q) * width, width, device=rows.device)[:, None]
            h = h.index_select(0, rows.flatten())
            q = q.flatten(0, 1).index_select(0, rows.flatten()).view(*picked.shape, heads, dim)
            attention_pattern = attention_pattern.narrowed(picked)
        out = attend(q, k, v, attention_pattern).reshape(-1, heads * dim)
        return _add_linear(h, out, self.out_weight, self.out_bias, self.group)

    def _mlp(self, h: Tensor, step: _Pass) -> Tensor:
        normed = norm(h, self.mlp_norm, self.config.norm_eps, step.norms)
        both = product(normed, self.gate_up_weight, self.gate_up_bias)
        return _add_linear(h, gated(both, step.kernels), self.down_weight, self.down_bias, self.group)


class _Norm(nn.RMSNorm):
    """The layers' norm as a module, which accelerate can bring the weight to."""

    eps: float

    def forward(self, x: Tensor) -> Tensor:
        return norm(x, self.weight, self.eps, "c" if usable(x.device, x.dtype) else "reference")


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
        h = self._enter(plan, chosen).flatten(0, 1)  # [B * Q, E]: a product of matrices costs less than of stacks
        taps: dict[int, Tensor] = {}
        passes: dict[torch.device, _Pass] = {}
        narrowed = plan.narrow and self._narrows(plan)
        for index, layer in enumerate(self.layers):
            if index not in chosen:
                continue
            device = h.device if self.placement is None else self.placement[index]
            step = passes.get(device)
            if step is None:
                step = passes[device] = self._pass(moved(plan, device), cache, device, h.dtype)
            picked = step.plan.want.clamp(min=0) if narrowed and index == self.config.layers - 1 else None
            # Not layer(...): accelerate replaces forward itself, and a call costs more.
            h = layer.forward(h, step, index, picked)
            if index in plan.hidden:
                taps[index] = h.view(*plan.tokens.shape, -1)
        shape = plan.want.shape if narrowed else plan.tokens.shape
        return Hidden(plan, h.view(*shape, -1), self.project, taps, narrowed)

    def _narrows(self, plan: Plan) -> bool:
        """Whether leaving out of the last layer what is not wanted is possible and worth it."""
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
        if plan.soft is None:
            return self.embed.forward(plan.tokens)
        h = self.embed.forward(plan.tokens.clamp(min=0)).masked_fill((plan.tokens < 0)[..., None], 0)
        return h + plan.soft.to(h.dtype)

    def _pass(self, plan: Plan, cache: KVCache | None, device: torch.device, dtype: torch.dtype) -> _Pass:
        limit = cache.capacity if cache is not None else None
        cos, sin = self.rope.rows(plan, limit=limit, device=device)
        extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
        plain = torch.is_grad_enabled() and self.training
        attention_pattern = look(plan, extent=extent, dtype=dtype, device=device, plain=plain)
        views = cache.views(plan) if cache is not None else None
        address = cache.address(plan) if cache is not None and views is None else None
        kernels: Backend = "reference" if plain else backend(device)
        norms: Backend = "reference" if plain else backend(device, suited=False)
        if kernels == "reference" and not plain and usable(device, dtype):
            kernels = norms = "c"
        where = cache.flat(plan).to(device) if cache is not None and kernels == "triton" else None
        return _Pass(plan, cache, address, views, attention_pattern, cos, sin, kernels, norms, where)


def _add_linear(
    h: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, group: dist.ProcessGroup | None = None
) -> Tensor:
    """h + x @ weight.T (+ bias), the sum made by the product itself; with a `group`, each process has a part of x."""
    if group is None:
        return added(h, x, weight, bias)
    part = product(x, weight)
    dist.all_reduce(part, group=group)
    return h + part if bias is None else h + part + bias


def _bias(size: int, present: bool) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(size)) if present else None
