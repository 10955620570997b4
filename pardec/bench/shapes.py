"""Models of published shapes with random weights, made on the device in the dtype asked for; no file is read.

What they say means nothing. What a forward of theirs costs is what it costs with the published weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pardec
from pardec.models import assemble
from pardec.models.captured import Captured
from pardec.models.continuous import ContinuousModel
from pardec.models.errors import ModelError, did_you_mean
from pardec.models.families import FAMILIES, FamilySpec, mar
from pardec.models.kernels.panels import Panels
from pardec.models.language_model import Facts, LanguageModel
from pardec.models.mar import Reader
from pardec.models.mar_head import DiffusionHead
from pardec.models.placement import choose_device, choose_dtype
from pardec.models.recording import Graphs, check_graphs

_SPREAD = 0.02  # standard deviation of the weights
_SMALL = {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "num_key_value_heads": 12}
_SMALL |= {"intermediate_size": 2048, "vocab_size": 20480, "max_position_embeddings": 2048}

SHAPES: dict[str, dict[str, Any]] = {
    "llada-8b": {
        "model_type": "llada",
        "d_model": 4096,
        "n_layers": 32,
        "n_heads": 32,
        "n_kv_heads": 32,
        "mlp_hidden_size": 12288,
        "vocab_size": 126464,
        "rope_theta": 500000.0,
        "max_sequence_length": 4096,
    },
    "dream-7b": {
        "model_type": "Dream",
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "intermediate_size": 18944,
        "vocab_size": 152064,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": False,
    },
    "llamagen-xl": {
        "model_type": "llamagen",
        "gpt_type": "c2i",
        "dim": 1280,
        "n_layer": 36,
        "n_head": 20,
        "vocab_size": 16384,
        "block_size": 576,
        "cls_token_num": 1,
    },
    "mar-l": {
        "model_type": "mar",
        "encoder_embed_dim": 1024,
        "encoder_depth": 16,
        "encoder_num_heads": 16,
        "decoder_embed_dim": 1024,
        "decoder_depth": 16,
        "decoder_num_heads": 16,
        "tokens": 256,
        "token_size": 16,
        "class_num": 1000,
        "buffer_size": 64,
        "diffloss_d": 8,
        "diffloss_w": 1280,
    },
    # The embedded masked model's, with room for more positions.
    "random-2m": {
        "model_type": "Dream",
        "hidden_size": 192,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "intermediate_size": 512,
        "vocab_size": 361,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "random-100m": {"model_type": "Dream", "tie_word_embeddings": True, **_SMALL},
    "random-100m-ar": {"model_type": "llama", "tie_word_embeddings": True, **_SMALL},
    # A vocabulary as wide as LLaDA's over a stack of little cost: what logits take stands out.
    "random-wide": {
        "model_type": "llada",
        "d_model": 64,
        "n_layers": 2,
        "n_heads": 2,
        "mlp_hidden_size": 128,
        "vocab_size": 126464,
        "max_sequence_length": 8192,
    },
}


def shaped(
    name: str, *, device: str = "auto", dtype: str = "auto", seed: int = 0, cuda_graphs: bool = False
) -> pardec.Model:
    """The model of a shape by name; the same weights for the same seed on the same kind of device.

    Raises ModelError for a shape that there is not, and for `cuda_graphs` where `load` would refuse them.
    """
    if name not in SHAPES:
        raise ModelError(f"unknown shape {name!r}{did_you_mean(name, SHAPES)}", f"shapes: {', '.join(SHAPES)}")
    return build(name, SHAPES[name], device=device, dtype=dtype, seed=seed, cuda_graphs=cuda_graphs)


def build(
    name: str,
    config: dict[str, Any],
    *,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    cuda_graphs: bool = False,
) -> pardec.Model:
    """A model of any `config` of a native family, as a published config.json has it."""
    place, reason = choose_device(device)
    kind, _ = choose_dtype(dtype, place, torch.bfloat16)
    choice = f"random weights on {place} ({reason}), {str(kind).removeprefix('torch.')}"
    make = _Random(place, kind, seed)
    if cuda_graphs:
        check_graphs(place, name)
    if config["model_type"] == "mar":
        if cuda_graphs:
            raise ModelError(f"cuda_graphs was given, and {name} draws classes from vectors", "leave it out")
        return pardec.Model(_vectors(name, config, make, choice))
    spec = next((spec for spec in FAMILIES.values() if spec.matches(config)), None)
    if spec is None:
        raise ModelError(f"no native family has model_type {config['model_type']!r}")
    return pardec.Model(_language(name, spec, config, make, choice, cuda_graphs=cuda_graphs))


class _Random:
    """Makes parameters one by one, so that nothing is held beside them."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def fill(self, module: nn.Module) -> None:
        """Gives every parameter of `module` memory: vectors of gains are 1, of biases 0, the rest is normal."""
        for name, parameter in list(module.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, nn.Parameter(self._one(name, parameter), requires_grad=False))

    def _one(self, name: str, like: Tensor) -> Tensor:
        made = assemble.for_products(name)(like.shape, dtype=self.dtype, device=self.device)
        if isinstance(made, Panels):
            made.fill(torch.empty(like.shape, dtype=self.dtype).normal_(0.0, _SPREAD, generator=self.generator))
            return made
        if like.dim() > 1:
            return made.normal_(0.0, _SPREAD, generator=self.generator)
        return made.fill_(0.0 if "bias" in name else 1.0)


def _language(
    name: str, spec: FamilySpec, config: dict[str, Any], make: _Random, choice: str, *, cuda_graphs: bool
) -> LanguageModel:
    shape = spec.decoder(config)
    decoder = assemble.empty(shape)
    make.fill(decoder)
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
        assemble.again(decoder)
    masked = spec.attention != "causal"
    mask = None if not masked else min(spec.mask[0] if spec.mask else shape.vocab, shape.vocab - 1)
    return LanguageModel(
        decoder=Captured(decoder, Graphs()) if cuda_graphs else decoder,
        facts=Facts(mask, (), 0, None, spec.shift, spec.attention, spec.block),
        config=config,
        tokenizer=None,
        name=name,
        path=None,
        family=spec.name,
        device=make.device,
        dtype=make.dtype,
        vocab_size=shape.vocab,
        layers=shape.layers,
        width=shape.width,
        max_positions=spec.positions(config),
        choice=choice,
    )


def _vectors(name: str, config: dict[str, Any], make: _Random, choice: str) -> ContinuousModel:
    with torch.device("meta"):
        backbone, network = mar.networks(config)
    for part in (backbone, network):
        make.fill(part)
        part.eval()
    pictures = mar.MARPictures(config, None, defaults={}, device=make.device, name=name)
    return ContinuousModel(
        backbone=Reader(backbone, network),
        head=DiffusionHead(network, int(config.get("num_sampling_steps", mar.STEPS))),
        imaging=pictures,
        config=config,
        name=name,
        path=None,
        family="mar",
        device=make.device,
        dtype=make.dtype,
        parameters=sum(weight.numel() for part in (backbone, network) for weight in part.parameters()),
        choice=choice,
    )
