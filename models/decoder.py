"""The native transformer stack: RMSNorm, rotary embedding, grouped-query attention and a gated MLP."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .caches.kv_cache import KVCache
from .caches.reuse_cache import ReuseCache
from .decoder_config import AttentionConfig
from .decoder_config import DecoderConfig as DecoderConfig
from .errors import CacheError, ModelError
from .hidden import Hidden
from .kernels.attention_parts import pattern_parts
from .kernels.attention_pattern import attention_pattern
from .kernels.matmul import Linear
from .kernels.ops import choose_ops
from .layers.attention_record import AttentionRecord
from .layers.diffusion_gemma_layer import Conditioning, DiffusionGemmaLayer, canvas_of
from .layers.head_norm_layer import HeadNormLayer, PostNormLayer
from .layers.layer import DecoderLayer, LayerPass
from .layers.layer_groups import group_of
from .layers.rope import GridRope, Rope
from .layers.sparse_layer import SparseLayer
from .plan import Plan, plan_on

_NARROW = 0.8  # share of the queries wanted, above which the last layer runs on all of them


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
        self.layers = nn.ModuleList([_layer_class(config, index)(config.of(index)) for index in range(config.layers)])
        self.conditioning = Conditioning(config) if config.canvas else None
        self.norm = _Norm(config.width, eps=config.norm_eps)
        self.head = Linear(config.width, config.vocab, bias=False)
        if config.tied:
            self.head.weight = self.embed.weight
        frequencies = torch.tensor(config.frequencies, dtype=torch.float32, device="cpu")
        self.rope = Rope(frequencies, config.rope_scale) if config.grid is None else GridRope(frequencies, config.grid)
        self._own_ropes = {
            own: Rope(torch.tensor(own.frequencies, device="cpu"), own.rope_scale) for own in config.each
        }
        self.placement: tuple[torch.device, ...] | None = None  # device of each layer where accelerate has spread them
        self._entry: torch.device | None = None
        self.weights_version = 0  # rises when the weights are replaced in place

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

    def tables(self) -> list[Tensor]:
        """The tensors that rotating reads at present."""
        return [table for rope in (self.rope, *self._own_ropes.values()) for table in rope.tables()]

    def ropes(self) -> list[Rope | GridRope]:
        """What rotates queries and keys in each layer."""
        return [self._own_ropes[own] for own in self.config.each] or [self.rope] * self.config.layers

    def devices(self) -> list[torch.device]:
        """The device each layer runs on."""
        return list(self.placement or [self.embed.weight.device] * self.config.layers)

    def new_cache(self, batch: int, capacity: int, shared: int = 0) -> KVCache:
        """An empty cache for `batch` rows of `capacity` slots, `shared` of them in common, each layer's on its device.

        Raises CacheError for shared slots where a layer has a sliding window or a canvas.
        """
        config = self.config
        if shared and (config.least_window is not None or config.canvas):
            raise CacheError("rows cannot share slots where a layer has a sliding window or a canvas", "share none")
        return KVCache(
            layers=config.layers,
            batch=batch,
            capacity=capacity,
            kv_heads=[config.of(layer).kv_heads for layer in range(config.layers)] if config.each else config.kv_heads,
            head_dim=[config.of(layer).head_dim for layer in range(config.layers)] if config.each else config.head_dim,
            dtype=self.embed.weight.dtype,
            device=self.devices(),
            shared=shared,
        )

    def forward(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        """Run `plan`; without a cache, queries see the plan's own K/V (slot i is query i).

        `plan.layers` runs a part of the stack: one that starts above 0 takes `plan.soft` as its incoming states.
        """
        chosen = range(self.config.layers)[plan.layers] if plan.layers is not None else range(self.config.layers)
        h = self._enter(plan, chosen).flatten(0, 1)  # [B * Q, E]: one matmul costs less than one for each row
        taps: dict[int, Tensor] = {-1: h.view(*plan.tokens.shape, -1)} if -1 in plan.hidden else {}
        passes: dict[tuple[torch.device, AttentionConfig | None], LayerPass] = {}
        reuse = cache if isinstance(cache, ReuseCache) else None
        narrowed = plan.narrow and reuse is None and self._narrows(plan)
        queries: list[Tensor] = []
        attention: dict[int, Tensor] = {}
        entry: Tensor | None = None  # the input of a group of layers that run in parallel
        for index, layer in enumerate(self.layers):
            if index not in chosen:
                continue
            device = h.device if self.placement is None else self.placement[index]
            own = self.config.each[index] if self.config.each else None
            step = passes.get((device, own))
            if step is None:
                on_device = plan_on(plan, device)
                step = passes[device, own] = self._pass(on_device, cache, device, h.dtype, own)
                step.queries = queries
                if plan.attention:
                    step.record = self._record(on_device, cache, own, attention)
            picked = step.plan.want.clamp(min=0) if narrowed and index == self.config.layers - 1 else None
            if (
                plan.parallel > 1
                and (mates := group_of(index, self.config.layers, plan.parallel)).stop > mates.start + 1
            ):
                entry = h if index == mates.start else entry
                assert entry is not None, "a group begins with its first layer"
                assert isinstance(layer, DecoderLayer)
                h = h + layer.changes(entry, step, index)
            else:
                # Not layer(...): accelerate replaces forward itself, and a call costs more.
                if reuse is None or index == 0:
                    h = layer.forward(h, step, index, picked)
                else:
                    assert isinstance(layer, DecoderLayer)
                    h = reuse.through(layer, h, step, index)
            if index in plan.hidden:
                taps[index] = h.view(*plan.tokens.shape, -1)
        shape = plan.want.shape if narrowed else plan.tokens.shape
        return Hidden(
            plan,
            h.view(*shape, -1),
            self.project,
            taps,
            narrowed,
            self.norm.forward,
            None,
            tuple(queries),
            attention,
        )

    def _record(
        self, plan: Plan, cache: KVCache | None, own: AttentionConfig | None, weights: dict[int, Tensor]
    ) -> AttentionRecord:
        if cache is not None and (cache.shared is not None or cache.reader(plan, self.rope, plan.tokens.device)):
            raise CacheError(
                "the attention of a forward is kept where its queries attend to whole rows, and this cache is read "
                "in a way of its own",
                "make a plain one: new_cache(batch, capacity)",
            )
        plan = plan if cache is None else cache.layout(plan)
        extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
        return AttentionRecord.of(plan, extent, self.config.window if own is None else own.window, weights)

    def _narrows(self, plan: Plan) -> bool:
        """Whether the last layer can leave out the queries that are not wanted, and gains by it."""
        whole = (
            plan.layers is None and not plan.skip and plan.parallel == 1 and self.config.layers - 1 not in plan.hidden
        )
        every = self.config.canvas or (self.config.experts is not None and self.config.experts.pool > 0)
        return whole and not every and plan.want.shape[1] <= _NARROW * plan.width

    def project(self, states: Tensor) -> Tensor:
        """Final norm and head: states [M, E] -> logits [M, V] in the model's dtype."""
        return self.unembed(self.norm.forward(states))

    def unembed(self, normed: Tensor) -> Tensor:
        """The head alone: states behind the final norm [M, E] -> logits [M, V] in the model's dtype."""
        logits = self.head.forward(normed)
        if self.config.logit_cap is not None:
            logits = (logits / self.config.logit_cap).tanh() * self.config.logit_cap
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
        canvas = canvas_of(plan)
        if self.conditioning is not None:
            soft = None if plan.soft is None else plan.soft.to(h.dtype)
            return h if canvas is None else torch.where(canvas[..., None], self.conditioning(h, soft), h)
        if plan.soft is None:
            return h
        return h.masked_fill((plan.tokens < 0)[..., None], 0) + plan.soft.to(h.dtype)

    def _pass(
        self,
        plan: Plan,
        cache: KVCache | None,
        device: torch.device,
        dtype: torch.dtype,
        own: AttentionConfig | None,
    ) -> LayerPass:
        rope = self.rope if own is None else self._own_ropes[own]
        cos, sin = rope.rows(plan, limit=None if cache is None else cache.reach, device=device)
        own_plan, plan = plan, plan if cache is None else cache.layout(plan)
        extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
        training = self.training and torch.is_grad_enabled()
        plain = training or self.config.attention_cap is not None  # a cap is in the definition alone
        window = self.config.window if own is None else own.window
        if cache is None or cache.shared is None:
            prefix = None
            pattern = attention_pattern(plan, extent=extent, dtype=dtype, device=device, reference=plain, window=window)
        else:
            prefix, pattern = pattern_parts(
                plan, cache.offset, extent=extent, dtype=dtype, device=device, reference=plain
            )
        return LayerPass(
            own_plan,
            choose_ops(device, dtype, reference=training),
            pattern,
            None if cache is None else cache.slots(plan, in_parts=True),
            cos,
            sin,
            None
            if self.config.query_growth is None
            else _growth(own_plan.positions, *self.config.query_growth).to(dtype),
            canvas.flatten()[:, None] if self.config.canvas and (canvas := canvas_of(plan)) is not None else None,
            prefix,
            None if cache is None else cache.reader(own_plan, rope, device),
            _last(own_plan) if own_plan.queries else None,
        )


def _layer_class(config: DecoderConfig, index: int) -> type[DecoderLayer]:
    if config.canvas:
        return DiffusionGemmaLayer
    if config.head_norms:
        return PostNormLayer if config.post_norms else HeadNormLayer
    return SparseLayer if config.is_sparse(index) else DecoderLayer


def _last(plan: Plan) -> Tensor:
    """[B, n] the queries that the plan keeps; the first one again where a row has not as many."""
    order = torch.arange(1 - plan.queries, 1, device=plan.want.device)
    return (plan.want[:, -1:] + order).clamp(min=0)


def _growth(positions: Tensor, factor: float, step: int) -> Tensor:
    """1 + factor log(1 + position // step) of each query [B, Q], as [B, Q, 1, 1]."""
    return (1 + factor * torch.log1p((positions.clamp(min=0) // step).float()))[..., None, None]
