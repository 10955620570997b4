"""MAR's backbone: a transformer that predicts tokens of an image from any others; the head is in `diffusion_head`.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    backbone: known tokens and a class, repeated, through the encoder; all positions, with a mask token at the unknown
              ones, through the decoder; z of each token

Modules carry the names of the published tensors. Letters: R rows, B positions of the class, S tokens, D width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import ModelError
from ..kernels.matmul import Linear
from .contracts import States
from .diffusion_head import EPS, MARHead
from .mar_reuse import LayerCache, ReusingReader


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None, cache: LayerCache | None = None) -> Tensor:
        """x [R, L, D]; `mask` [R, 1, 1, L] bool of visible positions, None for all. A `cache` adds earlier K/V."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = cache.put(k, v)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        out: Tensor = self.proj(mixed.transpose(1, 2).flatten(-2))
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
        """Its first half."""
        out: Tensor = x + self.attn(self.norm1(x), mask, cache)
        return out

    def feed(self, x: Tensor) -> Tensor:
        """And its second, of each position by itself."""
        out: Tensor = x + self.mlp["fc2"](F.gelu(self.mlp["fc1"](self.norm2(x))))
        return out


class MARBackbone(nn.Module):
    """From known tokens and a class to a vector z of every token."""

    causal = False

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
        """States [R, B + n, D] of the class's positions and the known tokens, in raster order; n is the most of a row.

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
        # Padding goes to a position behind the last token.
        canvas = canvas.scatter(1, index[..., None].expand(-1, -1, width), known)[:, : self.tokens]
        return torch.cat((first, canvas), 1)

    def decode(self, x: Tensor, index: Tensor) -> Tensor:
        """z [R, S, D] of every token, from the output of `encode`."""
        x = self.canvas(x, index) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x, None)
        z: Tensor = self.decoder_norm(x)[:, self.buffer :] + self.diffusion_pos_embed_learned
        return z

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

    def start(self, conditions: Any, *, size: Any, guided: bool) -> Reader:
        """Itself: all of its states change with every token."""
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
