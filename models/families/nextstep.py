"""NextStep-1: images of a caption, as vectors in raster order, from a Llama-like decoder and a flow-matching head.

NextStep-1: Toward Autoregressive Image Generation with Continuous Tokens at Scale, https://arxiv.org/abs/2508.10711

Folders hold config.json (model_type "nextstep"), sharded weights, a tokenizer, and the autoencoder in `vae`, unless
`vae_name_or_path` or the caller names another. What the published pipeline takes as arguments is read from
generation_config.json under the same names: `num_sampling_steps`, `timesteps_shift`, `use_norm`; and `flow_noise`, the
share of its noise that the head's steps add.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor

from .. import finite
from ..continuous.contracts import ContinuousModel, read_sizes
from ..continuous.diffusion_head import FlowHead, MARHead
from ..continuous.nextstep import Grid, NextStepReader, Projectors, Prompts, normalised
from ..errors import ArgumentError, ModelError
from ..files.sources import Source
from ..files.tokenizers import load_tokenizer
from ..files.weights import Published, count_parts, unwrapped
from ..images.contracts import AnySize, Checkpoint, Condition, ImageLayout
from ..images.latent_vae import LatentVAE, find_vae
from ..layers.empty_weights import empty_weights
from ..loading import assemble
from ..loading.kinds import NEXTSTEP
from ..loading.modules import fill_modules, named_tensors
from ..loading.unread import say_left_out
from .base import Config, FamilySpec, require
from .config_files import SAMPLING, sampling
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, shape

STEPS = 30  # steps of the flow in the newest published script; earlier scripts take 20 to 50
_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "cfg": 7.5, "sampler": "sequential:guidance=constant,last=noise"}
SETTINGS = SAMPLING.without("top_k", "top_p", "cfg_interval").also(
    "num_sampling_steps", "timesteps_shift", "use_norm", "flow_noise"
)
_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {  # types of the head's settings
    "num_sampling_steps": ((int,), "a whole number"),
    "timesteps_shift": ((float, int), "a number"),
    "flow_noise": ((float, int), "a number"),
    "use_norm": ((bool,), "true or false"),
}
AREA = "<|image_area|>"  # the token before an image's rows and columns
_PIXELS = 8  # pixels of a latent along one side, without an autoencoder
# Of the authors' class, for a config that leaves them out.
_SIZES = {"latent_channels": 16, "latent_patch_size": 2, "latent_size": 32, "fm_head_dim": 1536, "fm_head_layers": 12}
_HEAD = "image_head.net."
_BARE = "model."  # prefix of names in other Llama-like checkpoints
# The text head is not used; image positions belong to a switch that must be off.
_UNUSED = (r"lm_head\.weight", r"gen_pos_embed", r"before_lm_head\..*")


def _decoder(config: Config) -> Any:
    own = {**config, "attention_bias": False, "tie_word_embeddings": True}
    biased, out = bool(config.get("attention_bias")), config.get("o_attention_bias")
    return replace(shape(own, "llama", qkv_bias=biased), out_bias=biased if out is None else bool(out))


def _with_biases(config: Config, published: Mapping[str, Published]) -> Config:
    """The config; where it leaves out which projections of attention have biases, the tensors say so."""
    if config.get("attention_bias") is not None:
        return config
    found = {
        key: any(name.endswith(f"layers.0.self_attn.{part}_proj.bias") for name in published)
        for key, part in (("attention_bias", "q"), ("o_attention_bias", "o"))
    }
    return {**config, **{key: value for key, value in found.items() if config.get(key) is None}}


SPEC = FamilySpec(
    name="nextstep",
    summary="NextStep-1",
    matches=lambda config: config.get("model_type") in NEXTSTEP,
    decoder=_decoder,
    names={
        ours: theirs.removeprefix(_BARE)
        if isinstance(theirs, str)
        else tuple(name.removeprefix(_BARE) for name in theirs)
        for ours, theirs in NAMES.items()
    },
    attention="causal",
    shift=1,
    keys=LLAMA_LIKE.also(
        "attention_bias",
        "o_attention_bias",
        "mlp_bias",
        use_gen_pos_embed=(False, None),
        attention_use_qk_norm=(False, None),
    ),
    harmless=(*HARMLESS, *_UNUSED),
)


def sizes(config: Config) -> tuple[int, int, int]:
    """Channels of a latent, latents along a side of a token, and along a side of an image. Raises ModelError."""
    if "num_channels" in config and "latent_channels" not in config:  # the names of the code that trains it
        channels, patch, side = read_sizes(config, "num_channels", "patch_size", "image_size")
    else:
        channels, patch, side = read_sizes(_SIZES | config, "latent_channels", "latent_patch_size", "latent_size")
    if side % patch:
        raise ModelError(f"an image of {side} latents per side cannot be divided into tokens of {patch}")
    return channels, patch, side


def networks(config: Config) -> tuple[Projectors, MARHead]:
    """The projectors and the head that a configuration describes, with random weights. Raises ModelError."""
    require(config, {"fm_head_mlp_ratio": (1, 1.0)})
    width, dim, depth = read_sizes(_SIZES | config, "hidden_size", "fm_head_dim", "fm_head_layers")
    channels, patch, _ = sizes(config)
    size = channels * patch**2
    return Projectors(size, width), MARHead(size=size, condition=width, width=dim, depth=depth, outputs=size)


class NextStepImaging(AnySize):
    """The image interface of one checkpoint: tokens of several latents, and the autoencoder that decodes these."""

    kind: Literal["text"] = "text"
    classes = 0

    def __init__(
        self, config: Config, vae: LatentVAE | None, *, name: str, defaults: Mapping[str, Any], normalise: bool = False
    ) -> None:
        """`vae` is loaded on first use; with `normalise` tokens are layer-normed before they are decoded."""
        self.name, self.vae, self.normalise = name, vae, normalise
        self.defaults = dict(defaults)
        self.channels, self.patch, side = sizes(config)
        if vae is not None and vae.channels != self.channels:
            raise ModelError(
                f"the autoencoder in {vae.folder} has {vae.channels} channels, "
                f"but latents of {name} have {self.channels}",
                "name the autoencoder that the model was trained with",
            )
        self.layout = ImageLayout(side // self.patch, side // self.patch)

    @property
    def can_decode(self) -> bool:
        return self.vae is not None

    @property
    def downsample(self) -> int:
        return self.patch * (_PIXELS if self.vae is None else self.vae.downsample)

    token_pixels = downsample

    @torch.inference_mode()
    def decode(self, tokens: Tensor) -> Tensor:
        if self.vae is None:
            raise ModelError(
                f"{self.name} has no autoencoder, so its tokens cannot be decoded",
                'load it with decoder="stepfun-ai/NextStep-1-f8ch16-Tokenizer", or a folder with its files',
            )
        tokens = normalised(tokens) if self.normalise else tokens
        latents = rearrange(tokens, "b h w (c p q) -> b c (h p) (w q)", p=self.patch, q=self.patch)
        return finite.pixels(self.name, self.vae.decode(latents), self.vae.network)


class CaptionPrompts:
    """The ids of a prompt: a caption, the grid of tokens in words, and the token that begins an image."""

    def __init__(self, tokenizer: Any, begin: int, name: str) -> None:
        self.tokenizer, self.begin, self.name = tokenizer, begin, name

    def __call__(self, condition: Condition, grid: Grid) -> tuple[list[int], list[int]]:
        """The ids of the condition's prompt and of its negative prompt, empty by default. Raises ArgumentError."""
        if condition.text is None:
            what = "features of a caption" if condition.features is not None else "a label"
            raise ArgumentError(f"{self.name} reads captions, and a row has {what} instead", "pass a prompt")
        return self.prompt(condition.text, grid), self.prompt(condition.negative or "", grid)

    def prompt(self, caption: str, grid: Grid) -> list[int]:
        """The ids of one prompt, as published: where the tokenizer has a first token, the grid's words lose theirs."""
        area = self._ids(f"{AREA}{grid[0]}*{grid[1]}")[int(self.tokenizer.bos_token is not None) :]
        return [*self._ids(caption), *area, self.begin]

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text)["input_ids"])


def load_nextstep(checkpoint: Checkpoint) -> ContinuousModel:
    """Builds the model. Raises ModelError for missing, surplus or misshapen tensors, and without a tokenizer."""
    source, published, device, dtype = checkpoint.source, checkpoint.published, checkpoint.device, checkpoint.dtype
    config, settings = _with_biases(checkpoint.config, published), _settings(source.folder)
    vae = _vae(source.folder, config, checkpoint.decoder, device)  # a missing one is reported before weights are read
    normalise = settings.get("use_norm", False)
    own = defaults(source, config)
    imaging = NextStepImaging(config, vae, name=source.name, defaults=own, normalise=normalise)
    tokenizer, begin = load_tokenizer(source.tokenizer), config.get("boi")
    if tokenizer is None:
        raise ModelError(f"{source.name} has no tokenizer, which captions need", "add tokenizer.json to its folder")
    if type(begin) is not int or not 0 <= begin < config["vocab_size"]:
        raise ModelError(
            f"config.json of {source.name} names no token that begins an image: boi is {begin!r}",
            f"boi is the token's id, below {config['vocab_size']}",
        )
    with empty_weights():
        projectors, network = networks(config)
    stack = assemble.empty(SPEC.decoder(config))
    parts = named_tensors(projectors) | named_tensors(network, _HEAD)
    published = unwrapped(published, {**parts, **assemble.targets(SPEC, stack)})
    _check_depth(source.name, config, published)
    theirs = {name: entry for name, entry in published.items() if not name.startswith("image_")}
    expected = assemble.targets(SPEC, stack)  # whatever the file has: its head is not the embedding
    used = assemble.check(SPEC, expected, theirs, stack.config)
    images = {name: entry for name, entry in published.items() if name.startswith("image_")}
    fill_modules(source.name, images, parts, dtype=dtype, device=device)
    assemble.fill(
        SPEC, stack, expected, used, dtype=dtype, device_of=lambda name: device, memory=assemble.matmul_memory
    )
    say_left_out(source.name, SPEC, theirs)
    head = FlowHead(
        network,
        settings.get("num_sampling_steps", STEPS),
        noise=settings.get("flow_noise", 1.0),
        shift=settings.get("timesteps_shift", 1.0),
    )
    prompts = Prompts(
        CaptionPrompts(tokenizer, begin, source.name),
        lambda size: (imaging if size is None else imaging.resized(*size)).layout.grid,
        config.get("max_position_embeddings"),
    )
    reader = NextStepReader(stack, projectors, network, prompts, normalise=normalise)
    made = {"backbone": reader, "head": head, "imaging": imaging}
    checkpoint = replace(checkpoint, config=config)
    return checkpoint.model(ContinuousModel, stack, projectors, network, family="nextstep", **made)


def defaults(source: Source, config: Config) -> Config:
    """Sampling defaults in generation_config.json; for the others, the authors' values. Raises ModelError."""
    settings = _settings(source.folder)
    return {name: settings.get(name, value) for name, value in _DEFAULTS.items()}


def _settings(folder: Path) -> Config:
    """The settings in generation_config.json that are not null. Raises ModelError for one of the wrong type."""
    settings = {key: value for key, value in sampling(folder, SETTINGS).items() if value is not None}
    for key, (kinds, words) in _KINDS.items():
        if type(value := settings.get(key, kinds[0]())) not in kinds:
            raise ModelError(f"{folder / 'generation_config.json'}: {key} is {value!r}", f"it must be {words}")
    return settings


def _check_depth(name: str, config: Config, published: Mapping[str, Published]) -> None:
    """Raises ModelError where the tensors have more or fewer layers than the config states."""
    for key, stem in (("num_hidden_layers", "layers"), ("fm_head_layers", _HEAD + "res_blocks")):
        count = count_parts(published, stem)
        if count != (stated := config.get(key, _SIZES.get(key))):
            raise ModelError(
                f"{name}: {key} is {stated} in config.json, and {count} in the tensors",
                "check that config.json and the weights belong together",
            )


def _vae(folder: Path, config: Config, decoder: str | None, device: torch.device) -> LatentVAE | None:
    """The autoencoder that the caller names, that the config names, if it is there, or the one in `vae`."""
    if decoder is not None:
        return find_vae(decoder, device)
    named = config.get("vae_name_or_path")
    candidates = ([folder / named] if isinstance(named, str) and named else []) + [folder / "vae"]
    beside = next((path for path in candidates if (path / "config.json").is_file()), None)
    return None if beside is None else LatentVAE(beside, device)
