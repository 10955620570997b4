"""MAR: images of a class, as vectors of real numbers.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

Published files hold tensors alone. What they leave open (heads, the image's size) is stated by a config.json or an
`args.json` beside them, with the names of the authors' arguments, or follows from the width as published.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .. import finite
from ..continuous.contracts import ContinuousModel, read_sizes
from ..continuous.diffusion_head import DiffusionHead, MARHead
from ..continuous.mar import MARBackbone
from ..continuous.mar_reader import Reader
from ..errors import ModelError
from ..images.contracts import ImageLayout, Imaging, OneSize
from ..loading.modules import fill_modules, named_tensors
from ..loading.sources import Source, read_json
from ..loading.weights import Published, count_parts
from .base import Config

MARK = "diffusion_pos_embed_learned"  # a tensor that only a MAR checkpoint has
HEADS = {768: 12, 1024: 16, 1280: 16}  # of the published widths
STEPS = 100  # of the head, unless the config states another number
_HEAD = "diffloss.net."
_HARMLESS = ("diffloss.train_diffusion", "diffloss.gen_diffusion")


def describe(folder: Path, published: Mapping[str, Published], stem: str = "") -> Config:
    """The configuration, stated or read off the tensors. Raises ModelError for those of another model."""
    if MARK not in published:
        raise ModelError(f"{folder} does not hold a MAR model", f"its weights have a tensor {MARK}")
    config: Config = {}
    for name in ("config.json", "args.json", f"{stem}.args.json"):
        config |= read_json(folder / name)
    tokens, decoder = published[MARK].shape[1:]
    encoder = published["encoder_pos_embed_learned"].shape
    size = published["z_proj.weight"].shape[1]
    read_off = {
        "encoder_embed_dim": encoder[2],
        "decoder_embed_dim": decoder,
        "encoder_depth": count_parts(published, "encoder_blocks"),
        "decoder_depth": count_parts(published, "decoder_blocks"),
        "buffer_size": encoder[1] - tokens,
        "class_num": published["class_emb.weight"].shape[0],
        "diffloss_d": count_parts(published, _HEAD + "res_blocks"),
        "diffloss_w": published[_HEAD + "input_proj.weight"].shape[0],
        "mlp_ratio": published["encoder_blocks.0.mlp.fc1.weight"].shape[0] / encoder[2],
    }
    for name, value in read_off.items():
        if name in config and float(config[name]) != float(value):
            raise ModelError(f"{folder}: {name} is stated as {config[name]}, and the tensors have {value}")
    config |= {"model_type": "mar", **read_off, "tokens": tokens, "token_size": size}
    for part in ("encoder", "decoder"):
        width = config[f"{part}_embed_dim"]
        if f"{part}_num_heads" not in config and width not in HEADS:
            raise ModelError(
                f"{folder} does not say how many heads its {part} has",
                f'write {{"{part}_num_heads": ...}} into args.json',
            )
        config.setdefault(f"{part}_num_heads", HEADS.get(width))
    config.setdefault("num_sampling_steps", str(STEPS))
    return config


def networks(config: Config) -> tuple[MARBackbone, MARHead]:
    """The modules that a configuration describes, with random weights."""
    names = ("tokens", "token_size", "class_num", "buffer_size", "diffloss_d", "diffloss_w")
    tokens, size, classes, buffer, depth, width = read_sizes(config, *names)
    encoder, decoder = (
        read_sizes(config, *(f"{part}_{what}" for what in ("embed_dim", "depth", "num_heads")))
        for part in ("encoder", "decoder")
    )
    for part, (wide, _, heads) in (("encoder", encoder), ("decoder", decoder)):
        if wide % heads:
            raise ModelError(f"{heads} heads do not divide the {part}'s width of {wide}")
    backbone = MARBackbone(
        tokens=tokens,
        size=size,
        classes=classes,
        buffer=buffer,
        encoder=(encoder[0], encoder[1], encoder[2]),
        decoder=(decoder[0], decoder[1], decoder[2]),
        ratio=float(config.get("mlp_ratio", 4.0)),
    )
    return backbone, MARHead(size=size, condition=decoder[0], width=width, depth=depth)


class MARImaging(OneSize):
    """The image interface of one MAR checkpoint: vectors in raster order, and the KL autoencoder that decodes them."""

    def __init__(self, config: Config, decoder: Any, *, defaults: Mapping[str, Any], device: torch.device, name: str):
        """`decoder` names the autoencoder, loaded on first use; None where there is none."""
        side = math.isqrt(int(config["tokens"]))
        if side * side != config["tokens"]:
            raise ModelError(f"{name} has {config['tokens']} tokens, and those of an image make a square")
        if int(config.get("patch_size", 1)) != 1:
            raise ModelError(f"{name} has patches of {config['patch_size']} latents a side, and only one is supported")
        self.layout = ImageLayout(side, side)
        self.classes = int(config["class_num"])
        self.defaults = dict(defaults)
        self._source, self._device, self.name = decoder, device, name
        self._size = int(config["token_size"])
        self._decoder: Any = None

    @property
    def kind(self) -> Literal["class", "text"]:
        return "class"

    @property
    def can_decode(self) -> bool:
        return self._source is not None

    @property
    def decoder(self) -> Any:
        """The autoencoder, on the device of the model. Raises ModelError where there is none, or one of other sizes."""
        from ..images.kl_files import load_kl

        if self._decoder is None:
            if self._source is None:
                raise ModelError(
                    f"{self.name} has no autoencoder, so its tokens cannot be decoded",
                    'load it with decoder="kl16.ckpt", or put that file beside the weights',
                )
            kl = load_kl(self._source)
            if kl.channels != self._size:
                raise ModelError(
                    f"the autoencoder {self._source} has {kl.channels} channels, and a token of {self.name} "
                    f"has {self._size} numbers",
                    "name the autoencoder that the model was trained with",
                )
            self._decoder = kl.to(self._device)
        return self._decoder

    @property
    def downsample(self) -> int:
        return int(self.decoder.shape.downsample)

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        decoder = self.decoder
        return finite.pixels(self.name, decoder.decode(tokens.to(self._device)), decoder)


def load_mar(
    source: Source,
    config: Config,
    published: dict[str, Published],
    *,
    device: torch.device,
    dtype: torch.dtype,
    decoder: str | None,
    choice: str,
) -> ContinuousModel:
    """Builds the model. Raises ModelError for missing, surplus or misshapen tensors."""
    from ..images.kl_files import find_kl

    if decoder is not None:
        find_kl(decoder)  # a missing one is reported before weights are read
    with torch.device("meta"):
        backbone, net = networks(config)
    expected = named_tensors(backbone) | named_tensors(net, _HEAD)
    fill_modules(source.name, loaded(published), expected, dtype=dtype, device=device)
    head = DiffusionHead(net, int(config["num_sampling_steps"]))
    imaging: Imaging = MARImaging(
        config,
        decoder or config.get("image_tokenizer") or _beside(source.folder),
        defaults=read_json(source.folder / "generation_config.json"),
        device=device,
        name=source.name,
    )
    return ContinuousModel(
        backbone=Reader(backbone, net),
        head=head,
        imaging=imaging,
        config=config,
        name=source.name,
        path=source.folder,
        family="mar",
        device=device,
        dtype=dtype,
        parameters=sum(value.numel() for part in (backbone, net) for value in part.parameters()),
        choice=choice,
    )


def named_weights(model: ContinuousModel) -> dict[str, Tensor]:
    """Every weight of a MAR by its published name."""
    backbone, head = model.backbone, model.head
    assert isinstance(backbone, Reader), "built by load_mar"
    assert isinstance(head, DiffusionHead), "built by load_mar"
    return {**dict(backbone.named_parameters()), **{_HEAD + name: weight for name, weight in head.named_parameters()}}


def loaded(published: Mapping[str, Published]) -> dict[str, Published]:
    """The published tensors that are read; those of the schedule follow from its length."""
    return {name: entry for name, entry in published.items() if not name.startswith(_HARMLESS)}


def _beside(folder: Path) -> str | None:
    """The file of the autoencoder, where one lies beside the weights."""
    files = [file for pattern in ("kl*.ckpt", "kl*.pt", "kl*.safetensors") for file in sorted(folder.glob(pattern))]
    return str(files[0]) if len(files) == 1 else None
