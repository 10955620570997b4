"""Models of published shapes with random weights, created on the device in the wanted dtype; no file is read.

Their output is meaningless, but a forward takes as long as with the published weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import pardec
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.continuous.diffusion_head import DiffusionHead
from pardec.models.continuous.mar import Reader
from pardec.models.cuda_graphs.capture import Graphs, GraphsArgument, use_graphs
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import ModelError
from pardec.models.families import FAMILIES, FamilySpec, mar
from pardec.models.kernels import layout
from pardec.models.loading import assemble
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.parallel.placement import choose_device, choose_dtype

from .published import SHAPES as SHAPES
from .published import config_of

_SPREAD = 0.02  # standard deviation of the weights


def shaped(
    name: str, *, device: str = "auto", dtype: str = "auto", seed: int = 0, cuda_graphs: GraphsArgument = "auto"
) -> pardec.Model:
    """The model of a shape by name; the same weights for the same seed on the same kind of device.

    Raises ModelError for an unknown shape, and for `cuda_graphs` where `load` would refuse them.
    """
    return build(name, config_of(name), device=device, dtype=dtype, seed=seed, cuda_graphs=cuda_graphs)


def build(
    name: str,
    config: dict[str, Any],
    *,
    device: str = "auto",
    dtype: str = "auto",
    seed: int = 0,
    cuda_graphs: GraphsArgument = "auto",
) -> pardec.Model:
    """A model of any `config` of a native family, as a published config.json has it."""
    target, reason = choose_device(device)
    kind, _ = choose_dtype(dtype, target, torch.bfloat16)
    choice = f"random weights on {target} ({reason}), {str(kind).removeprefix('torch.')}"
    initializer = _Initializer(target, kind, seed)
    graphs = cuda_graphs if use_graphs(cuda_graphs, target, name) else None
    if config["model_type"] == "mar":
        vectors = _vectors(name, config, initializer, choice)
        if graphs is not None:
            vectors.capture(Graphs)
        return pardec.Model(vectors)
    spec = next((spec for spec in FAMILIES.values() if spec.matches(config)), None)
    if spec is None:
        raise ModelError(f"no native family has model_type {config['model_type']!r}")
    return pardec.Model(_language(name, spec, config, initializer, choice, graphs=graphs))


class _Initializer:
    """Initializes parameters one by one, so that at most one is in memory twice."""

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype = device, dtype
        self.generator = torch.Generator(device).manual_seed(seed)

    def fill(self, module: nn.Module) -> None:
        """Allocates and initializes every parameter of `module`: gains are 1, biases 0, the rest is normal."""
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
    name: str,
    spec: FamilySpec,
    config: dict[str, Any],
    initializer: _Initializer,
    choice: str,
    *,
    graphs: GraphsArgument | None,
) -> LanguageModel:
    shape = spec.decoder(config)
    decoder = assemble.empty(shape)
    initializer.fill(decoder)
    if shape.tied:
        decoder.head.weight = decoder.embed.weight
        assemble.copy_tied_head(decoder)
    masked = spec.attention != "causal"
    mask = None if not masked else min(spec.mask[0] if spec.mask else shape.vocab, shape.vocab - 1)
    return LanguageModel(
        decoder=decoder if graphs is None else GraphRunner(decoder, Graphs(), automatic=graphs == "auto"),
        decoding_config=DecodingConfig(mask, (), 0, None, spec.shift, spec.attention, spec.block),
        config=config,
        tokenizer=None,
        name=name,
        path=None,
        family=spec.name,
        device=initializer.device,
        dtype=initializer.dtype,
        vocab_size=shape.vocab,
        layers=shape.layers,
        width=shape.width,
        max_positions=spec.positions(config),
        choice=choice + ("" if graphs is None else ", by CUDA graphs"),
    )


def _vectors(name: str, config: dict[str, Any], initializer: _Initializer, choice: str) -> ContinuousModel:
    with torch.device("meta"):
        backbone, network = mar.networks(config)
    for part in (backbone, network):
        initializer.fill(part)
        part.eval()
    images = mar.MARImaging(config, None, defaults={}, device=initializer.device, name=name)
    return ContinuousModel(
        backbone=Reader(backbone, network),
        head=DiffusionHead(network, int(config.get("num_sampling_steps", mar.STEPS))),
        imaging=images,
        config=config,
        name=name,
        path=None,
        family="mar",
        device=initializer.device,
        dtype=initializer.dtype,
        parameters=sum(weight.numel() for part in (backbone, network) for weight in part.parameters()),
        choice=choice,
    )
