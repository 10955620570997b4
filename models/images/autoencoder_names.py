"""Maps tensor names of diffusers' blocks to the names in published image autoencoders.

Latent diffusion's names are those of KL autoencoders, VQGAN, MAGVIT-v2 and NextStep-1, and but for q, k and v those of
VAR (`scales/tokenizer_files.py`). LlamaGen has its own. An attention's projections are convolutions of one pixel there,
matrices here.

The networks are diffusers', the reading is not: in diffusers 0.42.1 `convert_ldm_vae_checkpoint` leaves the encoder's
attention of MAR's KL-16 out (`AutoencoderKL.from_single_file` then fails), knows none of the other layouts, and has no
way back, which saving needs; and `from_pretrained` loads a file that lacks a tensor, with a line in the log.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

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
