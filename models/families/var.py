"""VAR: images of a class, predicted scale by scale. CoDe's pairs have the same files.

Visual Autoregressive Modeling: Scalable Image Generation via Next-Scale Prediction, https://arxiv.org/abs/2404.02905

Published files hold tensors alone. What they leave open is stated by a config.json or an `args.json` beside them, with
the names of the authors' arguments, or follows from the tensors as published: heads from the normalised attention, else
one per block; the sides of the token maps from how many tokens an image has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from .. import finite
from ..errors import AGAIN, ModelError
from ..files.sources import Source
from ..files.weights import Published, count_parts, tensors_of
from ..images.contracts import Checkpoint, OneSize
from ..layers.empty_weights import empty_weights
from ..loading.modules import fill_modules, named_tensors
from ..scales.contracts import MultiScaleQuantizer, ScaleLayout, ScaleModel, Scales
from ..scales.tokenizer import MultiScaleVQ
from ..scales.transformer import VARTransformer
from .base import Config, ConfigKeys
from .config_files import BOOKKEEPING, agree, sampling, stated

MARK = "pos_1LC"  # a tensor that only such a checkpoint has
SIDES = {680: (1, 2, 3, 4, 5, 6, 8, 10, 13, 16), 2240: (1, 2, 3, 4, 6, 9, 13, 18, 24, 32)}  # by tokens, as published
_BUFFERS = re.compile(r"lvl_1L|attn_bias_for_masking|blocks\.\d+\.attn\.zero_k_bias")  # they follow from the scales
_ALIASES = {"saln": "shared_aln", "anorm": "attn_l2_norm"}  # names of the authors' training script
KEYS = ConfigKeys(
    frozenset(
        (
            *("depth", "embed_dim", "num_heads", "num_classes", "mlp_ratio", "norm_eps", "shared_aln", "attn_l2_norm"),
            *("vocab_size", "z_channels", "patch_nums", "pn", "image_tokenizer", *_ALIASES),
        )
    ),
    ignored=BOOKKEEPING
    | {
        *("drop_rate", "attn_drop_rate", "drop_path_rate", "cond_drop_rate", "flash_if_available", "fuse", "fused"),
        *("fused_if_available", "init_adaln", "init_adaln_gamma", "init_head", "init_std", "ini", "hd", "aln", "alng"),
        *("data_path", "exp_name", "vfast", "tfast", "fp16", "tf32", "tblr", "tlr", "twd", "twde", "tclip", "ls"),
        *("bs", "batch_size", "glb_batch_size", "ac", "ep", "wp", "wp0", "wpe", "sche", "opt", "afuse", "patch_size"),
        *("resos", "data_load_reso", "mid_reso", "hflip", "workers", "pg", "pg0", "pgwp", "cmd", "branch"),
        *("commit_id", "commit_msg", "acc_mean", "acc_tail", "L_mean", "L_tail", "vacc_mean", "vacc_tail", "vL_mean"),
        *("vL_tail", "grad_norm", "cur_lr", "cur_wd", "cur_it", "cur_ep", "remain_time", "finish_time", "device"),
        *("local_out_dir_path", "tb_log_dir_path", "log_txt_path", "last_ckpt_path", "seed", "local_debug"),
        *("same_seed_for_all_ranks", "dbg_nan"),
    },
)
_DEFAULTS: dict[str, Any] = {"cfg": 4.0, "top_k": 900, "top_p": 0.95, "temperature": 1.0}  # the authors' demo


def defaults(source: Source, config: Config) -> Config:
    """Sampling defaults in generation_config.json; for the others, the authors' values."""
    top_k = min(_DEFAULTS["top_k"], int(config.get("vocab_size", _DEFAULTS["top_k"])))
    return {**_DEFAULTS, "top_k": top_k, **sampling(source.folder)}


def describe(folder: Path, published: Mapping[str, Published], stem: str = "") -> Config:
    """The configuration, from JSON files and tensors. Raises ModelError if the tensors belong to another model."""
    needed = (MARK, "class_emb.weight", "word_embed.weight", "head.weight", "lvl_embed.weight")
    absent = [name for name in needed if name not in published]
    if absent:
        raise ModelError(f"{folder} does not hold a VAR model: there is no {absent[0]}", AGAIN)
    config = stated(folder, stem, KEYS)
    classes, width = published["class_emb.weight"].shape
    sharp = published.get("blocks.0.attn.scale_mul_1H11")
    depth = count_parts(published, "blocks")
    if "blocks.0.ffn.fc1.weight" not in published:
        raise ModelError(f"{folder} does not hold a whole VAR model: there is no blocks.0.ffn.fc1.weight")
    read_off: dict[str, Any] = {
        "depth": depth,
        "embed_dim": width,
        "num_classes": classes - 1,
        "shared_aln": "shared_ada_lin.1.weight" in published,
        "attn_l2_norm": sharp is not None,
        "mlp_ratio": published["blocks.0.ffn.fc1.weight"].shape[0] / width,
        "vocab_size": published["head.weight"].shape[0],
        "z_channels": published["word_embed.weight"].shape[1],
    }
    if sharp is not None:
        read_off["num_heads"] = sharp.shape[1]
    agree(folder, config, {**read_off, **{name: read_off[ours] for name, ours in _ALIASES.items()}})
    tokens, levels = published[MARK].shape[1], published["lvl_embed.weight"].shape[0]
    sides = [config[key] for key in ("patch_nums", "pn") if config.get(key) is not None] or [SIDES.get(tokens)]
    if sides[0] is None:
        raise ModelError(
            f"{folder} has {levels} token maps with {tokens} tokens in all, and nothing states their sides",
            f'write {{"patch_nums": [...]}} into {stem or ""}{"." if stem else ""}args.json beside the weights',
        )
    try:
        scales, *others = map(Scales.read, sides)
        if any(other != scales for other in others):
            raise ModelError(f"patch_nums is {sides[0]}, and pn is {sides[1]!r}", "leave one of them out")
    except ModelError as error:
        raise ModelError(f"{folder}: {error}", error.hint) from error
    if (len(scales), scales.tokens) != (levels, tokens):
        raise ModelError(
            f"{folder}: patch_nums={list(scales.sides)} gives {len(scales)} maps with {scales.tokens} tokens, and "
            f"the tensors have {levels} maps with {tokens} tokens"
        )
    heads = config.setdefault("num_heads", depth)
    if type(heads) is not int or heads < 1 or width % heads:
        raise ModelError(f"{folder}: num_heads is {heads}, which does not divide the width of {width}")
    return {**config, "model_type": "var", **read_off, "patch_nums": list(scales.sides)}


def network(config: Config) -> VARTransformer:
    """The module of a configuration from `describe`, with random weights."""
    width = int(config["embed_dim"])
    return VARTransformer(
        Scales(tuple(config["patch_nums"])),
        width=width,
        depth=int(config["depth"]),
        heads=int(config["num_heads"]),
        classes=int(config["num_classes"]),
        vocab=int(config["vocab_size"]),
        channels=int(config["z_channels"]),
        hidden=round(width * float(config.get("mlp_ratio", 4.0))),
        normalised=bool(config["attn_l2_norm"]),
        shared=bool(config["shared_aln"]),
        eps=float(config.get("norm_eps", 1e-6)),
    )


class VARImaging(OneSize):
    """The image interface of one VAR checkpoint; its tokenizer is loaded on first use."""

    kind: Literal["class"] = "class"

    def __init__(
        self, config: Config, tokenizer: Any, *, defaults: Mapping[str, Any], device: torch.device, name: str
    ) -> None:
        """`tokenizer` names the image tokenizer; None where there is none."""
        self.scales = Scales(tuple(config["patch_nums"]))
        self.layout = ScaleLayout.of(self.scales)
        self.classes = int(config["num_classes"])
        self.defaults = dict(defaults)
        self._sizes = int(config["vocab_size"]), int(config["z_channels"])
        self._source, self._device, self.name = tokenizer, device, name
        self._tokenizer: MultiScaleVQ | None = None

    @property
    def can_decode(self) -> bool:
        return self._source is not None

    @property
    def tokenizer(self) -> MultiScaleVQ:
        """The image tokenizer, on the device of the model. Raises ModelError for none, or another model's."""
        from ..scales.tokenizer_files import load_tokenizer

        if self._tokenizer is None:
            if self._source is None:
                raise ModelError(
                    f"{self.name} has no image tokenizer, which makes a scale's input from the codes of those before",
                    'load it with decoder="vae_ch160v4096z32.pth", or put that file beside the weights',
                )
            tokenizer = load_tokenizer(self._source, self.scales, device=self._device)
            for what, ours, theirs in zip(
                ("codes", "numbers per code"), (tokenizer.vocab, tokenizer.channels), self._sizes, strict=True
            ):
                if ours != theirs:
                    raise ModelError(
                        f"the image tokenizer {self._source} has {ours} {what}, but {self.name} has {theirs}",
                        "name the image tokenizer that the model was trained with",
                    )
            self._tokenizer = tokenizer
        return self._tokenizer

    @property
    def quantizer(self) -> MultiScaleQuantizer:
        """The quantizer, which sums the codes of all scales. Raises ModelError where there is no tokenizer."""
        return self.tokenizer

    @property
    def downsample(self) -> int:
        return self.tokenizer.shape.downsample

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] of the codes of all scales [B, L]; scales whose codes are -1 are left out."""
        tokenizer = self.tokenizer
        return finite.pixels(self.name, tokenizer.decode(tokens.to(self._device)), tokenizer)

    @torch.inference_mode()
    def encode(self, pixels: Tensor) -> Tensor:
        """Codes [B, L] of pixels [B, 3, H, W]. Raises ModelError without an encoder."""
        return self.tokenizer.encode(pixels.to(self._device))


def load_var(checkpoint: Checkpoint) -> ScaleModel:
    """Builds the model. Raises ModelError for missing, surplus or misshapen tensors."""
    from ..scales.tokenizer_files import find_tokenizer

    source, config, device = checkpoint.source, checkpoint.config, checkpoint.device
    if checkpoint.decoder is not None:
        find_tokenizer(checkpoint.decoder)  # a missing one is reported before weights are read
    with empty_weights():
        transformer = network(config)
    used = loaded(checkpoint.published, config["patch_nums"])
    fill_modules(source.name, used, named_tensors(transformer), dtype=checkpoint.dtype, device=device)
    tokenizer = checkpoint.named_decoder(("vae*.pth", "vae*.pt", "vae*.safetensors"))
    imaging = VARImaging(config, tokenizer, defaults=defaults(source, config), device=device, name=source.name)
    return checkpoint.model(ScaleModel, transformer, family="var", transformer=transformer, imaging=imaging)


def named_weights(model: ScaleModel) -> dict[str, Tensor]:
    """Every weight of a VAR by its published name."""
    assert isinstance(model.transformer, VARTransformer), "built by load_var"
    return dict(model.transformer.named_parameters())


def loaded(published: Mapping[str, Published], sides: Sequence[int]) -> dict[str, Published]:
    """The published tensors that are read. Raises ModelError for a buffer that contradicts the sides."""
    buffers = [name for name in published if _BUFFERS.fullmatch(name)]
    level = torch.arange(len(sides)).repeat_interleave(torch.tensor([side * side for side in sides]))
    bias = torch.where(level[:, None] >= level, 0.0, -torch.inf)
    follows = {"lvl_1L": level[None], "attn_bias_for_masking": bias[None, None]}
    nothing = torch.zeros(published[MARK].shape[-1] if MARK in published else 0)
    for name, tensor in zip(buffers, tensors_of(published, *buffers), strict=True):
        if not torch.equal(tensor.double(), follows.get(name, nothing).double()):
            raise ModelError(
                f"{name} does not agree with token maps of sides {list(sides)}", "leave it out of the file"
            )
    return {name: entry for name, entry in published.items() if name not in buffers}
