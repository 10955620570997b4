"""The shape arguments of a VQ tokenizer, which its published file does not state but its tensors show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ModelError

GROUPS = 32  # of every group norm: channel counts are multiples of it


@dataclass(frozen=True)
class VQShape:
    """Sizes of a tokenizer; the names are those of LlamaGen's own arguments, the defaults its published VQ-16."""

    codebook_size: int = 16384
    codebook_embed_dim: int = 8
    z_channels: int = 256
    ch: int = 128  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one a level; each level but the last halves the image
    num_res_blocks: int = 2  # a level of the encoder; the decoder has one more
    codebook_l2_norm: bool = True  # codes and features are compared and looked up on the unit sphere

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(self.ch_mult))
        for name in ("codebook_size", "codebook_embed_dim", "z_channels", "num_res_blocks"):
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of a VQ tokenizer must be at least 1, got {getattr(self, name)}")
        if not self.ch_mult or self.ch_mult[0] != 1 or min(self.ch_mult) < 1:
            raise ModelError(f"ch_mult must start with 1 and hold positive numbers, got {list(self.ch_mult)}")
        if self.ch < 1 or self.ch % GROUPS:
            raise ModelError(f"ch must be a multiple of {GROUPS}, the groups of its norms, got {self.ch}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.ch * times for times in self.ch_mult)

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        return int(2 ** (len(self.ch_mult) - 1))

    @staticmethod
    def of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any] | None = None) -> VQShape:
        """Read the shape off the published tensors; `arguments` are what a file beside them states.

        Raises:
            ModelError: the tensors are not a VQ tokenizer's, or the arguments contradict them.
        """
        if "tok_embeddings.weight" in tensors:
            raise ModelError(
                "these are the weights of LlamaGen's transformer, not of its tokenizer",
                "the tokenizer's file is called vq_*.pt",
            )
        needed = ("encoder.conv_in.weight", "quantize.embedding.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        if absent:
            raise ModelError(f"not the weights of a VQ tokenizer: there is no {absent[0]}")
        ch = tensors[needed[0]].shape[0]
        levels = _count(tensors, r"encoder\.conv_blocks\.(\d+)\.")
        convs = [tensors.get(f"encoder.conv_blocks.{level}.res.0.conv1.weight") for level in range(levels)]
        if not levels or any(conv is None or conv.shape[0] % ch for conv in convs):
            raise ModelError("not the weights of a VQ tokenizer: encoder.conv_blocks do not hold its levels")
        shape: dict[str, Any] = {
            "codebook_size": tensors[needed[1]].shape[0],
            "codebook_embed_dim": tensors[needed[1]].shape[1],
            "z_channels": tensors[needed[2]].shape[0],
            "ch": ch,
            "ch_mult": tuple(conv.shape[0] // ch for conv in convs if conv is not None),
            "num_res_blocks": _count(tensors, r"encoder\.conv_blocks\.0\.res\.(\d+)\."),
        }
        stated = dict(arguments or {})
        for name, value in shape.items():
            argument = stated.get(name, value)
            if (tuple(argument) if isinstance(argument, list) else argument) != value:
                raise ModelError(f"the arguments say {name} {argument}, the tensors {value}")
        return VQShape(**shape, codebook_l2_norm=bool(stated.get("codebook_l2_norm", True)))


def _count(tensors: Mapping[str, Tensor], pattern: str) -> int:
    """One more than the highest number that the pattern's group takes among the names."""
    hits = (re.match(pattern, name) for name in tensors)
    return max((int(hit[1]) + 1 for hit in hits if hit), default=0)
