"""MAR: images of a class, as vectors of real numbers.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

Published files hold tensors alone. What they leave open (heads, the image's size) is stated by a config.json or an
`args.json` beside them, with the names of the authors' arguments, or follows from the width as published. Arguments of
the authors' sampling there are defaults, which those of generation_config.json come before.
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
from ..continuous.mar import MARBackbone, Reader
from ..errors import ModelError
from ..files.sources import Source
from ..files.weights import Published, count_parts
from ..images.contracts import Checkpoint, ImageLayout, OneSize
from ..layers.empty_weights import empty_weights
from ..loading.modules import fill_modules, named_tensors
from .base import Config, ConfigKeys
from .config_files import BOOKKEEPING, agree, sampling, stated

MARK = "diffusion_pos_embed_learned"  # a tensor that only a MAR checkpoint has
HEADS = {768: 12, 1024: 16, 1280: 16}  # heads by published width
_MODELS = {"mar_base": 768, "mar_large": 1024, "mar_huge": 1280}  # widths by the authors' names
STEPS = 100  # transitions of the head, unless the config has another number
_HEAD = "diffloss.net."
_SAMPLING = ("cfg", "temperature", "num_iter", "cfg_schedule")  # arguments of the authors' script
KEYS = ConfigKeys(
    frozenset(
        (
            *("encoder_embed_dim", "encoder_depth", "encoder_num_heads", "mlp_ratio"),
            *("decoder_embed_dim", "decoder_depth", "decoder_num_heads", "class_num", "buffer_size"),
            *("img_size", "vae_stride", "vae_embed_dim", "vae_path", "image_tokenizer", "tokens", "token_size"),
            *("model", "diffloss_d", "diffloss_w", "num_sampling_steps", *_SAMPLING),
        )
    ),
    refused={"patch_size": (1,)},
    ignored=BOOKKEEPING
    | {
        *("batch_size", "epochs", "num_images", "label_drop_prob", "eval_freq", "save_last_freq"),
        *("online_eval", "evaluate", "eval_bsz", "weight_decay", "grad_checkpointing", "lr", "blr", "min_lr"),
        *("lr_schedule", "warmup_epochs", "ema_rate", "mask_ratio_min", "grad_clip", "attn_dropout", "proj_dropout"),
        *("diffusion_batch_mul", "data_path", "output_dir", "log_dir", "device", "seed", "resume", "start_epoch"),
        *("num_workers", "pin_mem", "world_size", "local_rank", "dist_on_itp", "dist_url", "use_cached"),
        *("cached_path", "distributed", "rank", "gpu", "dist_backend"),
    },
)


def describe(folder: Path, published: Mapping[str, Published], stem: str = "") -> Config:
    """The configuration, from JSON files and tensors. Raises ModelError if the tensors belong to another model."""
    if MARK not in published:
        raise ModelError(f"{folder} does not hold a MAR model", f"the weights of a MAR have a tensor {MARK}")
    config = stated(folder, stem, KEYS)
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
    read_off |= {"tokens": tokens, "token_size": size}
    agree(folder, config, {**read_off, "vae_embed_dim": size})
    if _MODELS.get(str(config.get("model")), encoder[2]) != encoder[2]:
        raise ModelError(
            f"{folder}: model is {config['model']} in the config, and the tensors have a width of {encoder[2]}",
            "correct model, or leave it out of the config",
        )
    if "img_size" in config:
        side, stride = config["img_size"], config.get("vae_stride", 16)  # as in the authors' script
        if not all(type(each) is int and each > 0 for each in (side, stride)) or (side // stride) ** 2 != tokens:
            raise ModelError(
                f"{folder}: img_size is {side!r} with vae_stride {stride!r}, and the tensors have {tokens} tokens",
                "correct them, or leave them out of the config",
            )
    config |= {"model_type": "mar", **read_off}
    for part in ("encoder", "decoder"):
        width = config[f"{part}_embed_dim"]
        if f"{part}_num_heads" not in config and width not in HEADS:
            raise ModelError(
                f"{folder} does not say how many heads its {part} has",
                f'write {{"{part}_num_heads": ...}} into args.json',
            )
        config.setdefault(f"{part}_num_heads", HEADS.get(width))
    steps = config.setdefault("num_sampling_steps", str(STEPS))
    if not str(steps).isdecimal() or isinstance(steps, bool):
        raise ModelError(
            f"{folder}: num_sampling_steps is {steps!r}", f'write a number of transitions, such as "{STEPS}"'
        )
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
            raise ModelError(f"{name} has {config['tokens']} tokens per image, which is no square number")
        self.layout = ImageLayout(side, side)
        self.classes = int(config["class_num"])
        self.defaults = dict(defaults)
        self._source, self._device, self.name = decoder, device, name
        self._size, self._stride = int(config["token_size"]), config.get("vae_stride")
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
        from ..images.kl import load_kl

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
            if self._stride not in (None, kl.shape.downsample):
                raise ModelError(
                    f"the autoencoder {self._source} decodes a token to {kl.shape.downsample} pixels per side, and "
                    f"vae_stride of {self.name} is {self._stride}",
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


def load_mar(checkpoint: Checkpoint) -> ContinuousModel:
    """Builds the model. Raises ModelError for missing, surplus or misshapen tensors."""
    from ..images.kl import find_kl

    source, config, device = checkpoint.source, checkpoint.config, checkpoint.device
    if checkpoint.decoder is not None:
        find_kl(checkpoint.decoder)  # a missing one is reported before weights are read
    with empty_weights():
        backbone, net = networks(config)
    expected = named_tensors(backbone) | named_tensors(net, _HEAD)
    fill_modules(source.name, checkpoint.published, expected, dtype=checkpoint.dtype, device=device)
    decoder = checkpoint.named_decoder(("kl*.ckpt", "kl*.pt", "kl*.safetensors"))
    imaging = MARImaging(config, decoder, defaults=defaults(source, config), device=device, name=source.name)
    head = DiffusionHead(net, int(config["num_sampling_steps"]))
    parts = {"backbone": Reader(backbone, net), "head": head, "imaging": imaging}
    return checkpoint.model(ContinuousModel, backbone, net, family="mar", **parts)


def named_weights(model: ContinuousModel) -> dict[str, Tensor]:
    """Every weight of a MAR by its published name."""
    backbone, head = model.backbone, model.head
    assert isinstance(backbone, Reader), "built by load_mar"
    assert isinstance(head, DiffusionHead), "built by load_mar"
    return {**dict(backbone.named_parameters()), **{_HEAD + name: weight for name, weight in head.named_parameters()}}


def defaults(source: Source, config: Config) -> Config:
    """Sampling defaults in generation_config.json; for the others, the arguments of the authors' script."""
    own: Config = {name: config[name] for name in ("cfg", "temperature") if name in config}
    names = {"num_iter": "steps", "cfg_schedule": "guidance"}
    if settings := [f"{ours}={config[theirs]}" for theirs, ours in names.items() if theirs in config]:
        own["sampler"] = f"mar:{','.join(settings)}"
    return own | sampling(source.folder)
