"""The shape arguments of a multi-scale image tokenizer, which its file does not state but its tensors show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ModelError
from ..files.weights import count_parts
from ..images.level_shape import LevelShape, multiples

_WHAT = "multi-scale image tokenizer"


@dataclass(frozen=True)
class TokenizerShape(LevelShape):
    """Sizes of a tokenizer, named after VAR's arguments; the defaults are its published ones."""

    vocab_size: int = 4096
    z_channels: int = 32  # size of a code's vector
    ch: int = 160  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    share_quant_resi: int = 4  # number of convolutions that the scales share
    quant_resi: float = 0.5  # their weight
    encoder: bool = True  # False: the file has no encoder, and images cannot be encoded

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(self.ch_mult))
        self.check(_WHAT, "vocab_size", "z_channels", "num_res_blocks", "share_quant_resi")

    @staticmethod
    def of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any]) -> TokenizerShape:
        """Read the shape off the published tensors; `arguments` are those in a file next to them.

        Raises ModelError for the tensors of another model, or for arguments that contradict them.
        """
        if "pos_1LC" in tensors:
            raise ModelError(
                "these are the weights of VAR's transformer, not of its tokenizer",
                "use the tokenizer's file, vae_*.pth",
            )
        needed = ("quantize.embedding.weight", "decoder.conv_out.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        convolutions = {hit[1] for name in tensors if (hit := re.match(r"quantize\.quant_resi\.(.*)\.weight$", name))}
        if absent or not convolutions:
            raise ModelError(f"not the weights of a {_WHAT}: there is no {(*absent, 'quantize.quant_resi')[0]}")
        ch = tensors[needed[1]].shape[1]
        shape: dict[str, Any] = {
            "vocab_size": tensors[needed[0]].shape[0],
            "z_channels": tensors[needed[0]].shape[1],
            "ch": ch,
            "ch_mult": multiples(tensors, "decoder.up", "block.0.conv1.weight", ch, _WHAT),
            "num_res_blocks": count_parts(tensors, "decoder.up.0.block") - 1,
            "share_quant_resi": len(convolutions),
        }
        for name, value in shape.items():
            argument = arguments.get(name, value)
            if (tuple(argument) if isinstance(argument, list) else argument) != value:
                raise ModelError(f"the arguments have {name}={argument}, and the tensors have {value}")
        weight = arguments.get("quant_resi", 0.5)
        return TokenizerShape(
            **shape, quant_resi=abs(float(weight)), encoder=any(name.startswith("encoder.") for name in tensors)
        )
