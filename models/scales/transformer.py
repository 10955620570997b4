"""VAR's transformer: blocks modulated by a class, over the token maps of an image, scale by scale.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905

    x <- x + g1 attn((1 + s1) LN(x) + b1);  x <- x + g2 mlp((1 + s2) LN(x) + b2),  (g1, g2, s1, s2, b1, b2) of the class
    normalised attention: q / |q| * exp(min(scale_h, log 100)) . k / |k|; plain: q . k / 4 sqrt(D)

A token sees its own scale and all earlier ones; keys and values of earlier scales are kept. Modules carry the names of
the published tensors. Letters: R rows, n tokens fed, S scales, L tokens of an image, D width, V codes.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..cuda_graphs.functions import WIDEST, FunctionGraphs
from ..cuda_graphs.static_cache import Store, Stores
from ..errors import CacheError
from ..kernels.matmul import Linear
from ..layers.layer import attention, mlp, modulated
from .contracts import Scales, TokenReduction

_SHARPEST = math.log(100.0)  # upper bound of the learned factors of queries, as published
_SOFTER = 0.25  # factor of scores without normalised queries, as published


class Modulation(NamedTuple):
    """A block's gates, scales (1 + s) and shifts for a class, [R, 1, D] each."""

    gate1: Tensor
    gate2: Tensor
    scale1: Tensor
    scale2: Tensor
    shift1: Tensor
    shift2: Tensor


class ScaleCache(KVCache):
    """Keys and values in the order in which they were fed, layer by layer: a layer may have computed fewer tokens."""

    by_row = ("filled", "scales")

    def __init__(self, layers: int, rows: int, tokens: int, heads: int, size: int, like: Tensor) -> None:
        super().__init__(
            layers=layers,
            batch=rows,
            capacity=tokens,
            kv_heads=heads,
            head_dim=size,
            dtype=like.dtype,
            device=like.device,
        )
        self.filled = np.zeros((rows, layers), dtype=np.int64)  # number of valid slots per row and layer
        self.scales = np.zeros(rows, dtype=np.int64)  # number of scales fed per row
        self.modulation: tuple[Tensor, list[Modulation]] | None = None  # labels, and the modulations of every block
        self.store: Store | None = None  # the memory of K and V, where it stays in place for captured forwards

    def over(self, store: Store) -> ScaleCache:
        """This cache with its K and V in a store."""
        self.k, self.v, self.store = store.k, store.v, store
        self.filled = np.zeros((self.batch, len(store.k)), dtype=np.int64)
        return self

    def advance(self, first: int, last: int, rows: list[int]) -> None:
        """Records that these rows are fed scales `first` to `last`. Raises CacheError unless these come next."""
        if wrong := set(self.scales[rows].tolist()) - {first}:
            raise CacheError(
                f"scale {first} was fed to rows whose next scale is {', '.join(map(str, sorted(wrong)))}",
                "feed the scales in order, all rows of a call at the same one",
            )
        self.scales[rows] = last + 1

    def append(self, layer: int, k: Tensor, v: Tensor, rows: Tensor | None) -> tuple[Tensor, Tensor]:
        """Appends k, v [R, n, H, D], and returns all K and V of these rows so far, [R, S, H, D]."""
        each = np.arange(self.batch) if rows is None else rows.cpu().numpy()
        start = int(self.filled[each[0], layer]) if len(each) else 0
        stop = start + k.shape[1]
        self.filled[each, layer] = stop
        keys, values = self.k[layer], self.v[layer]
        if rows is None:
            keys[:, start:stop], values[:, start:stop] = k, v
            return keys[:, :stop], values[:, :stop]
        keys[rows, start:stop], values[rows, start:stop] = k, v
        return keys[rows, :stop], values[rows, :stop]


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, *, normalised: bool) -> None:
        super().__init__()
        self.heads = heads
        self.mat_qkv = Linear(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))
        self.proj = Linear(width, width)
        if normalised:
            self.scale_mul_1H11 = nn.Parameter(torch.full((1, heads, 1, 1), 4.0).log())
        else:
            self.register_parameter("scale_mul_1H11", None)

    def forward(
        self,
        x: Tensor,
        cache: ScaleCache,
        layer: int,
        rows: Tensor | None,
        mask: Tensor | None,
        turn: Tensor | None = None,
    ) -> Tensor:
        """x [R, n, D]; `mask` [n, S] bool of the slots that each token sees, None for all.

        `turn` [2, 1 or R, n, 1, H / 2] holds the cosines and sines by which pairs of neighbours in a head are rotated.
        """
        q, k, v = self.mat_qkv(x).unflatten(-1, (3, self.heads, -1)).unbind(2)  # [R, n, H, D] each
        q, v = q + self.q_bias.view(self.heads, -1), v + self.v_bias.view(self.heads, -1)
        if self.scale_mul_1H11 is None:
            q = q * _SOFTER
        else:  # scores are not divided by the root of D, as `attention` does
            sharp = self.scale_mul_1H11.clamp(max=_SHARPEST).exp().view(self.heads, 1) * math.sqrt(q.shape[-1])
            q, k = F.normalize(q, dim=-1) * sharp, F.normalize(k, dim=-1)
        if turn is not None:
            q, k = _rotated(q, turn), _rotated(k, turn)
        out: Tensor = self.proj(attention(q, *cache.append(layer, k, v, rows), mask))
        return out


class Block(nn.Module):
    def __init__(self, width: int, heads: int, hidden: int, *, normalised: bool, shared: bool, eps: float) -> None:
        super().__init__()
        self.width, self.eps = width, eps
        self.attn = Attention(width, heads, normalised=normalised)
        self.ffn = nn.ModuleDict({"fc1": Linear(width, hidden), "fc2": Linear(hidden, width)})
        if shared:
            self.ada_gss = nn.Parameter(torch.randn(1, 1, 6, width) / width**0.5)
        else:
            self.ada_lin = nn.Sequential(nn.SiLU(), Linear(width, 6 * width))

    def modulation(self, condition: Tensor, common: Tensor | None) -> Modulation:
        """The modulation for `condition` [R, D]; `common` [R, 6 D] is shared by all blocks."""
        each = self.ada_lin(condition) if common is None else common + self.ada_gss.flatten()
        gate1, gate2, scale1, scale2, *shifts = (
            part[:, None] for part in each.unflatten(-1, (6, self.width)).unbind(1)
        )
        return Modulation(gate1, gate2, 1 + scale1, 1 + scale2, *shifts)

    def forward(
        self, x: Tensor, how: Modulation, cache: ScaleCache, layer: int, rows: Tensor | None, mask: Tensor | None
    ) -> Tensor:
        mixed = self.attn(modulated(x, how.scale1, how.shift1, self.eps), cache, layer, rows, mask)
        x = torch.addcmul(x, how.gate1, mixed)
        return torch.addcmul(x, how.gate2, mlp(modulated(x, how.scale2, how.shift2, self.eps), self.ffn, "tanh"))


class MapTransformer(nn.Module):
    """The base of transformers of token maps, which make the modules that are named here."""

    graphs: FunctionGraphs | None = None  # CUDA graphs of the blocks' forwards over a scale
    stores: Stores  # the caches' memory, with `graphs`
    word_embed: nn.Module
    pos_start: nn.Parameter
    lvl_embed: nn.Module
    shared_ada_lin: nn.Module | None
    blocks: nn.ModuleList
    head_nm: nn.ModuleDict
    head: nn.Module

    def __init__(self, scales: Scales, *, width: int, heads: int, classes: int, eps: float) -> None:
        super().__init__()
        self.scales, self.classes, self.width, self.heads, self.eps = scales, classes, width, heads, eps

    def condition(self, labels: Tensor) -> Tensor:
        """[R, D]: the states that modulate the blocks and begin the first map."""
        raise NotImplementedError

    def placed(self, x: Tensor, levels: Tensor, at: slice) -> Tensor:
        """Inputs x [R, n, D] of the tokens `at`, of scales `levels` [n], with embeddings of their scale and place."""
        placed: Tensor = x + self.lvl_embed(levels)
        return placed

    def block_inputs(
        self, layer: int, labels: Tensor, rows: Tensor | None, at: slice, which: Tensor | None
    ) -> tuple[Any, ...]:
        """Further inputs of a block for the tokens `at`; `which` [R, k] selects tokens of the last scale, None all."""
        return ()

    @property
    def layers(self) -> int:
        return len(self.blocks)

    def new_cache(self, rows: int) -> ScaleCache:
        if self.graphs is None:
            return self._cache(rows, self.scales.tokens)
        store = self.stores.acquire(rows, self.scales.tokens)
        cache = self._cache(rows, self.scales.tokens, layers=0).over(store)
        weakref.finalize(cache, self.stores.release, store).atexit = False
        return cache

    def capture(self, graphs: FunctionGraphs, make: Any) -> None:
        self.graphs, self.stores = graphs, Stores(self._cache, lambda *size: size, graphs.forget)

    def _cache(self, rows: int, tokens: int, layers: int | None = None) -> ScaleCache:
        count = len(self.blocks) if layers is None else layers
        return ScaleCache(count, rows, tokens, self.heads, self.width // self.heads, self.pos_start)

    def __call__(
        self,
        labels: Tensor,
        maps: Tensor,
        cache: KVCache,
        *,
        first: int,
        last: int,
        rows: Tensor | None = None,
        logits: Tensor | None = None,
        reduction: TokenReduction | None = None,
    ) -> Tensor:
        """One forward, see `ScaleTransformer`."""
        states = self.states(labels, maps, cache, first=first, last=last, rows=rows, reduction=reduction)
        states = states[:, -self.scales.sizes[last] :]
        if logits is not None:
            which = logits.nonzero()[:, 0].to(labels.device)
            states, labels = states[which], labels[which]
        return self.read(states, labels)

    def states(
        self,
        labels: Tensor,
        maps: Tensor,
        cache: KVCache,
        *,
        first: int,
        last: int,
        rows: Tensor | None = None,
        reduction: TokenReduction | None = None,
    ) -> Tensor:
        """[R, n, D]: the states of the scales `first` to `last` after the last block. Raises CacheError."""
        if not isinstance(cache, ScaleCache):
            raise CacheError(f"token maps need a cache from `new_cache`, got {type(cache).__name__}")
        which_rows = list(range(cache.batch)) if rows is None else rows.tolist()
        cache.advance(first, last, which_rows)
        sizes, starts = self.scales.sizes[first : last + 1], self.scales.starts
        size, condition = sizes[-1], self.condition(labels)
        x: Tensor = self.word_embed(maps.to(self.pos_start.dtype))
        if first == 0:
            x = torch.cat((condition[:, None] + self.pos_start, x), 1)
        at = slice(starts[first], starts[last + 1])
        levels = torch.repeat_interleave(
            torch.arange(first, last + 1, device=x.device),
            torch.tensor(sizes, device=x.device),
            output_size=sum(sizes),  # known here: summing on the device would synchronize
        )
        x = self.placed(x, levels, at)
        how_each = self._modulations(labels, cache, rows)
        in_place = cache.store is not None and cache.k is cache.store.k and rows is None and reduction is None
        if self.graphs is not None and in_place and x.shape[0] * x.shape[1] <= WIDEST:
            return self._captured(x, how_each, cache, levels if first < last else None)
        for layer, (block, how) in enumerate(zip(cast(list[Block], self.blocks), how_each, strict=True)):
            whole, visible = x, levels
            which = None if reduction is None else reduction.select(layer, x[:, -size:])
            if which is not None:
                chosen = x[:, -size:].gather(1, which[..., None].expand(-1, -1, x.shape[-1]))
                x = torch.cat((x[:, :-size], chosen), 1)
                visible = torch.cat((levels[:-size], levels[-which.shape[1] :]))
            mask = _mask(visible, int(cache.filled[which_rows[0], layer])) if first < last else None
            x = block(x, how, cache, layer, rows, mask, *self.block_inputs(layer, labels, rows, at, which))
            if reduction is not None and which is not None:
                earlier = whole.shape[1] - size
                x = torch.cat((x[:, :earlier], reduction.restore(layer, x[:, earlier:], which)), 1)
            if reduction is not None:
                reduction.observe(layer, x[:, -size:])
        return x

    def _captured(self, x: Tensor, how_each: list[Modulation], cache: ScaleCache, levels: Tensor | None) -> Tensor:
        """x [R, n, D] after all blocks, over a cache of `new_cache`, whose rows have equally many slots."""
        assert cache.store is not None
        assert self.graphs is not None
        store, start, size = cache.store, int(cache.filled[0, 0]), (cache.batch, cache.capacity)

        def blocks(x: Tensor, *inputs: Tensor) -> tuple[Tensor]:
            mask = None if levels is None else inputs[-1]
            held = self._cache(*size, layers=0).over(store)
            held.filled[:] = start
            for layer, block in enumerate(cast(list[Block], self.blocks)):
                x = block(x, Modulation(*inputs[6 * layer : 6 * layer + 6]), held, layer, None, mask)
            return (x,)

        inputs = [x, *(part for how in how_each for part in how)] + ([] if levels is None else [_mask(levels, start)])
        (out,) = self.graphs(store.number, blocks, inputs, start)
        cache.filled[:] = start + x.shape[1]
        return out

    def read(self, states: Tensor, labels: Tensor) -> Tensor:
        """[R, n, V] float32: the logits of states [R, n, D]."""
        scale, shift = self.head_nm["ada_lin"](self.condition(labels)).unflatten(-1, (2, self.width)).unbind(1)
        normed = modulated(states, 1 + scale[:, None], shift[:, None], self.eps)
        logits: Tensor = self.head(normed)
        return logits if logits.dtype == torch.float64 else logits.float()

    def _modulations(self, labels: Tensor, cache: ScaleCache, rows: Tensor | None) -> list[Modulation]:
        """The modulations of every block; the same at every scale of a request."""
        known = cache.modulation
        if rows is None and known is not None and known[0] is labels:  # comparing values would synchronize
            return known[1]
        condition = self.condition(labels)
        common = None if self.shared_ada_lin is None else self.shared_ada_lin(condition)
        each = [block.modulation(condition, common) for block in cast(list[Block], self.blocks)]
        if rows is None:
            cache.modulation = labels, each
        return each


class VARTransformer(MapTransformer):
    """A `ScaleTransformer`."""

    def __init__(
        self,
        scales: Scales,
        *,
        width: int,
        depth: int,
        heads: int,
        classes: int,
        vocab: int,
        channels: int,
        hidden: int,
        normalised: bool = True,
        shared: bool = False,
        eps: float = 1e-6,
    ) -> None:
        super().__init__(scales, width=width, heads=heads, classes=classes, eps=eps)
        self.word_embed = Linear(channels, width)
        self.class_emb = nn.Embedding(classes + 1, width)
        self.pos_start = nn.Parameter(torch.randn(1, 1, width) / width**0.5)
        self.pos_1LC = nn.Parameter(torch.randn(1, scales.tokens, width) / width**0.5)
        self.lvl_embed = nn.Embedding(len(scales), width)
        self.shared_ada_lin = nn.Sequential(nn.SiLU(), Linear(width, 6 * width)) if shared else None
        self.blocks = nn.ModuleList(
            [Block(width, heads, hidden, normalised=normalised, shared=shared, eps=eps) for _ in range(depth)]
        )
        self.head_nm = nn.ModuleDict({"ada_lin": nn.Sequential(nn.SiLU(), Linear(width, 2 * width))})
        self.head = Linear(width, vocab)

    def condition(self, labels: Tensor) -> Tensor:
        condition: Tensor = self.class_emb(labels)
        return condition

    def placed(self, x: Tensor, levels: Tensor, at: slice) -> Tensor:
        return super().placed(x, levels, at) + self.pos_1LC[0, at]


def _rotated(x: Tensor, turn: Tensor) -> Tensor:
    """x [R, n, heads, H] with each pair (a, b) of neighbours rotated to (a cos - b sin, a sin + b cos)."""
    a, b = rearrange(x, "... (pair two) -> two ... pair", two=2)
    cos, sin = turn
    return torch.stack((a * cos - b * sin, a * sin + b * cos), -1).flatten(-2).to(x.dtype)


def _mask(levels: Tensor, stored: int) -> Tensor:
    """[n, stored + n] bool: a token sees the slots stored before, its own scale and earlier ones, by `levels` [n]."""
    own = levels[:, None] >= levels
    return torch.cat((own.new_ones(len(own), stored), own), 1)
