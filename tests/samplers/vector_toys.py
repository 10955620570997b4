"""Small models of vectors: distributions with and without a closed form, and MAR with random weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel, Gaussian, States
from pardec.models.continuous.diffusion_head import DiffusionHead
from pardec.models.continuous.mar import Reader
from pardec.models.families.mar import networks
from pardec.samplers.continuous.contracts import ImageRequest
from pardec.samplers.continuous.loop import decode
from pardec.samplers.events import Finished
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed, row_seeds


@dataclass(frozen=True, eq=False)
class ToyHead:
    """x_(t-1) ~ N(keep x + pull z + bend tanh(2 x), exp(2 spread)): linear, so Gaussian, where bend is 0."""

    size: int
    steps: int
    keep: float = 0.6
    pull: float = 0.5
    bend: float = 0.0
    spread: float = -0.6  # log deviation at index 0; it grows with the index
    growth: float = 0.05
    lean: float = 0.0  # how much the deviation depends on the state
    stochastic: bool = True

    @property
    def signal(self) -> Tensor:
        return torch.linspace(0.9, 0.1, self.steps, dtype=torch.float64)

    def ready(self, states: States, every: int = 1) -> States:
        return states

    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        z = states.cond[:, : self.size]
        if states.uncond is not None and states.scale is not None:
            plain = states.uncond[:, : self.size]
            z = plain + states.scale[:, None] * (z - plain)
        number = torch.as_tensor(index, dtype=torch.float32).reshape(-1, 1)
        mean = self.keep * x + self.pull * z + self.bend * torch.tanh(2 * x)
        spread = self.spread + self.growth * number + self.lean * torch.tanh(z)
        return Gaussian(mean, spread.expand_as(x))

    def respaced(self, steps: int) -> ToyHead:
        return self if steps == self.steps else replace(self, steps=steps)


@dataclass(frozen=True, eq=False)
class ToyBackbone:
    """z = shift + weight * sum of the known tokens (+ a little of position and class); tanh of it where `curved`."""

    tokens: int
    size: int
    weight: float = 0.4
    shift: float = 0.3
    curved: bool = False
    placed: float = 0.0
    causal: bool = False
    next_token: bool = False
    fed: None = None

    def start(self, conditions: Any, **more: Any) -> ToyBackbone:
        return self

    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        held = torch.where(known[..., None], latents, torch.zeros_like(latents))
        before = held.cumsum(1) - held if self.causal else held.sum(1, keepdim=True).expand_as(held)
        place = torch.arange(self.tokens)[:, None] / self.tokens - 0.5
        cond = self.shift + self.weight * before + self.placed * place
        cond = 2 * torch.tanh(cond) if self.curved else cond
        plain = cond - 0.3 * (1 + labels[:, None, None].clamp(min=0))
        if scale is None:
            return States(cond[wanted])
        return States(cond[wanted], plain[wanted], scale[:, None].expand_as(wanted)[wanted])

    def parameters(self) -> list[Tensor]:
        return []


def toy(name: str, head: Any, backbone: Any) -> ContinuousModel:
    return ContinuousModel(
        backbone=backbone,
        head=head,
        imaging=SimpleNamespace(classes=4),  # type: ignore[arg-type]
        config={},
        name=name,
        path=None,
        family="toy",
        device=torch.device("cpu"),
        dtype=torch.float32,
        parameters=1,
    )


def pair(
    tokens: int, size: int, steps: int, *, curved: bool = False, far: float = 1.0, wider: float = 0.12
) -> tuple[Any, Any]:
    """Target and draft with different means and deviations; `far` is the distance, 0 for equal ones."""
    bend = {"bend": 0.3, "lean": 0.2} if curved else {}
    more: dict[str, Any] = {"curved": True, "placed": 0.4} if curved else {}
    target = ToyHead(size, steps, **bend)
    share = far / math.sqrt(steps)  # longer paths tell two distributions apart sooner
    draft = replace(
        target,
        pull=target.pull * (1 - 0.5 * share),
        spread=target.spread + wider * share,
        keep=target.keep + 0.06 * share,
    )
    backbone = ToyBackbone(tokens, size, **more)
    other = replace(backbone, shift=backbone.shift + 0.3 * share, weight=backbone.weight * (1 - 0.2 * share))
    return toy("target", target, backbone), toy("draft", draft, other)


def mar(seed: int = 0, *, near: float | None = None, steps: int = 6, other: int = 1, depth: int = 2) -> ContinuousModel:
    """MAR over 16 tokens of 4 numbers with random weights; `near` is the share of another model that is mixed in.

    `depth` is the depth of the encoder and of the decoder.
    """
    generator = torch.Generator().manual_seed(seed)
    second = torch.Generator().manual_seed(1000 + other)
    config = {"tokens": 16, "token_size": 4, "class_num": 4, "buffer_size": 4, "diffloss_d": 2, "diffloss_w": 48}
    for part in ("encoder", "decoder"):
        config |= {f"{part}_embed_dim": 48, f"{part}_depth": depth, f"{part}_num_heads": 4}
    backbone, net = networks(config)
    for part in (backbone, net):
        for tensor in part.state_dict().values():
            own = torch.randn(tensor.shape, generator=generator) * 0.15
            mixed = torch.randn(tensor.shape, generator=second) * 0.15 * (near or 0)
            tensor.copy_(own + mixed)
        part.eval().requires_grad_(False)
    return replace(toy(f"mar-{seed}-{near}", DiffusionHead(net, steps), Reader(backbone, net)), family="mar")


def generate(
    model: ContinuousModel,
    spec: str,
    *,
    draft: ContinuousModel | None = None,
    count: int = 1,
    seed: int = 0,
    seeds: tuple[int, ...] | None = None,
    labels: tuple[int, ...] | None = None,
    **more: Any,
) -> Finished:
    """The result of a spec, whose draft model of any name is `draft`."""
    seeds = seeds or row_seeds(seed, count)
    request = ImageRequest(labels or (1,) * len(seeds), Keyed(seeds), draft_model=draft, **more)
    *_, end = decode(model, resolve(spec, "continuous"), request, steps=False)
    assert isinstance(end, Finished)
    return end


def latents_of(end: Finished) -> np.ndarray:
    """The vectors [B, S, d] of a result."""
    assert end.latents is not None
    return np.asarray(end.latents)


# --- are two distributions the same? ---


def kolmogorov(
    sample: np.ndarray, other: np.ndarray | None = None, *, mean: float = 0.0, deviation: float = 1.0
) -> float:
    """p of a Kolmogorov-Smirnov test of numbers [n] against others [m], or a normal distribution; for large n."""
    ours = np.sort(sample)
    n = len(ours)
    if other is None:
        z = torch.from_numpy((ours - mean) / deviation).double()
        reached = torch.special.ndtr(z).numpy()
        gap = max(np.abs(np.arange(1, n + 1) / n - reached).max(), np.abs(np.arange(n) / n - reached).max())
        size = float(n)
    else:
        both = np.sort(np.concatenate((sample, other)))
        theirs = np.sort(other)
        gap = np.abs(
            np.searchsorted(ours, both, "right") / n - np.searchsorted(theirs, both, "right") / len(theirs)
        ).max()
        size = n * len(theirs) / (n + len(theirs))
    root = math.sqrt(size)
    at = (root + 0.12 + 0.11 / root) * gap
    terms = [2 * (-1) ** (j - 1) * math.exp(-2 * (j * at) ** 2) for j in range(1, 101)]
    return float(min(1.0, max(0.0, sum(terms)))) if at > 0.2 else 1.0


def energy(sample: np.ndarray, other: np.ndarray, block: int = 1000) -> tuple[float, float]:
    """The energy distance of two samples [n, D], also in units of its standard error, that of the blocks' means.

    The estimate of a block is unbiased, so it is 0 on average where the distributions are the same.
    """
    found = []
    for start in range(0, len(sample) - block + 1, block):
        x, y = (torch.from_numpy(each[start : start + block].astype(np.float64)) for each in (sample, other))
        find = [torch.cdist(each, each).sum() / (block * (block - 1)) for each in (x, y)]
        found.append(float(2 * torch.cdist(x, y).mean() - find[0] - find[1]))
    mean = float(np.mean(found))
    return mean, mean / (float(np.std(found, ddof=1)) / math.sqrt(len(found)))
