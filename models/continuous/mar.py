"""MAR: a transformer that says tokens of a picture from any others; `mar_head` is their law.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    backbone: known tokens and a class, repeated, through the encoder; all places, with a mask token where nothing is
              known, through the decoder; z of each token

Modules carry the names that the published tensors have. Letters: R rows, B places of the class, S tokens, D width.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..kernels.matmul import Linear
from .contracts import States
from .diffusion_head import EPS, MARHead


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(width, 3 * width)
        self.proj = Linear(width, width)

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """x [R, L, D]; `seen` [R, 1, 1, L] bool, None where all is."""
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
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

    def forward(self, x: Tensor, seen: Tensor | None) -> Tensor:
        x = x + self.attn(self.norm1(x), seen)
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
        """[R, D] of labels [R]; a negative one is no class."""
        said = self.class_emb(labels.clamp(min=0))
        return torch.where(labels[:, None] < 0, self.fake_latent, said)

    def encode(self, latents: Tensor, known: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """The class's places and the known tokens, in raster order: states [R, B + n, D], n the most known of a row.

        Also the places [R, n] of these tokens, S for what pads a row, and which states are real, None where all are.
        """
        count = known.sum(1)
        most = int(count.max())
        place = torch.where(known, torch.arange(self.tokens, device=known.device), self.tokens)
        place = place.sort(1).values[:, :most]
        real = place < self.tokens
        at = place.clamp(max=self.tokens - 1)[..., None]
        tokens = latents.gather(1, at.expand(-1, -1, latents.shape[-1]))
        where = self.encoder_pos_embed_learned
        first = self.condition(labels)[:, None] + where[:, : self.buffer]
        rest = self.z_proj(tokens.to(where.dtype)) + where[0, self.buffer :][at[..., 0]]
        x = self.z_proj_ln(torch.cat((first, rest), 1))
        whole = None if bool(real.all()) else F.pad(real, (self.buffer, 0), value=True)
        seen = None if whole is None else whole[:, None, None]
        for block in self.encoder_blocks:
            x = block(x, seen)
        return self.encoder_norm(x), place, whole

    def decode(self, x: Tensor, place: Tensor) -> Tensor:
        """z [R, S, D] of every token, from what `encode` made."""
        x = self.decoder_embed(x)
        rows, width = len(x), x.shape[-1]
        first, known = x[:, : self.buffer], x[:, self.buffer :]
        canvas = self.mask_token.to(x.dtype).expand(rows, self.tokens + 1, width)
        # What pads a row falls on a place behind the last token.
        canvas = canvas.scatter(1, place[..., None].expand(-1, -1, width), known)[:, : self.tokens]
        x = torch.cat((first, canvas), 1) + self.decoder_pos_embed_learned
        for block in self.decoder_blocks:
            x = block(x, None)
        z: Tensor = self.decoder_norm(x)[:, self.buffer :] + self.diffusion_pos_embed_learned
        return z

    def forward(self, latents: Tensor, known: Tensor, labels: Tensor) -> Tensor:
        """z [R, S, D]; arguments as of `continuous.Backbone.states`, a negative label is no class."""
        x, place, _ = self.encode(latents, known, labels)
        return self.decode(x, place)


class Reader:
    """The backbone as decoding sees it: what it says has gone through the head's first layer already."""

    causal = False

    def __init__(self, network: MARBackbone, head: MARHead) -> None:
        self.network, self.head = network, head

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
        said, unsaid = self.head.cond_embed(z[wanted.repeat(2, 1)]).chunk(2)
        return States(said, unsaid, scale[:, None].expand_as(wanted)[wanted])

    def parameters(self) -> Any:
        return self.network.parameters()

    def named_parameters(self) -> Any:
        return self.network.named_parameters()
