"""The names that latent diffusion's autoencoders publish their tensors under, and those that diffusers has for them."""

from __future__ import annotations

import re

from .vq_names import from_published, leaves, to_published

__all__ = ["from_published", "ignored", "published", "to_published"]

# The loss's networks, moving averages, and attention weights that the decoder has but does not use.
_IGNORED = re.compile(r"(loss|model_ema)\.|decoder\.up\.\d+\.attn\.")
_PARTS = (
    (re.compile(r"\bdown_blocks\.(\d+)\.resnets\."), r"down.\1.block."),
    (re.compile(r"\bdown_blocks\.(\d+)\.attentions\."), r"down.\1.attn."),
    (re.compile(r"\bdown_blocks\.(\d+)\.downsamplers\.0\b"), r"down.\1.downsample"),
    (re.compile(r"\bmid_block\.resnets\.0\b"), "mid.block_1"),
    (re.compile(r"\bmid_block\.resnets\.1\b"), "mid.block_2"),
    (re.compile(r"\bmid_block\.attentions\.0\b"), "mid.attn_1"),
    (re.compile(r"\bconv_norm_out\b"), "norm_out"),
)
_UP = re.compile(r"\bup_blocks\.(\d+)\.(resnets\.|upsamplers\.0\b)")


def published(name: str, levels: int) -> str:
    """The published name of a tensor that diffusers calls `name`, in an autoencoder of so many levels.

    Published levels of a decoder are counted from the image, diffusers' from the latents.

    >>> published("decoder.up_blocks.0.resnets.1.conv_shortcut.weight", 5)
    'decoder.up.4.block.1.nin_shortcut.weight'
    >>> published("encoder.mid_block.attentions.0.to_out.0.bias", 5)
    'encoder.mid.attn_1.proj_out.bias'
    """
    for pattern, becomes in _PARTS:
        name = pattern.sub(becomes, name)
    name = _UP.sub(
        lambda hit: f"up.{levels - 1 - int(hit[1])}.{'block.' if hit[2].startswith('res') else 'upsample'}", name
    )
    return leaves(name)


def ignored(name: str) -> bool:
    """Whether a published tensor has no part in encoding or decoding."""
    return _IGNORED.match(name) is not None
