"""Models of published shapes with random weights, made on the device in the dtype asked for; no file is read.

What they say means nothing. What a forward of theirs costs is what it costs with the published weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pardec
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.continuous.diffusion_head import DiffusionHead
from pardec.models.continuous.mar import Reader
from pardec.models.cuda_graphs.capture import Graphs, check_graphs
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import ModelError
from pardec.models.families import FAMILIES, FamilySpec, mar
from pardec.models.kernels import layout
from pardec.models.loading import assemble
from pardec.models.loading.placement import choose_device, choose_dtype
from pardec.models.model import DecodingConfig, LanguageModel

from .published import SHAPES as SHAPES
from .published import config_of

_SPREAD = 0.02  # standard deviation of the weights


def shaped(
    name: str, *, device: str = "auto", dtype: str = "auto", seed: int = 0, cuda_graphs: bool = False
) -> pardec.Model:
    """The model of a shape by name; the same weights for the same seed on the same kind of device.

    Raises ModelError for a shape that there is not, and for `cuda_graphs` where `load` would refuse them.
    """
    return build(name, config_of(name), device=device, dtype=dtype, seed=seed, cuda_graphs=cuda_graphs)


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
    """Makes parameters one by one, so that no more than one is held twice."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def fill(self, module: nn.Module) -> None:
        """Gives every parameter of `module` memory: vectors of gains are 1, of biases 0, the rest is normal."""
        for name, parameter in list(module.named_parameters()):
            owner, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(owner), leaf, nn.Parameter(self._one(name, parameter), requires_grad=False))

    def _one(self, name: str, like: Tensor) -> Tensor:
        weight = assemble.matmul_memory(name)(like.shape, dtype=self.dtype, device=self.device)
        if like.dim() == 1:
            return weight.fill_(0.0 if "bias" in name else 1.0)
        values = torch.empty(like.shape, dtype=self.dtype, device=self.device)
        layout.fill(weight, values.normal_(0.0, _SPREAD, generator=self.generator))
        return weight


def _language(
    name: str, spec: FamilySpec, config: dict[str, Any], make: _Random, choice: str, *, cuda_graphs: bool
) -> LanguageModel:
    shape = spec.decoder(config)
    decoder = assemble.empty(shape)
    make.fill(decoder)
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
        assemble.copy_tied_head(decoder)
    masked = spec.attention != "causal"
    mask = None if not masked else min(spec.mask[0] if spec.mask else shape.vocab, shape.vocab - 1)
    return LanguageModel(
        decoder=GraphRunner(decoder, Graphs()) if cuda_graphs else decoder,
        decoding_config=DecodingConfig(mask, (), 0, None, spec.shift, spec.attention, spec.block),
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
    images = mar.MARImaging(config, None, defaults={}, device=make.device, name=name)
    return ContinuousModel(
        backbone=Reader(backbone, network),
        head=DiffusionHead(network, int(config.get("num_sampling_steps", mar.STEPS))),
        imaging=images,
        config=config,
        name=name,
        path=None,
        family="mar",
        device=make.device,
        dtype=make.dtype,
        parameters=sum(weight.numel() for part in (backbone, network) for weight in part.parameters()),
        choice=choice,
    )
