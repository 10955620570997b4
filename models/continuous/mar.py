"""MAR's backbone: a transformer that predicts tokens of an image from any others; the head is in `diffusion_head`.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    backbone: known tokens and a class, repeated, through the encoder; all positions, with a mask token at the unknown
              ones, through the decoder; z of each token

Modules carry the names of the published tensors. Letters: R rows, B positions of the class, S tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cuda_graphs.functions import WIDEST, FunctionGraphs
from ..errors import ModelError
from ..kernels.matmul import Linear
from ..layers.layer import attention, mlp
from .contracts import Reuse, States
from .diffusion_head import EPS, MARHead

_STEPS = 2.0**16  # cosines are rounded to multiples of 1 / _STEPS


class LayerCache:
    """The keys and values of one layer."""

    def __init__(self) -> None:
        self.k, self.v = torch.empty(0), torch.empty(0)  # [R, L, H, D / H]
        self.at: Tensor | None = None  # [R, K] the positions that the coming calls compute; None: they replace all
        self.first: int | None = None  # instead of `at`: calls compute this many first positions and append new ones

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Keeps what a call computes, and returns the keys and values of all positions."""
        if self.first is not None:
            self.k, self.v = (
                torch.cat((new[:, : self.first], old[:, self.first :], new[:, self.first :]), 1)
                for new, old in ((k, self.k), (v, self.v))
            )
        elif self.at is not None:
            index = self.at[..., None, None].expand_as(k)
            self.k, self.v = self.k.scatter(1, index, k), self.v.scatter(1, index, v)
        else:
            self.k, self.v = k, v
        return self.k, self.v


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [R, L, D]; `mask` [R, 1, 1, L] bool of visible positions, None for all. A `cache` adds earlier K/V."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)
        if cache is not None:
            k, v = cache.update(k, v)
        out: Tensor = self.proj(attention(q, k, v, mask))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, ratio: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=EPS)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=EPS)
        hidden = int(width * ratio)
        self.mlp = nn.ModuleDict({"fc1": Linear(width, hidden), "fc2": Linear(hidden, width)})

    def forward(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        return self.feed(self.attend(x, mask, cache))

    def attend(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """The first half of a block: adds attention to x."""
        out: Tensor = x + self.attn(self.norm1(x), mask, cache)
        return out

    def feed(self, x: Tensor) -> Tensor:
        """The second half of a block: adds the MLP to x, position by position."""
        return x + mlp(self.norm2(x), self.mlp)


class MARBackbone(nn.Module):
    """Maps known tokens and a class to a vector z per token."""

    causal = False
    graphs: FunctionGraphs | None = None  # CUDA graphs of the decoder's forwards, whose shapes recur

    def __init__(
        self,
        *,
        tokens: int,
        size: int,
        classes: int,
        buffer: int,
        encoder: tuple[int, int, int],
        decoder: tuple[int, int, int],
        ratio: float = 4.0,
    ) -> None:
        """`encoder` and `decoder` are (width, depth, heads)."""
        super().__init__()
        self.tokens, self.size, self.buffer = tokens, size, buffer
        (width, depth, heads), (wide, deep, many) = encoder, decoder
        self.class_emb = nn.Embedding(classes, width)
        self.fake_latent = nn.Parameter(torch.randn(1, width) * 0.02)
        self.z_proj = Linear(size, width)
        self.z_proj_ln = nn.LayerNorm(width, eps=EPS)
        self.encoder_pos_embed_learned = nn.Parameter(torch.randn(1, tokens + buffer, width) * 0.02)
        self.encoder_blocks = nn.ModuleList([Block(width, heads, ratio) for _ in range(depth)])
        self.encoder_norm = nn.LayerNorm(width, eps=EPS)
        self.decoder_embed = Linear(width, wide)
        self.mask_token = nn.Parameter(torch.randn(1, 1, wide) * 0.02)
        self.decoder_pos_embed_learned = nn.Parameter(torch.randn(1, tokens + buffer, wide) * 0.02)
        self.decoder_blocks = nn.ModuleList([Block(wide, many, ratio) for _ in range(deep)])
        self.decoder_norm = nn.LayerNorm(wide, eps=EPS)
        self.diffusion_pos_embed_learned = nn.Parameter(torch.randn(1, tokens, wide) * 0.02)

    def condition(self, labels: Tensor) -> Tensor:
        """[R, D] of labels [R]; a negative one is unconditional."""
        embedding = self.class_emb(labels.clamp(min=0))
        return torch.where(labels[:, None] < 0, self.fake_latent, embedding)

    def embed(self, latents: Tensor, index: Tensor, labels: Tensor) -> Tensor:
        """[R, B + n, D] the encoder's inputs: the class's positions, and the tokens `index` [R, n] of `latents`."""
        tokens = latents.gather(1, index[..., None].expand(-1, -1, latents.shape[-1]))
        position = self.encoder_pos_embed_learned
        first = self.condition(labels)[:, None] + position[:, : self.buffer]
        rest = self.z_proj(tokens.to(position.dtype)) + position[0, self.buffer :][index]
        out: Tensor = self.z_proj_ln(torch.cat((first, rest), 1))
        return out

    def encode(
        self, latents: Tensor, known: Tensor, labels: Tensor, caches: Sequence[LayerCache] | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """States [R, B + n, D] of the class's positions and the known tokens, in raster order; n is a row's maximum.

        Also the index [R, n] of each of these tokens, S for padding, and which states are real, None if all are.
        """
        count = known.sum(1)
        most = int(count.max())
        index = torch.where(known, torch.arange(self.tokens, device=known.device), self.tokens)
        index = index.sort(1).values[:, :most]
        real = index < self.tokens
        x = self.embed(latents, index.clamp(max=self.tokens - 1), labels)
        whole = None if bool(real.all()) else F.pad(real, (self.buffer, 0), value=True)
        mask = None if whole is None else whole[:, None, None]
        for number, block in enumerate(self.encoder_blocks):
            x = block(x, mask, caches and caches[number])
        return self.encoder_norm(x), index, whole

    def canvas(self, x: Tensor, index: Tensor) -> Tensor:
        """[R, B + S, D] the decoder's inputs, without their positions, from the output of `encode`."""
        x = self.decoder_embed(x)
        rows, width = len(x), x.shape[-1]
        first, known = x[:, : self.buffer], x[:, self.buffer :]
        canvas = self.mask_token.to(x.dtype).expand(rows, self.tokens + 1, width)
        # Padding goes to a position after the last token.
        canvas = canvas.scatter(1, index[..., None].expand(-1, -1, width), known)[:, : self.tokens]
        return torch.cat((first, canvas), 1)

    def decode(self, x: Tensor, index: Tensor) -> Tensor:
        """z [R, S, D] of every token, from the output of `encode`."""
        x = self.canvas(x, index)
        if self.graphs is None or x.shape[0] * x.shape[1] > WIDEST:
            return self.decode_canvas(x)[0]
        return self.graphs("decoder", self.decode_canvas, (x,))[0]

    def decode_canvas(self, x: Tensor) -> tuple[Tensor]:
        """z of a canvas [R, B + S, D]."""
        x = x + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x, None)
        return (self.decoder_norm(x)[:, self.buffer :] + self.diffusion_pos_embed_learned,)

    def forward(self, latents: Tensor, known: Tensor, labels: Tensor) -> Tensor:
        """z [R, S, D]; arguments as of `continuous.Backbone.states`, a negative label is unconditional."""
        x, index, _ = self.encode(latents, known, labels)
        return self.decode(x, index)


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
    """The backbone of one request, which reuses results of earlier steps (LazyMAR's two caches).

    LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching, https://arxiv.org/abs/2503.12450

        full step: everything is computed; K/V of all layers and x_u - x_c, the halves' last decoder states, are kept
        else:      encoder: the class's positions and the tokens that have become known, over the K/V of all known ones;
                   decoder: all positions up to the attention of one layer, then only the tokens that are wanted or have
                   become known, and the positions whose values at that layer are the least like those kept (cosine,
                   mean over heads); each over the kept K/V of the others;
                   x_u = x_c + the kept difference

    Letters: R rows, or 2 R with both halves of guidance; L positions, B of the class and S tokens; K computed ones.
    """

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
        # The last bits depend on the rows of a batch: values that have not changed must tie, at the lowest position.
        cosine = (cosine * _STEPS).round()
        order = cosine.masked_fill(assured, -torch.inf).argsort(dim=1, stable=True)
        share, positions = self.reuse.share or 0.0, assured.shape[1]
        count = max(int(must.sum(1).max()) + self.reuse.margin, int(positions * share))
        return order[:, : min(count, positions)].sort(1).values
