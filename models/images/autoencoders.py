"""What image autoencoders share: shapes by levels, diffusers' blocks, and these blocks' names in published files.

Latent diffusion's names are those of KL autoencoders, VQGAN, MAGVIT-v2 and NextStep-1, and but for q, k and v those of
VAR (`scales/tokenizer_files.py`). LlamaGen has its own. An attention's projections are convolutions of one pixel there,
matrices here.

The networks are diffusers', the reading is not: in diffusers 0.42.1 `convert_ldm_vae_checkpoint` leaves the encoder's
attention of MAR's KL-16 out (`AutoencoderKL.from_single_file` then fails), knows none of the other layouts, and has no
way back, which saving needs; and `from_pretrained` loads a file that lacks a tensor, with a line in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, did_you_mean
from ..files.configs import reading
from ..files.weights import count_parts
from ..layers.empty_weights import empty_weights
from .weight_files import check_names

Names = Callable[[str], str]  # from diffusers' name of a tensor to the published one

# Unused tensors of latent diffusion: networks of the loss, moving averages, and attention in the decoder.
UNUSED = re.compile(r"(loss|model_ema)\.|decoder\.up\.\d+\.attn\.")
_LEAF = {
    "conv_shortcut": "nin_shortcut",
    "group_norm": "norm",
    "to_q": "q",
    "to_k": "k",
    "to_v": "v",
    "to_out.0": "proj_out",
    "conv_norm_out": "norm_out",
    "codebook": "quantize.embedding",
}
_LEAVES = re.compile(r"\b(" + "|".join(map(re.escape, _LEAF)) + r")\b")
_PARTS = re.compile(r"\b(down|up|mid)_block(?:s\.(\d+))?\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)\b")
_KIND = {"resnets": "block", "attentions": "attn", "downsamplers": "downsample", "upsamplers": "upsample"}
_LLAMAGEN_MID = {("resnets", "0"): "mid.0", ("attentions", "0"): "mid.1", ("resnets", "1"): "mid.2"}
_PROJECTION = re.compile(r"\.(q|k|v|qkv|proj_out)\.weight$")


def latent_diffusion(levels: int) -> Names:
    """The names of latent diffusion's autoencoders with this number of levels.

    Their levels of a decoder are counted from the image, diffusers' from the latents.

    >>> latent_diffusion(5)("decoder.up_blocks.0.resnets.1.conv_shortcut.weight")
    'decoder.up.4.block.1.nin_shortcut.weight'
    >>> latent_diffusion(5)("encoder.mid_block.attentions.0.to_out.0.bias")
    'encoder.mid.attn_1.proj_out.bias'
    """

    def part(hit: re.Match[str]) -> str:
        side, level, kind, index = hit.groups()
        if side == "mid":
            return f"mid.{_KIND[kind]}_{int(index) + 1}"
        own = level if side == "down" else levels - 1 - int(level)
        return f"{side}.{own}.{_KIND[kind]}" + ("" if kind.endswith("samplers") else f".{index}")

    return lambda name: _LEAVES.sub(lambda hit: _LEAF[hit[1]], _PARTS.sub(part, name))


def llamagen(name: str) -> str:
    """The names of LlamaGen's tokenizer.

    >>> llamagen("decoder.up_blocks.0.attentions.1.to_out.0.weight")
    'decoder.conv_blocks.0.attn.1.proj_out.weight'
    >>> llamagen("encoder.mid_block.resnets.1.conv2.bias")
    'encoder.mid.2.conv2.bias'
    """

    def part(hit: re.Match[str]) -> str:
        side, level, kind, index = hit.groups()
        if side == "mid":
            return _LLAMAGEN_MID[kind, index]
        own = "res" if kind == "resnets" else _KIND[kind]
        return f"conv_blocks.{level}.{own}" + ("" if kind.endswith("samplers") else f".{index}")

    return _LEAVES.sub(lambda hit: _LEAF[hit[1]], _PARTS.sub(part, name))


def to_published(name: str, value: Tensor) -> Tensor:
    """A tensor in the published form, given its published name."""
    return value[:, :, None, None] if _PROJECTION.search(name) and value.ndim == 2 else value


def from_published(name: str, value: Tensor) -> Tensor:
    """A published tensor in the form of diffusers' blocks."""
    return value[:, :, 0, 0] if _PROJECTION.search(name) and value.shape[2:] == (1, 1) else value


def published_tensors(model: nn.Module, names: Names) -> dict[str, Tensor]:
    """The tensors of a model under their published names and in their published forms."""
    named = ((names(name), value) for name, value in model.state_dict().items())
    return {name: to_published(name, value) for name, value in named}


@contextmanager
def described(file: Path) -> Iterator[None]:
    """A context for reading shapes from `file` and making modules on the meta device; errors name the file."""
    try:
        with reading(str(file)), empty_weights():
            yield
    except ModelError as error:
        raise ModelError(f"{file}: {error}", error.hint) from error


def fill(
    model: nn.Module,
    file: Path,
    tensors: dict[str, Tensor],
    names: Names,
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Loads a model's published tensors and makes it ready for inference.

    Raises ModelError unless they are exactly the model's, by name and shape, and hold weights.
    """
    check_names(file, tensors, {name: tuple(value.shape) for name, value in published_tensors(model, names).items()})
    state = {name: from_published(names(name), tensors[names(name)]) for name in model.state_dict()}
    model.load_state_dict({name: value.to(device, dtype) for name, value in state.items()}, assign=True)
    model.eval().requires_grad_(False)


GROUPS = 32  # groups of every group norm: channel counts are multiples of it


class LevelShape:
    """The base of a frozen dataclass that declares `ch`, channels at the first level, and `ch_mult`, one per level."""

    ch: int
    ch_mult: tuple[int, ...]

    def check(self, what: str, *sizes: str) -> None:
        """Raise ModelError unless the levels can be built, and the sizes of these names are at least 1."""
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of a {what} must be at least 1, got {getattr(self, name)}")
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
        """Pixels per code or latent vector along one side."""
        return int(2 ** (len(self.ch_mult) - 1))

    def check_pixels(self, pixels: Tensor) -> None:
        """Raise ModelError unless pixels [B, 3, H, W] can be encoded: sides are multiples of `downsample`."""
        side = self.downsample
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ModelError(f"pixels must be [images, 3, height, width], got {list(pixels.shape)}")
        if not pixels.shape[2] or not pixels.shape[3] or pixels.shape[2] % side or pixels.shape[3] % side:
            wrong = "x".join(map(str, pixels.shape[2:]))
            raise ModelError(
                f"an image of {wrong} pixels cannot be encoded", f"height and width must be multiples of {side}"
            )


def decoder_levels(tensors: Mapping[str, Tensor], what: str) -> dict[str, Any]:
    """The arguments of the levels of latent diffusion's decoder: `ch`, `ch_mult` and `num_res_blocks`."""
    ch = tensors["decoder.conv_out.weight"].shape[1]
    return {
        "ch": ch,
        "ch_mult": multiples(tensors, "decoder.up", "block.0.conv1.weight", ch, what),
        "num_res_blocks": count_parts(tensors, "decoder.up.0.block") - 1,  # the decoder has one more
    }


def check_arguments(shape: Mapping[str, Any], arguments: Mapping[str, Any], *others: str) -> None:
    """Raises ModelError where arguments in a file contradict the shape of the tensors, or are unknown.

    `others` are arguments that are no part of the shape.
    """
    for name in arguments:
        if name not in shape and name not in others:
            near = did_you_mean(name, {*shape, *others})
            raise ModelError(f"unknown argument {name}={arguments[name]!r}{near}", "correct it, or leave it out")
    for name, value in shape.items():
        argument = arguments.get(name, value)
        if (tuple(argument) if isinstance(argument, list) else argument) != value:
            raise ModelError(f"the arguments have {name}={argument}, and the tensors have {value}")


def plain_decoder(channels: int, widths: Sequence[int], blocks: int, *, attention: bool = True) -> Any:
    """diffusers' decoder of latents with this number of channels; `attention`, if any, only in the middle."""
    from diffusers.models.autoencoders.vae import Decoder  # slow to import

    return Decoder(
        in_channels=channels,
        up_block_types=("UpDecoderBlock2D",) * len(widths),
        block_out_channels=tuple(widths),
        layers_per_block=blocks,
        norm_num_groups=GROUPS,
        mid_block_add_attention=attention,
    )


def multiples(tensors: Mapping[str, Tensor], levels: str, conv: str, ch: int, what: str) -> tuple[int, ...]:
    """`ch_mult` of published tensors whose levels are named `<levels>.0` and so on, each with a convolution `conv`."""
    convs = [tensors.get(f"{levels}.{level}.{conv}") for level in range(count_parts(tensors, levels))]
    if not convs or any(each is None or each.shape[0] % ch for each in convs):
        raise ModelError(f"not the weights of a {what}: {levels} do not match its levels")
    return tuple(each.shape[0] // ch for each in convs if each is not None)
