"""Emu3's image tokenizer: transformers' Emu3VQVAE without its encoder, from either of the published layouts.

The tensors stand in the checkpoint itself, or in a folder of their own, such as BAAI/Emu3-VisionTokenizer. The authors'
names differ from those of transformers: there the attention has convolutions of one pixel, here linear maps.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, one_line
from ..families.emu3 import VQ_PREFIXES
from ..files.sources import locate, read_json
from ..files.weights import Published, inspect, read, weight_files
from ..hf.hf_logging import silence
from .contracts import ImagingParts
from .pixel_range import CLIP, HALF, pixel_range
from .weight_files import check_names

_UNUSED = ("encoder.", "quant_conv.")  # tensors for reading images
_COUNTERS = "num_batches_tracked"  # counters of norms in training
_ARGUMENTS = {"z_channels": "latent_channels", "ch": "base_channels", "ch_mult": "channel_multiplier"}
_ARGUMENTS |= {"double_z": "double_latent"}
# From the authors' names to those of transformers; no pattern matches a name of transformers.
_RENAMED = (
    (r"^decoder\.(mid|up)\.", lambda m: {"mid": "decoder.middle_block.", "up": "decoder.up_block.up."}[m[1]]),
    (r"(\.attn_1|\.attn\.\d+)\.([qkv])\.", r"\1.\2_proj."),
    (r"(\.attn_1|\.attn\.\d+)\.proj_out\.", r"\1.out_proj."),
    (r"\.attn_1\.norm\.", ".attn_norm."),
    (r"\.attn\.(\d+)\.norm\.", r".attn_norms.\1."),
)
_LINEAR = re.compile(r".*\.attn(_1|\.\d+)\.(q|k|v|out)_proj\.weight")


@dataclass(eq=False)
class Emu3VQ:
    """The image tokenizer of a checkpoint; its weights are read on first use."""

    config: Any  # transformers' Emu3VQVAEConfig
    published: Mapping[str, Published]  # its tensors, by their published names
    origin: str  # where the tensors come from, for errors
    device: torch.device
    range: tuple[Tensor, Tensor]  # [3] mean and deviation of the pixels that it was trained on
    _network: Any = field(default=None, repr=False)

    @classmethod
    def of(cls, parts: ImagingParts) -> Emu3VQ | None:
        """The tokenizer that the caller names, or the checkpoint's own; None where there is neither.

        Raises ModelError for tensors that are missing, unknown or of another shape.
        """
        folder = parts.source.folder
        named = parts.decoder or parts.config.get("image_tokenizer")
        if named is not None:
            other = locate(str(named), offline=parts.offline)
            if other.file is not None:
                raise ModelError(
                    f"the image tokenizer {named} is a file", "name its folder, which contains config.json"
                )
            folder, config = other.folder, read_json(other.folder / "config.json", required=True)
            published = inspect(weight_files(folder))
            own = dict(config.get("vq_config") or config)
        else:
            published, own = dict(parts.published), dict(parts.config.get("vq_config") or {})
        inner = {name: entry for name, entry in published.items() if name.startswith(VQ_PREFIXES)}
        if not inner and named is None:
            return None
        origin = parts.source.name if named is None else str(named)
        used = {name: entry for name, entry in (inner or published).items() if not _name(name).startswith(_UNUSED)}
        vq = cls(_config(own, origin), used, origin, parts.device, _range(folder))
        vq.check()
        return vq

    @property
    def downsample(self) -> int:
        """Pixels per code along one side."""
        return int(2 ** (len(self.config.channel_multiplier) - 1))

    @property
    def codebook(self) -> Tensor:
        """[codes, C] float32: the vector of each code."""
        weight: Tensor = self.network.quantize.embedding.weight
        return weight

    def check(self) -> None:
        """Raises ModelError unless the tensors have the names and shapes that the config implies."""
        shapes = {
            _name(name): _Shape(_flat(_name(name), entry.shape), entry.dtype) for name, entry in self.published.items()
        }
        present = {name: shape for name, shape in shapes.items() if not name.endswith(_COUNTERS)}
        state = self._empty().state_dict()
        expected = {name: tuple(value.shape) for name, value in state.items() if not name.endswith(_COUNTERS)}
        check_names(f"the image tokenizer of {self.origin}", present, expected)

    def _empty(self) -> Any:
        from transformers import Emu3VQVAE

        try:
            with silence(), torch.device("meta"):
                network = Emu3VQVAE(self.config)
        except Exception as error:  # whatever a config of impossible sizes leads to
            raise ModelError(f"the image tokenizer of {self.origin} cannot be built: {one_line(error)}") from error
        network.encoder = network.quant_conv = nn.Identity()
        return network

    @property
    def network(self) -> Any:
        """transformers' module, on the device of the model in float32."""
        if self._network is None:
            tensors: dict[str, Tensor] = {}

            def load(name: str, tensor: Tensor) -> None:
                flat = tensor.reshape(_flat(_name(name), tuple(tensor.shape)))
                tensors[_name(name)] = flat.to(self.device, torch.float32, copy=True)

            read({name: entry for name, entry in self.published.items() if not name.endswith(_COUNTERS)}, load)
            network = self._empty()
            counters = [name for name in network.state_dict() if name.endswith(_COUNTERS)]
            tensors |= {name: torch.zeros((), dtype=torch.int64, device=self.device) for name in counters}
            network.load_state_dict(tensors, assign=True)
            self._network = network.eval().requires_grad_(False)
        return self._network

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The network's weights by name."""
        yield from self.network.named_parameters()

    def decode(self, codes: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1] of codes [B, h, w]."""
        network = self.network
        mean, deviation = (each.to(self.device)[:, None, None] for each in self.range)
        image: Tensor = network.decode(codes.to(self.device))
        return (image * deviation + mean) * 2 - 1


@dataclass(frozen=True)
class _Shape:
    shape: tuple[int, ...]
    dtype: torch.dtype | None


def _name(name: str) -> str:
    """The name in transformers' module of a published tensor."""
    for prefix in VQ_PREFIXES:
        name = name.removeprefix(prefix)
    for pattern, new in _RENAMED:
        name = re.sub(pattern, new, name)
    return name


def _flat(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a linear map for a convolution of one pixel."""
    return shape[:2] if _LINEAR.fullmatch(name) and shape[2:] == (1, 1) else shape


def _config(own: dict[str, Any], origin: str) -> Any:
    from transformers import Emu3VQVAEConfig

    known = {_ARGUMENTS.get(key, key): value for key, value in own.items() if key not in ("model_type", "auto_map")}
    try:
        with silence():
            config = Emu3VQVAEConfig.from_dict(known)
            if "hidden_size" not in known:  # the width of the attention, in the authors' config that of its stage
                config.hidden_size = config.base_channels * config.channel_multiplier[-1]
    except Exception as error:  # the class validates with several kinds of exception
        raise ModelError(f"the config of the image tokenizer of {origin} is wrong: {one_line(error)}") from error
    config._attn_implementation = "sdpa"
    return config


def _range(folder: Path) -> tuple[Tensor, Tensor]:
    """The mean and deviation by which the image processor of the folder, of either layout, normalises pixels."""
    file = folder / "preprocessor_config.json"
    settings = read_json(file)
    if not settings:  # newer versions of transformers write one file
        file = folder / "processor_config.json"
        inner = read_json(file).get("image_processor")
        settings = inner if isinstance(inner, dict) else {}
    library = settings.get("image_processor_type") == "Emu3ImageProcessor"
    return pixel_range(settings, str(file), CLIP if library else HALF)
