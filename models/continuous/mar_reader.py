"""MAR's backbone for decoding: stateless, or with results of earlier steps (LazyMAR's two caches).

LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching, https://arxiv.org/abs/2503.12450

    full step: everything is computed; K/V of all layers and x_u - x_c, the halves' last decoder states, are kept
    else:      encoder: the class's positions and the tokens that have become known, over the K/V of all known ones;
               decoder: all positions up to the attention of one layer, then only the tokens that are wanted or have
               become known, and the positions whose values at that layer are the least like those kept (cosine, mean
               over heads); each over the kept K/V of the others;
               x_u = x_c + the kept difference

Letters: R rows, or 2 R with both halves of guidance; L positions, B of the class and S tokens; K computed ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from ..cuda_graphs.functions import FunctionGraphs
from ..errors import ModelError
from .contracts import Reuse, States
from .diffusion_head import MARHead
from .mar import Block, LayerCache, MARBackbone


class Reader:
    """The backbone for decoding: its states have passed the head's first layer already."""

    causal = next_token = False
    fed = None

    def __init__(self, network: MARBackbone, head: MARHead) -> None:
        self.network, self.head = network, head

    def capture(self, graphs: FunctionGraphs, make: Any) -> None:
        self.network.graphs = graphs

    def start(self, conditions: Any, *, size: Any, guided: bool) -> Self:
        """Returns itself: nothing is cached, since all states change with every token."""
        return self

    def reusing(self, layer: int | None) -> ReusingReader:
        """See `Backbone.reusing`."""
        depth = len(self.network.decoder_blocks)
        if layer is not None and not 0 <= layer < depth:
            raise ModelError(f"the decoder has layers 0 to {depth - 1}, got layer={layer}", "name one of them")
        return ReusingReader(self.network, self.head, layer)

    @property
    def tokens(self) -> int:
        return self.network.tokens

    @torch.inference_mode()
    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        if scale is None:
            return States(self.head.cond_embed(self.network(latents, known, labels)[wanted]))
        doubled = torch.cat((labels, torch.full_like(labels, -1)))
        z = self.network(latents.repeat(2, 1, 1), known.repeat(2, 1), doubled)
        cond, uncond = self.head.cond_embed(z[wanted.repeat(2, 1)]).chunk(2)
        return States(cond, uncond, scale[:, None].expand_as(wanted)[wanted])

    def parameters(self) -> Any:
        return self.network.parameters()

    def named_parameters(self) -> Any:
        return self.network.named_parameters()


class ReusingReader(Reader):
    """The backbone of one request. See `ReusingBackbone`."""

    def __init__(self, network: MARBackbone, head: MARHead, layer: int | None) -> None:
        """`layer` of the decoder compares values; None: no K/V are kept, and `Reuse.share` has to be None."""
        super().__init__(network, head)
        self.layer = layer
        self.reuse = Reuse()
        self.sequences = 1
        self.computed: Sequence[tuple[int, ...]] | None = None
        self._encoder = [LayerCache() for _ in network.encoder_blocks]
        self._decoder = [LayerCache() for _ in network.decoder_blocks]
        self._known = torch.empty(0)  # [R, S] bool: what was known at the last call
        self._canvas = torch.empty(0)  # [R, L, D] inputs of the decoder, without their positions
        self._difference = torch.empty(0)  # [R, S, D] without the condition - with it, of the decoder's outputs

    def reusing(self, layer: int | None) -> ReusingReader:
        """A new reader."""
        return ReusingReader(self.network, self.head, layer)

    @torch.inference_mode()
    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        """See `Backbone.states`."""
        both = scale is not None and not self.reuse.uncond
        self.sequences = 1 + both
        inputs = (latents, known, labels, wanted)
        if both:
            doubled = torch.cat((labels, torch.full_like(labels, -1)))
            inputs = (latents.repeat(2, 1, 1), known.repeat(2, 1), doubled, wanted.repeat(2, 1))
        x = self._full(*inputs, both=both) if self.reuse.share is None else self._partial(*inputs, len(labels))
        self._known = known
        if scale is not None and not both:
            x = torch.cat((x, x + self._difference[wanted]))
        network = self.network
        position = network.diffusion_pos_embed_learned.expand(len(wanted), -1, -1)[wanted]
        z = network.decoder_norm(x) + (position if scale is None else position.repeat(2, 1))
        states = self.head.cond_embed(z)
        if scale is None:
            return States(states)
        cond, uncond = states.chunk(2)
        return States(cond, uncond, scale[:, None].expand_as(wanted)[wanted])

    def _full(self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, *, both: bool) -> Tensor:
        """[N, D] the decoder's outputs at the wanted tokens, before its norm; everything is computed and kept."""
        network, caches = self.network, self.layer is not None
        for cache in (*self._encoder, *self._decoder):
            cache.at = cache.first = None
        x, index, _ = network.encode(latents, known, labels, self._encoder if caches else None)
        canvas = network.canvas(x, index)
        x = canvas + network.decoder_pos_embed_learned
        for block, cache in zip(network.decoder_blocks, self._decoder, strict=True):
            x = block(x, None, cache if caches else None)
        x = x[:, network.buffer :]
        if caches:
            self._canvas = canvas
        if both:
            cond, uncond = x.chunk(2)
            self._difference = uncond - cond
        self.computed = None
        out: Tensor = x[wanted]
        return out

    def _partial(self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, rows: int) -> Tensor:
        """`_full` with earlier K/V; `rows` is the number of images."""
        network, count = self.network, len(labels)
        new = known & ~self._known.repeat(count // rows, 1)
        new_index = new.nonzero()[:, 1].view(count, -1)
        x = network.embed(latents, new_index, labels)
        for block, cache in zip(network.encoder_blocks, self._encoder, strict=True):
            self._take(cache, count)
            cache.first = network.buffer
            x = block(x, None, cache)
        x = network.decoder_embed(network.encoder_norm(x))
        fixed = torch.arange(network.buffer, device=x.device).expand(count, -1)
        index = torch.cat((fixed, new_index + network.buffer), 1)
        self._canvas = self._canvas[:count].scatter(1, index[..., None].expand_as(x), x)
        x = self._canvas + network.decoder_pos_embed_learned
        assert self.layer is not None, "K/V are kept"
        positions, blocks = index, cast("list[Block]", list(network.decoder_blocks))
        for number, (block, cache) in enumerate(zip(blocks, self._decoder, strict=True)):
            self._take(cache, count)
            before, cache.at = cache.v, None if number <= self.layer else positions
            x = block.attend(x, None, cache)
            if number == self.layer:
                positions = self._changed(before, cache.v, (new | wanted)[:rows]).repeat(count // rows, 1)
                x = x.gather(1, positions[..., None].expand(-1, -1, x.shape[-1]))
            x = block.feed(x)
        tokens = positions - network.buffer
        self.computed = [tuple(at for at in row if at >= 0) for row in tokens[:rows].tolist()]
        out: Tensor = x[(tokens >= 0) & wanted.gather(1, tokens.clamp(min=0))]
        return out

    @staticmethod
    def _take(cache: LayerCache, count: int) -> None:
        """Drops the half without the condition where it is not computed any more."""
        cache.k, cache.v = cache.k[:count], cache.v[:count]

    def _changed(self, before: Tensor, now: Tensor, must: Tensor) -> Tensor:
        """[R, K] ascending: the positions that the next layers compute, including the tokens `must` [R, S].

        What has changed the most follows from the first rows of the values [.., L, H, D / H], those of the condition.
        """
        rows, assured = len(must), F.pad(must, (self.network.buffer, 0))
        cosine = F.cosine_similarity(now[:rows].float(), before[:rows].float(), dim=-1).mean(-1)
        order = cosine.masked_fill(assured, -torch.inf).argsort(dim=1, stable=True)
        share, positions = self.reuse.share or 0.0, assured.shape[1]
        count = max(int(must.sum(1).max()) + self.reuse.margin, int(positions * share))
        return order[:, : min(count, positions)].sort(1).values
