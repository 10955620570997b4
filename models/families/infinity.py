"""Infinity: images of a caption, predicted scale by scale, each code bit by bit.

Infinity: Scaling Bitwise AutoRegressive Modeling for High-Resolution Image Synthesis, https://arxiv.org/abs/2412.04431

A folder holds the transformer (infinity_2b_reg.pth), the image tokenizer (infinity_vae_d32reg.pth) and the text encoder
(flan-t5-xl). Files hold tensors alone; an `args.json` or a config.json may state arguments of the authors' scripts,
above all `pn`, the size that is drawn by default (1M). Guidance is constant and on logits, which is their
`cfg_insertion_layer=0`, and `tau` is the temperature: 4 and 0.5 with top-p 0.97, as in their script for the 2B model.

No published weights were run. What tensors do not show is decided as in that script: level embeddings are added to the
input alone, and positions are normalised by the largest square (`rope2d_normalized_by_hw=2`). Tensors of the tokenizer
load under both names that the authors' loader takes. Refused: aspect ratios other than 1, codes of more than 32 bits
(Infinity-8B with its 2x2 patches, the 64-bit tokenizer), and video.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Literal, Self

import torch
from torch import Tensor

from .. import finite
from ..errors import ArgumentError, ModelError
from ..files.sources import Source
from ..files.weights import Published, count_parts, tensors_of
from ..images.captions import TextEncoder, encoder_name
from ..images.contracts import Checkpoint, Condition
from ..layers.empty_weights import empty_weights
from ..loading.modules import fill_modules, named_tensors
from ..scales.bitwise import PATTERNS, BitwiseDecoder, BitwiseQuantizer, find_decoder, load_decoder
from ..scales.contracts import ScaleLayout, ScaleModel, Scales
from ..scales.infinity import InfinityTransformer
from .base import Config, ConfigKeys
from .config_files import BOOKKEEPING, agree, sampling, stated

MARK = "text_proj_for_sos.ca.mat_q"  # a tensor that only such a checkpoint has
_SQUARE = (1, 2, 4, 6, 8, 12, 16, 20, 24, 32, 40, 48, 64)  # sides of the token maps of the largest square image
_MAPS = {"0.06M": 7, "0.25M": 10, "0.60M": 12, "1M": 13}  # the first maps that an image of so many pixels has
_PIXELS = 16  # pixels of a code along one side, without an image tokenizer
_MOST_BITS = 32
_BUFFERS = re.compile(r".*\bzero_k_bias")
KEYS = ConfigKeys(
    frozenset(
        (
            *("depth", "embed_dim", "num_heads", "mlp_ratio", "norm_eps", "shared_aln", "text_channels", "text_maxlen"),
            *("vae_type", "pn", "image_tokenizer", "text_encoder", "vae_path", "text_encoder_ckpt", "cfg", "tau"),
        )
    ),
    refused={
        "use_bit_label": (1, True),
        "add_lvl_embeding_only_first_block": (1, True),
        "rope2d_each_sa_layer": (1, True),
        "rope2d_normalized_by_hw": (2,),
        "apply_spatial_patchify": (0, False),
        "use_scale_schedule_embedding": (0, False),
        "cfg_insertion_layer": (0, [0]),
        "h_div_w_template": (1,),
        "video_frames": (1,),
        "sampling_per_bits": (1,),
        "enable_positive_prompt": (0, False),
    },
    ignored=BOOKKEEPING
    | {
        *("checkpoint_type", "bf16", "seed", "use_flex_attn", "enable_model_cache", "cache_dir"),
        *("model_path", "prompt", "save_file"),
    },
)
_DEFAULTS: Mapping[str, Any] = {
    "sampler": "sequential:order=temperature",  # the authors divide by tau before they filter
    "cfg": 4.0,
    "temperature": 0.5,
    "top_p": 0.97,
}


def describe(folder: Path, published: Mapping[str, Published], stem: str = "") -> Config:
    """The configuration, from JSON files and tensors. Raises ModelError if the tensors belong to another model."""
    needed = (MARK, "cfg_uncond", "word_embed.weight", "head.weight", "lvl_embed.weight", "pos_start")
    first = _published("blocks.0.", published)
    for name in (*needed, first + "sa.scale_mul_1H11", first + "ffn.fc1.weight"):
        if name not in published:
            raise ModelError(f"{folder} does not hold an Infinity model of images: there is no {name}")
    width, bits = published["word_embed.weight"].shape
    config = stated(folder, stem, KEYS)
    if bits > _MOST_BITS:
        raise ModelError(
            f"{folder} has codes of {bits} bits: Infinity-8B, whose codes are patches of 2x2, and 64-bit codes are not "
            "supported",
            "use Infinity-2B (infinity_2b_reg.pth), or another model whose codes have at most 32 bits",
        )
    if (outputs := published["head.weight"].shape[0]) != 2 * bits:
        raise ModelError(
            f"{folder} has a head of {outputs} outputs for codes of {bits} bits, and pardec reads two logits per bit",
            "use a model that was trained with use_bit_label=1",
        )
    (length, features), hidden = published["cfg_uncond"].shape, published[first + "ffn.fc1.weight"].shape[0]
    read_off: dict[str, Any] = {
        "depth": _depth(published),
        "embed_dim": width,
        "num_heads": published[first + "sa.scale_mul_1H11"].shape[1],
        "mlp_ratio": hidden / width,
        "shared_aln": "shared_ada_lin.1.weight" in published,
        "text_channels": features,
        "text_maxlen": length,
        "vae_type": bits,
    }
    agree(folder, config, read_off)
    heads = read_off["num_heads"]
    if not heads or width % heads or width // heads % 4:
        raise ModelError(f"{folder}: {heads} heads over a width of {width}: a head's size has to be a multiple of 4")
    size = config.setdefault("pn", "1M")
    levels = published["lvl_embed.weight"].shape[0]
    if size not in _MAPS:
        raise ModelError(f"{folder}: pn is {size!r}", f"write one of {', '.join(_MAPS)}, or leave it out")
    if levels < _MAPS[size]:
        raise ModelError(f"{folder} has embeddings of {levels} maps, and images of {size} pixels have {_MAPS[size]}")
    return {**config, "model_type": "infinity", **read_off, "levels": levels, "pool_heads": published[MARK].shape[1]}


def network(config: Config) -> InfinityTransformer:
    """The module of a configuration from `describe`, with random weights."""
    width = int(config["embed_dim"])
    return InfinityTransformer(
        _scales(config["pn"]),
        width=width,
        depth=int(config["depth"]),
        heads=int(config["num_heads"]),
        bits=int(config["vae_type"]),
        hidden=round(width * float(config["mlp_ratio"])),
        levels=int(config["levels"]),
        features=int(config["text_channels"]),
        longest=int(config["text_maxlen"]),
        pool_heads=int(config["pool_heads"]),
        shared=bool(config["shared_aln"]),
        eps=float(config.get("norm_eps", 1e-6)),
    )


class InfinityImaging:
    """The image interface of one checkpoint; its image tokenizer and text encoder are loaded on first use."""

    kind: Literal["text"] = "text"
    classes = 0

    def __init__(
        self,
        config: Config,
        tokenizer: Any,
        encode: TextEncoder | None,
        uncond: Tensor,
        *,
        defaults: Mapping[str, Any],
        name: str,
    ) -> None:
        """`tokenizer` names the image tokenizer, if there is one; `uncond` [T, D] are the features of no caption."""
        self.layout = ScaleLayout.of(_scales(config["pn"]))
        self.levels, self.bits = int(config["levels"]), int(config["vae_type"])
        self.defaults = dict(defaults)
        self.encode, self.uncond, self.name = encode, uncond, name
        self._source, self._decoders = tokenizer, dict[str, BitwiseDecoder]()  # shared by all sizes

    @property
    def can_decode(self) -> bool:
        return self._source is not None

    @property
    def decoder(self) -> BitwiseDecoder:
        """The decoder, on the device of the model. Raises ModelError for none, or another model's."""
        if self._source is None:
            raise ModelError(
                f"{self.name} has no image tokenizer, so its codes cannot be decoded",
                'load it with decoder="infinity_vae_d32reg.pth", or put that file beside the weights',
            )
        if self._source not in self._decoders:
            decoder = load_decoder(self._source, device=self.uncond.device)
            if decoder.shape.z_channels != self.bits:
                raise ModelError(
                    f"the image tokenizer {self._source} has codes of {decoder.shape.z_channels} bits, but those of "
                    f"{self.name} have {self.bits}",
                    "name the image tokenizer that the model was trained with",
                )
            self._decoders[self._source] = decoder
        return self._decoders[self._source]

    @property
    def quantizer(self) -> BitwiseQuantizer:
        """The quantizer, which has no weights."""
        return BitwiseQuantizer(self.layout.scales, self.bits, self.uncond.device)

    @property
    def downsample(self) -> int:
        return self.decoder.shape.downsample if self.can_decode else _PIXELS

    @property
    def sizes(self) -> str:
        sides = [_scales(size).sides[-1] * self.downsample for size, maps in _MAPS.items() if maps <= self.levels]
        return "squares of " + ", ".join(map(str, sides)) + " pixels"

    def resized(self, height: int, width: int) -> Self:
        """The same interface for images of this size. Raises ArgumentError for a size that it does not have."""
        for size, maps in _MAPS.items():
            scales = _scales(size)
            if maps <= self.levels and height == width == scales.sides[-1] * self.downsample:
                other = copy(self)
                other.layout = ScaleLayout.of(scales)
                return other
        raise ArgumentError(
            f"size is {height} by {width} pixels, and {self.name} draws {self.sizes}",
            "other aspect ratios of its authors are not built: draw a square, and cut it",
        )

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] of the codes of all scales [B, L]; scales whose codes are -1 are left out."""
        decoder = self.decoder
        return finite.pixels(self.name, decoder(self.quantizer.total(tokens.to(self.uncond.device))), decoder)

    def texts(self, conditions: Sequence[Condition], guided: Sequence[int]) -> list[Tensor]:
        """Features [T_i, D] of each caption, then of the negative (or empty) caption of each row in `guided`."""
        found = [self._features(row, condition) for row, condition in enumerate(conditions)]
        for row in guided:
            negative = conditions[row].negative
            found.append(self.uncond[: len(found[row])] if negative is None else self._encoded(negative))
        return found

    def _features(self, row: int, condition: Condition) -> Tensor:
        features = condition.features
        if features is None:
            if condition.text is None:
                raise ModelError(f"row {row} has no caption, and {self.name} takes captions", "pass a prompt")
            features = self._encoded(condition.text)
        longest, width = self.uncond.shape
        if features.ndim != 2 or features.shape[1] != width or not 1 <= len(features) <= longest:
            raise ModelError(
                f"features of row {row} have the shape {list(features.shape)}",
                f"{self.name} needs [n, {width}] with n from 1 to {longest}",
            )
        return features

    def _encoded(self, text: str) -> Tensor:
        if self.encode is None:
            raise ModelError(
                f"{self.name} has no text encoder, so it cannot encode captions",
                'load it with text_encoder="google/flan-t5-xl", or pass its output: prompt_embeds=',
            )
        return self.encode([text])[0]


def load_infinity(checkpoint: Checkpoint) -> ScaleModel:
    """Builds the model. Raises ModelError for missing, surplus or misshapen tensors."""
    source, config, published = checkpoint.source, checkpoint.config, checkpoint.published
    if checkpoint.decoder is not None:
        find_decoder(checkpoint.decoder)  # a missing one is reported before weights are read
    with empty_weights():
        transformer = network(config)
    expected = {_published(name, published): entry for name, entry in named_tensors(transformer).items()}
    where: dict[str, Any] = {"device": checkpoint.device, "dtype": checkpoint.dtype}
    fill_modules(source.name, _loaded(published), expected, **where)
    uncond = transformer.cfg_uncond
    named = checkpoint.text_encoder or config.get("text_encoder")
    named = named or _folder(source.folder, config.get("text_encoder_ckpt"))
    named = encoder_name(source.folder, named, uncond.shape[1])
    encode = None if named is None else TextEncoder(named, most=len(uncond), offline=checkpoint.offline, **where)
    tokenizer = checkpoint.named_decoder(PATTERNS)
    imaging = InfinityImaging(config, tokenizer, encode, uncond, defaults=defaults(source, config), name=source.name)
    parts = {"transformer": transformer, "imaging": imaging}
    return checkpoint.model(ScaleModel, transformer, family="infinity", guidance="constant", **parts)


def _scales(size: str) -> Scales:
    return Scales(_SQUARE[: _MAPS[size]])


def _depth(published: Mapping[str, Published]) -> int:
    chunks, each = _chunks(published)
    return chunks * each if chunks else count_parts(published, "blocks")


def _chunks(published: Mapping[str, Published]) -> tuple[int, int]:
    """How many chunks of blocks the file has, 0 for none, and the blocks of each."""
    return count_parts(published, "block_chunks"), count_parts(published, "block_chunks.0.module")


def _published(name: str, published: Mapping[str, Published]) -> str:
    """The published name of a tensor: blocks come in chunks, or one after the other."""
    each = _chunks(published)[1]

    def block(hit: re.Match[str]) -> str:
        index = int(hit[1])
        own = f"block_chunks.{index // each}.module.{index % each}." if each else f"blocks.{index}."
        return own + ("sa." if hit[2] else "")

    return re.sub(r"^blocks\.(\d+)\.(attn\.)?", block, name)


def _loaded(published: Mapping[str, Published]) -> dict[str, Published]:
    """The published tensors that are read. Raises ModelError for a bias of keys, which the authors keep at zero."""
    buffers = [name for name in published if _BUFFERS.fullmatch(name)]
    for name, tensor in zip(buffers, tensors_of(published, *buffers), strict=True):
        if bool(tensor.any()):
            raise ModelError(f"{name} is not zero, and keys of Infinity have no bias", "leave it out of the file")
    return {name: entry for name, entry in published.items() if name not in buffers}


def defaults(source: Source, config: Config) -> Config:
    """Sampling defaults in generation_config.json; for the others, the authors' arguments or values.

    Raises ModelError for guidance that is no number; theirs may be text.
    """
    own: Config = {}
    for theirs, ours in (("cfg", "cfg"), ("tau", "temperature")):
        if (value := config.get(theirs)) is None:
            continue
        try:
            own[ours] = float(value) if isinstance(value, str) and theirs == "cfg" else value
        except ValueError as error:
            raise ModelError(
                f"{source.folder}: {theirs} is {value!r}", "write one number; cfgs of a sampler guides map by map"
            ) from error
    return {**_DEFAULTS, **own, **sampling(source.folder)}


def _folder(folder: Path, named: str | None) -> str | None:
    """The folder with the last name of a path, if it is in the weights' folder."""
    beside = folder / Path(named).name if named else None
    return str(beside) if beside is not None and beside.is_dir() else None
