"""The shape arguments of a KL autoencoder, which its published file does not state but its tensors show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import ModelError
from ..files.weights import count_parts
from .level_shape import LevelShape, multiples

_WHAT = "KL autoencoder"


@dataclass(frozen=True)
class KLShape(LevelShape):
    """Sizes of an autoencoder, named after its authors' arguments; the defaults are MAR's KL-16."""

    embed_dim: int = 16  # channels of the latents
    ch: int = 128  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    attention: tuple[int, ...] = (4,)  # levels of the encoder with attention; the decoder has it only in the middle
    encoder: bool = True  # False: the file has no encoder, and images cannot be encoded

    def __post_init__(self) -> None:
        for name in ("ch_mult", "attention"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self.check(_WHAT, "embed_dim", "num_res_blocks")
        beyond = [level for level in self.attention if not 0 <= level < len(self.ch_mult)]
        if beyond:
            raise ModelError(f"attention is set for level {beyond[0]}, and the levels are 0 to {len(self.ch_mult) - 1}")

    @staticmethod
    def of(tensors: Mapping[str, Tensor]) -> KLShape:
        """Derives the sizes from the published tensors; raises ModelError for another model's tensors."""
        if "quantize.embedding.weight" in tensors:
            raise ModelError(
                "these are the weights of a VQ tokenizer, not of a KL autoencoder",
                "use a KL autoencoder's file, which has no codebook; MAR's is kl16.ckpt",
            )
        if any(name.startswith("decoder.up_blocks.") for name in tensors):
            raise ModelError(
                "these are the weights of a KL autoencoder under diffusers' names",
                "use the authors' file, with tensor names such as decoder.up.0.block.0.conv1.weight",
            )
        needed = ("decoder.conv_out.weight", "decoder.conv_in.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim != 4]
        if absent:
            raise ModelError(f"not the weights of a KL autoencoder: there is no {absent[0]}")
        ch = tensors[needed[0]].shape[1]
        ch_mult = multiples(tensors, "decoder.up", "block.0.conv1.weight", ch, _WHAT)
        inner, outer = tensors[needed[2]].shape[:2]
        if inner != outer:
            raise ModelError(f"latents of {outer} channels with {inner} channels before the decoder are not supported")
        attention = {int(hit[1]) for name in tensors if (hit := re.match(r"encoder\.down\.(\d+)\.attn\.", name))}
        return KLShape(
            embed_dim=outer,
            ch=ch,
            ch_mult=ch_mult,
            num_res_blocks=count_parts(tensors, "decoder.up.0.block") - 1,
            attention=tuple(sorted(attention)),
            encoder=any(name.startswith("encoder.") for name in tensors),
        )
