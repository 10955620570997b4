"""The names that LlamaGen's tokenizer publishes its tensors under, and diffusers' names for them."""

from __future__ import annotations

import re

from torch import Tensor

IGNORED = ("quantize.codebook_used",)  # a statistic of training
_TOP = {"codebook.weight": "quantize.embedding.weight"}
_LEAF = {
    "conv_shortcut": "nin_shortcut",
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
}
_LEAVES = re.compile(r"\b(" + "|".join(map(re.escape, _LEAF)) + r")\b")
_PARTS = (
    (re.compile(r"\b(?:down|up)_blocks\.(\d+)\.resnets\.(\d+)"), r"conv_blocks.\1.res.\2"),
    (re.compile(r"\b(?:down|up)_blocks\.(\d+)\.attentions\.(\d+)"), r"conv_blocks.\1.attn.\2"),
    (re.compile(r"\b(?:down|up)_blocks\.(\d+)\.(down|up)samplers\.0"), r"conv_blocks.\1.\2sample"),
    (re.compile(r"\bmid_block\.resnets\.0"), "mid.0"),
    (re.compile(r"\bmid_block\.attentions\.0"), "mid.1"),
    (re.compile(r"\bmid_block\.resnets\.1"), "mid.2"),
    (re.compile(r"\bconv_norm_out\b"), "norm_out"),
)


def published(name: str) -> str:
    """The published name of a tensor.

    >>> published("decoder.up_blocks.0.attentions.1.to_out.0.weight")
    'decoder.conv_blocks.0.attn.1.proj_out.weight'
    >>> published("encoder.mid_block.resnets.1.conv2.bias")
    'encoder.mid.2.conv2.bias'
    """
    if name in _TOP:
        return _TOP[name]
    for pattern, becomes in _PARTS:
        name = pattern.sub(becomes, name)
    return leaves(name)


def leaves(name: str) -> str:
    """A name with the published names of a block's layers."""
    return _LEAVES.sub(lambda hit: _LEAF[hit[1]], name)


def is_projection(name: str) -> bool:
    """Whether a published tensor is a projection of an attention: a 1x1 convolution there, a matrix here."""
    return re.search(r"\.(q|k|v|proj_out)\.weight$", name) is not None


def to_published(name: str, value: Tensor) -> Tensor:
    """A tensor in the published form, given its published name."""
    return value[:, :, None, None] if is_projection(name) else value


def from_published(name: str, value: Tensor) -> Tensor:
    """A published tensor in the form it has here."""
    return value[:, :, 0, 0] if is_projection(name) and value.ndim == 4 else value
