"""The decoders of Flux's and NextStep-1's autoencoders: diffusers' AutoencoderKL without its encoder.

    pixels = decode(latents / scaling_factor + shift_factor)

A folder holds config.json with the weights, as diffusers writes them (diffusion_pytorch_model.safetensors) or as
NextStep-1's authors do (checkpoint.pt, with latent diffusion's names and no convolution after the latents).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, one_line
from ..families.base import require
from ..files.sources import read_json
from .autoencoders import UNUSED, fill, latent_diffusion
from .weight_files import read_tensors

FILES = ("diffusion_pytorch_model.safetensors", "checkpoint.pt", "checkpoint.safetensors")
_ENCODER = ("encoder.", "quant_conv.")
# Scale and shift of the class, NextStep-1's or diffusers', for a config that leaves them out.
_PLAIN_SCALE, _DIFFUSERS_SCALE = (0.3611, 0.1159), (0.18215, 0.0)
# Keys of diffusers' configs, with the values that are computed here.
_REFUSED: dict[str, tuple[Any, ...]] = {"act_fn": ("silu", "swish"), "latents_mean": (None,), "latents_std": (None,)}


@dataclass(eq=False)
class LatentVAE:
    """The autoencoder in a folder; its weights are read on first use."""

    folder: Path
    device: torch.device
    _network: Any = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Raises ModelError for a folder without a config or weights, or a config that describes no autoencoder."""
        config = read_json(self.folder / "config.json", required=True)
        files = [self.folder / name for name in FILES if (self.folder / name).is_file()]
        if not files:
            raise ModelError(f"{self.folder} holds no weights of an autoencoder", f"it needs {' or '.join(FILES[:2])}")
        self.file, self._plain = files[0], files[0].name != FILES[0]
        try:
            self._arguments = _plain(config) if self._plain else _diffusers(config)
            scale, shift = _PLAIN_SCALE if self._plain else _DIFFUSERS_SCALE
            self.scale = _number("scaling_factor", config.get("scaling_factor", scale))
            self.shift = _number("shift_factor", config.get("shift_factor", shift) or 0.0)
            self.channels = int(self._arguments["latent_channels"])
            self.downsample = int(2 ** (len(self._arguments["block_out_channels"]) - 1))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(f"{self.folder}: config.json describes no autoencoder: {one_line(error)}") from error
        if not (math.isfinite(self.scale) and self.scale > 0 and math.isfinite(self.shift)):
            raise ModelError(f"{self.folder}: scaling_factor must be above 0, got {self.scale}")

    @property
    def network(self) -> nn.Module:
        """diffusers' network, in float32. Raises ModelError for tensors that are missing, unknown or misshapen."""
        if self._network is None:
            from diffusers import AutoencoderKL  # slow to import

            try:
                with torch.device("meta"):
                    network: Any = AutoencoderKL(**self._arguments)
            except Exception as error:  # whatever a config of impossible sizes leads to
                raise ModelError(f"{self.folder}: config.json describes no autoencoder: {one_line(error)}") from error
            network.encoder = network.quant_conv = None
            tensors = {
                name: value
                for name, value in read_tensors(self.file).items()
                if not name.startswith(_ENCODER) and not (self._plain and UNUSED.match(name))
            }
            names = latent_diffusion(len(self._arguments["block_out_channels"])) if self._plain else str
            fill(network, self.file, tensors, names, self.device)
            self._network = network
        module: nn.Module = self._network
        return module

    @torch.inference_mode()
    def decode(self, latents: Tensor) -> Tensor:
        """Latents [B, d, h, w], as the model has them, to float32 pixels [B, 3, H, W], about in [-1, 1]."""
        network: Any = self.network
        inner = latents.float().to(self.device) / self.scale + self.shift
        pixels: Tensor = network.decode(inner).sample
        return pixels


def find_vae(source: str, device: torch.device) -> LatentVAE:
    """The autoencoder in a folder, or in a repository of the hub. Raises ModelError where there is none."""
    from ..files.sources import locate

    return LatentVAE(locate(source).folder, device)


def _number(key: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{key} is {value!r}, and a number is needed")
    return float(value)


def _flag(config: dict[str, Any], key: str) -> bool:
    if not isinstance(value := config.get(key, True), bool):
        raise TypeError(f"{key} is {value!r}, and true or false is needed")
    return value


def _plain(config: dict[str, Any]) -> dict[str, Any]:
    """Translates the config of latent diffusion to diffusers' arguments; absent keys have NextStep-1's values."""
    ch, multiples = int(config.get("ch", 128)), [int(each) for each in config.get("ch_mult", (1, 2, 4, 4))]
    levels = len(multiples)
    return {
        "down_block_types": ("DownEncoderBlock2D",) * levels,
        "up_block_types": ("UpDecoderBlock2D",) * levels,
        "block_out_channels": tuple(ch * each for each in multiples),
        "layers_per_block": int(config.get("num_res_blocks", 2)),
        "latent_channels": int(config.get("z_channels", 16)),
        "use_quant_conv": False,
        "use_post_quant_conv": False,
    }


def _diffusers(config: dict[str, Any]) -> dict[str, Any]:
    require(config, _REFUSED)
    for kind in set(config.get("up_block_types", ())):
        require({"up_block_types": kind}, {"up_block_types": ("UpDecoderBlock2D",)})
    blocks = tuple(int(each) for each in config["block_out_channels"])
    return {
        "down_block_types": ("DownEncoderBlock2D",) * len(blocks),
        "up_block_types": ("UpDecoderBlock2D",) * len(blocks),
        "block_out_channels": blocks,
        "layers_per_block": int(config.get("layers_per_block", 1)),
        "latent_channels": int(config["latent_channels"]),
        "norm_num_groups": int(config.get("norm_num_groups", 32)),
        "mid_block_add_attention": _flag(config, "mid_block_add_attention"),
        "use_quant_conv": False,
        "use_post_quant_conv": _flag(config, "use_post_quant_conv"),
    }
