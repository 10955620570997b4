"""MAR's backbone: a transformer that predicts tokens of an image from any others; the head is in `diffusion_head`.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    backbone: known tokens and a class, repeated, through the encoder; all positions, with a mask token at the unknown
              ones, through the decoder; z of each token

Modules carry the names of the published tensors. Letters: R rows, B positions of the class, S tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cuda_graphs.functions import WIDEST, FunctionGraphs
from ..kernels.matmul import Linear
from ..layers.layer import attention, mlp
from .diffusion_head import EPS


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
