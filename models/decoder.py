"""The native transformer stack: RMSNorm, rotary embedding, grouped-query attention and a gated MLP."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .caches.kv_cache import KVCache, Reader
from .caches.reuse_cache import ReuseCache
from .caches.skip_cache import SkipCache
from .decoder_config import AttentionConfig
from .decoder_config import DecoderConfig as DecoderConfig
from .errors import CacheError, ModelError
from .kernels.attention import AttentionPattern, attention_pattern
from .kernels.attention_parts import pattern_parts
from .kernels.layout import rows_of
from .kernels.matmul import Linear
from .kernels.ops import choose_ops
from .layers.diffusion_gemma_layer import Conditioning, DiffusionGemmaLayer, canvas_of
from .layers.fused_layers import Chain, FusedLayers, chains
from .layers.layer import DecoderLayer, HeadNormLayer, LayerPass, PostNormLayer
from .layers.layer_groups import LayerGroups
from .layers.layer_hooks import AttentionRecord, Kept, LayerHooks
from .layers.rope import GridRope, Rope
from .layers.sparse_layer import SparseLayer
from .plan import Hidden, Plan, TargetStates, plan_on

_KNOWN = 8  # plans whose patterns and rotations are kept
_NARROW = 0.8  # above this share of wanted queries, the last layer computes all of them


class _Norm(nn.RMSNorm):
    """RMSNorm as a module, so that accelerate can move its weight."""

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
        self._own_ropes = {own: Rope.of(own) for own in config.each}
        self.placement: tuple[torch.device, ...] | None = None  # device of each layer where accelerate has spread them
        self._entry: torch.device | None = None
        self.has_hooks = config.canvas or config.query_growth is not None
        self._known: dict[Hashable, tuple[AttentionPattern, Tensor, Tensor]] = {}  # results of `_pass`, by positions
        self.weights_version = 0  # rises when the weights are replaced in place
        self.fused = FusedLayers()

    @property
    def embed_device(self) -> torch.device:
        """The device on which tokens enter and logits come out."""
        return self._entry or self.embed.weight.device

    @embed_device.setter
    def embed_device(self, device: torch.device) -> None:
        self._entry = device

    @property
    def embedding(self) -> Tensor:
        """The input embeddings [V, E]."""
        return self.embed.weight

    def tables(self) -> list[Tensor]:
        """The current rotary tables, cosines and sines."""
        return [table for rope in (self.rope, *self._own_ropes.values()) for table in rope.tables()]

    def ropes(self) -> list[Rope | GridRope]:
        """The rotary embedding of each layer."""
        return [self._own_ropes[own] for own in self.config.each] or [self.rope] * self.config.layers

    def devices(self) -> list[torch.device]:
        """The device each layer runs on."""
        return list(self.placement or [self.embed.weight.device] * self.config.layers)

    def new_cache(self, batch: int, capacity: int, shared: int = 0) -> KVCache:
        """An empty cache for `batch` rows of `capacity` slots, `shared` of them in common, each layer's on its device.

        Raises CacheError for shared slots where a layer has a sliding window, a canvas or an attention sink.
        """
        config = self.config
        if shared and (config.least_window is not None or config.canvas or config.attention_sink):
            raise CacheError(
                "rows cannot share slots in a model with sliding windows, a canvas or an attention sink",
                "make the cache without shared slots",
            )
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
        count = self.config.layers
        chosen = range(count) if plan.layers is None else range(count)[plan.layers]
        h = self._enter(plan, chosen).flatten(0, 1)  # [B * Q, E]: one matmul costs less than one for each row
        taps: dict[int, Tensor] = {-1: h.view(*plan.tokens.shape, -1)} if -1 in plan.hidden else {}
        kept = Kept() if plan.queries or plan.attention else None
        if self.placement is None and not self.config.each:
            steps = dict.fromkeys(chosen, self._pass(plan, cache, h.device, h.dtype, None, kept))
        else:
            steps = self._passes(plan, cache, h, chosen, kept)
        through = None  # runs the layers in another way than one after the other
        if isinstance(cache, ReuseCache | SkipCache):
            through = cache.through
        elif plan.parallel > 1:
            through = LayerGroups(count, plan.parallel).through
        narrowed = plan.narrow and through is None and self._narrows(plan)

        layers: list[DecoderLayer] = list(self.layers)  # type: ignore[arg-type]
        fused = None  # runs successive layers at once
        if chosen and chosen.step == 1 and through is None and self.placement is None and not self.config.each:
            fused = self.fused.run(self.layers, steps[chosen.start], h.dtype, self.weights_version)
        done = chosen.start  # layers before this one are done
        for index in chosen:
            layer, step, last = layers[index], steps[index], index == count - 1
            picked = step.plan.want.clamp(min=0) if narrowed and last else None
            if through is not None:
                h = through(layer, h, step, index)
            elif fused is None or (last and narrowed and step.pattern.causal):
                h = layer.forward(h, step, index, picked)  # not layer(...): accelerate replaces forward itself
            elif last or index + 1 == chosen.stop or index in plan.hidden or (narrowed and index + 2 == count):
                h, done = fused(h, range(done, index + 1), picked), index + 1
            if index in plan.hidden:
                taps[index] = h.view(*plan.tokens.shape, -1)

        states = h.view(*(plan.want if narrowed else plan.tokens).shape, -1)
        hidden = Hidden(plan, states, self.project, taps, narrowed, self.norm.forward)
        return hidden if kept is None else replace(hidden, queries=tuple(kept.queries), attention=kept.attention)

    def chain(self, cache: KVCache, wanted: TargetStates) -> Chain | None:
        """Forwards of chains of one row over `cache` that also return the states `wanted`; None for other models."""
        return Chain(self, cache, wanted) if chains(self, cache, wanted) else None

    def _narrows(self, plan: Plan) -> bool:
        """Whether the last layer can leave out the queries that are not wanted, and is faster that way."""
        whole = plan.layers is None and not plan.skip and self.config.layers - 1 not in plan.hidden
        every = self.config.canvas or (self.config.experts is not None and self.config.experts.pool > 0)
        return whole and not every and plan.want.shape[1] <= _NARROW * plan.tokens.shape[1]

    def project(self, states: Tensor) -> Tensor:
        """Final norm and head: states [M, E] -> logits [M, V] in the model's dtype."""
        return self.unembed(self.norm.forward(states))

    def unembed(self, normed: Tensor) -> Tensor:
        """The head alone: states after the final norm [M, E] -> logits [M, V] in the model's dtype."""
        head = self.head
        weight = head.weight
        plain = self.placement is None and head.again is None and type(weight) is nn.Parameter
        logits = F.linear(normed, weight) if plain else head.forward(normed)
        if self.config.logit_cap is not None:
            logits = (logits / self.config.logit_cap).tanh() * self.config.logit_cap
        return logits if self.placement is None else logits.to(self.embed_device)

    def _enter(self, plan: Plan, chosen: range) -> Tensor:
        if chosen and chosen[0] > 0:
            if plan.soft is None:
                raise ModelError(
                    f"a forward that starts at layer {chosen[0]} needs the states before that layer",
                    "pass the states of the earlier layers as Plan.soft",
                )
            return plan.soft
        h = self.embedded(plan.tokens if plan.soft is None else plan.tokens.clamp(min=0))
        if self.conditioning is not None:
            canvas = canvas_of(plan)
            soft = None if plan.soft is None else plan.soft.to(h.dtype)
            return h if canvas is None else torch.where(canvas[..., None], self.conditioning(h, soft), h)
        if plan.soft is None:
            return h
        return h.masked_fill((plan.tokens < 0)[..., None], 0) + plan.soft.to(h.dtype)

    def embedded(self, tokens: Tensor) -> Tensor:
        """[..., E] the embeddings of `tokens`."""
        table = self.embed  # accelerate's hooks replace its `forward`
        h: Tensor = table.forward(tokens) if type(table.weight) is nn.Parameter else rows_of(table.weight, tokens)
        if self.config.embedding_scale != 1:  # rounded as the embeddings are
            h = h * float(torch.tensor(self.config.embedding_scale, dtype=h.dtype, device="cpu"))
        return h

    def _passes(
        self, plan: Plan, cache: KVCache | None, h: Tensor, chosen: range, kept: Kept | None
    ) -> dict[int, LayerPass]:
        """The `LayerPass` of each of the `chosen` layers, where devices or attention differ between layers."""
        passes: dict[tuple[torch.device, AttentionConfig | None], LayerPass] = {}
        steps: dict[int, LayerPass] = {}
        for index in chosen:
            device = h.device if self.placement is None else self.placement[index]
            own = self.config.each[index] if self.config.each else None
            if (device, own) not in passes:
                passes[device, own] = self._pass(plan, cache, device, h.dtype, own, kept)
            steps[index] = passes[device, own]
        return steps

    def _pass(
        self,
        plan: Plan,
        cache: KVCache | None,
        device: torch.device,
        dtype: torch.dtype,
        own: AttentionConfig | None,
        kept: Kept | None,
    ) -> LayerPass:
        """The `LayerPass` of the layers on `device`; `own` is their attention's configuration, where layers differ."""
        if plan.tokens.device != device:
            plan = plan_on(plan, device)
        training = self.training and torch.is_grad_enabled()
        ops = choose_ops(device, dtype, reference=training)
        stored = plan if cache is None else cache.layout(plan)  # in the cache's own slots
        extent = stored.uniform
        if not extent:
            extent = plan.tokens.shape[1] if cache is None else cache.extent(stored)
        rope = self.rope if own is None else self._own_ropes[own]

        # Of plans whose positions the host knows, a step that asks for the same positions again finds these again.
        key, known = None, None
        in_parts = cache is not None and cache.shared is not None
        if plan.span is not None and stored is plan and plan.origin is None and plan.rows is None and not in_parts:
            visible = plan.visible.kind, plan.visible.block
            key = (
                visible,
                plan.span,
                plan.uniform,
                extent,
                plan.tokens.shape,
                device,
                dtype,
                id(ops),
                id(own),
                training,
            )
            known = self._known.get(key)
        prefix = None
        if known is not None:
            pattern, cos, sin = known
        else:
            limit = None if cache is None or plan.span is not None else cache.reach
            cos, sin = rope.rows(plan, limit=limit, device=device)
            sees: dict[str, Any] = {"extent": extent, "dtype": dtype, "device": device}
            sees["reference"] = training or self.config.attention_cap is not None  # only the definition supports a cap
            if not in_parts:
                window = self.config.window if own is None else own.window
                sink = self.config.attention_sink
                pattern = attention_pattern(stored, window=window, fastest=ops.version, sink=sink, **sees)
                if key is not None and pattern.mask is None and pattern.ends is None and pattern.positions is None:
                    if len(self._known) >= _KNOWN:
                        self._known.clear()
                    self._known[key] = pattern, cos, sin
            else:
                assert cache is not None
                prefix, pattern = pattern_parts(stored, cache.offset, **sees)

        slots = None if cache is None else cache.slots(stored, in_parts=True)
        reader = None if cache is None else cache.reader(plan, rope, device)
        hooks = None
        if self.has_hooks or plan.skip or prefix is not None or reader is not None or kept is not None:
            hooks = self._hooks(plan, dtype, prefix, reader)
            if kept is not None:
                hooks.queries, hooks.last = kept.queries, _last(plan) if plan.queries else None
            if kept is not None and plan.attention:
                if in_parts or reader is not None:
                    raise CacheError(
                        "attention weights are returned only with a plain cache, and this cache has its own reader",
                        "make a plain one: new_cache(batch, capacity)",
                    )
                window = self.config.window if own is None else own.window
                hooks.record = AttentionRecord.of(stored, extent, window, kept.attention)
        return LayerPass(plan, ops, pattern, slots, cos, sin, hooks)

    def _hooks(
        self, plan: Plan, dtype: torch.dtype, prefix: AttentionPattern | None, reader: Reader | None
    ) -> LayerHooks:
        config, canvas = self.config, canvas_of(plan) if self.config.canvas else None
        growth = None if config.query_growth is None else _growth(plan.positions, *config.query_growth).to(dtype)
        return LayerHooks(
            skip=plan.skip,
            growth=growth,
            canvas=None if canvas is None else canvas.flatten()[:, None],
            prefix=prefix,
            reader=reader,
        )


def _layer_class(config: DecoderConfig, index: int) -> type[DecoderLayer]:
    if config.canvas:
        return DiffusionGemmaLayer
    if config.head_norms:
        return PostNormLayer if config.post_norms else HeadNormLayer
    return SparseLayer if config.is_sparse(index) else DecoderLayer


def _last(plan: Plan) -> Tensor:
    """[B, n] the queries that the plan keeps; a row with fewer repeats its query 0."""
    order = torch.arange(1 - plan.queries, 1, device=plan.want.device)
    return (plan.want[:, -1:] + order).clamp(min=0)


def _growth(positions: Tensor, factor: float, step: int) -> Tensor:
    """1 + factor log(1 + position // step) of each query [B, Q], as [B, Q, 1, 1]."""
    return (1 + factor * torch.log1p((positions.clamp(min=0) // step).float()))[..., None, None]
