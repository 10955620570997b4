"""The shape arguments of a VQ tokenizer, which its published file does not state but its tensors show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ModelError
from ..files.weights import count_parts
from .level_shape import LevelShape, multiples

_WHAT = "VQ tokenizer"


@dataclass(frozen=True)
class VQShape(LevelShape):
    """Sizes of a tokenizer, named after LlamaGen's arguments; the defaults are its published VQ-16."""

    codebook_size: int = 16384
    codebook_embed_dim: int = 8
    z_channels: int = 256
    ch: int = 128  # channels at the first level
    ch_mult: tuple[int, ...] = (1, 1, 2, 2, 4)  # times ch, one per level; each level but the last halves the image
    num_res_blocks: int = 2  # per level of the encoder; the decoder has one more
    codebook_l2_norm: bool = True  # codes and features are compared and looked up on the unit sphere

    def __post_init__(self) -> None:
        object.__setattr__(self, "ch_mult", tuple(self.ch_mult))
        self.check(_WHAT, "codebook_size", "codebook_embed_dim", "z_channels", "num_res_blocks")

    @staticmethod
    def of(tensors: Mapping[str, Tensor], arguments: Mapping[str, Any] | None = None) -> VQShape:
        """Read the shape off the published tensors; `arguments` are those in a file next to them.

        Raises ModelError for the tensors of another model, or for arguments that contradict them.
        """
        if "tok_embeddings.weight" in tensors:
            raise ModelError(
                "these are the weights of LlamaGen's transformer, not of its tokenizer",
                "use the tokenizer's file, vq_*.pt",
            )
        needed = ("encoder.conv_in.weight", "quantize.embedding.weight", "post_quant_conv.weight")
        absent = [name for name in needed if name not in tensors or tensors[name].ndim < 2]
        if absent:
            raise ModelError(f"not the weights of a VQ tokenizer: there is no {absent[0]}")
        ch = tensors[needed[0]].shape[0]
        shape: dict[str, Any] = {
            "codebook_size": tensors[needed[1]].shape[0],
            "codebook_embed_dim": tensors[needed[1]].shape[1],
            "z_channels": tensors[needed[2]].shape[0],
            "ch": ch,
            "ch_mult": multiples(tensors, "encoder.conv_blocks", "res.0.conv1.weight", ch, _WHAT),
            "num_res_blocks": count_parts(tensors, "encoder.conv_blocks.0.res"),
        }
        known = dict(arguments or {})
        for name, value in shape.items():
            argument = known.get(name, value)
            if (tuple(argument) if isinstance(argument, list) else argument) != value:
                raise ModelError(f"the arguments have {name}={argument}, and the tensors have {value}")
        return VQShape(**shape, codebook_l2_norm=bool(known.get("codebook_l2_norm", True)))
