"""Heads of images of vectors, MAR's diffusion and NextStep-1's flow: a token's distribution as transitions from noise.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    y = time(t) + cond(z);  h = W x;  each block h += gate * mlp((1 + scale) norm(h) + shift), modulated by y;
    out: noise and a share of the variance

Modulations, most of the head's weights, do not depend on x: one matmul computes those of many transitions. Modules
carry the names of the published tensors. Letters: N tokens, T transitions, d numbers of a token, W width.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..cuda_graphs.functions import FunctionGraphs
from ..errors import ModelError
from ..kernels.matmul import Linear
from ..layers.layer import modulated
from .contracts import Gaussian, States

EPS = 1e-6
WAVES = 256  # size of a timestep's sinusoidal embedding
PERIOD = 10_000
_TOGETHER = 256  # conditions whose modulations are computed at once: more would not be faster

Modulations = tuple[Tensor, ...]  # modulations of one block, as its `forward` takes them


class Modulated(nn.Module):
    """A block of the head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.in_ln = nn.LayerNorm(width, eps=EPS)
        self.mlp = nn.ModuleDict({"0": Linear(width, width), "2": Linear(width, width)})
        self.adaLN_modulation = nn.ModuleDict({"1": Linear(width, 3 * width)})  # after a SiLU that all share

    def modulations(self, y: Tensor) -> Modulations:
        shift, scale, gate = self.adaLN_modulation["1"](y).chunk(3, -1)
        return shift, 1 + scale, gate

    def forward(self, h: Tensor, shift: Tensor, scale: Tensor, gate: Tensor) -> Tensor:
        # Not mlp["0"](...): a transition is short, and calling modules a fifth of it.
        norm = self.in_ln
        inner = self.mlp["0"].forward(modulated(h, scale, shift, EPS, norm.weight, norm.bias))
        return torch.addcmul(h, gate, self.mlp["2"].forward(F.silu(inner)))


class Last(nn.Module):
    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.linear = Linear(width, size)
        self.adaLN_modulation = nn.ModuleDict({"1": Linear(width, 2 * width)})

    def modulations(self, y: Tensor) -> Modulations:
        shift, scale = self.adaLN_modulation["1"](y).chunk(2, -1)
        return shift, 1 + scale

    def forward(self, h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        return self.linear.forward(modulated(h, scale, shift, EPS))


class Times(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(Linear(WAVES, width), nn.SiLU(), Linear(width, width))

    def forward(self, timesteps: Tensor) -> Tensor:
        """[N, W] of timesteps [N]."""
        half = WAVES // 2
        rate = torch.exp(-math.log(PERIOD) * torch.arange(half, dtype=torch.float32, device=timesteps.device) / half)
        angle = timesteps[:, None].float() * rate
        waves = torch.cat((angle.cos(), angle.sin()), -1)
        out: Tensor = self.mlp(waves.to(next(self.mlp.parameters()).dtype))
        return out


class MARHead(nn.Module):
    """The network that predicts the noise in a point, and where the variance lies between its bounds.

    With `outputs`, this many values are predicted instead: `flow_head` has d, the velocity.
    """

    graphs: FunctionGraphs | None = None  # CUDA graphs of transitions, which are short

    def __init__(self, *, size: int, condition: int, width: int, depth: int, outputs: int | None = None) -> None:
        super().__init__()
        self.size = size
        self.time_embed = Times(width)
        self.cond_embed = Linear(condition, width)
        self.input_proj = Linear(size, width)
        self.res_blocks = nn.ModuleList([Modulated(width) for _ in range(depth)])
        self.final_layer = Last(width, outputs or 2 * size)

    def forward(self, x: Tensor, timesteps: Tensor, condition: Tensor) -> Tensor:
        """[N, outputs] of points x [N, d] at timesteps [N] or [1]; `condition` = cond_embed(z) [N, W]."""
        return self.at(x, self.modulations(self.time_embed(timesteps) + condition))

    def modulations(self, y: Tensor) -> list[Modulations]:
        """The modulations of every block and the last layer, for y [..., W] = time_embed(timestep) + condition."""
        y = F.silu(y)
        return [each.modulations(y) for each in (*self.res_blocks, self.final_layer)]

    def at(self, x: Tensor, modulations: Sequence[Modulations]) -> Tensor:
        """[..., N, outputs] of points x [N, d], each under modulations [..., N, W]."""
        h = self.input_proj.forward(x.to(modulations[-1][0].dtype))
        for block, how in zip((*self.res_blocks, self.final_layer), modulations, strict=True):
            h = block.forward(h, *how)
        return h

    def at_parts(self, x: Tensor, *parts: Tensor) -> tuple[Tensor]:
        """`at` in float32, for modulations one after the other: three of each block, two of the last layer."""
        return (self.at(x, [parts[start : start + 3] for start in range(0, len(parts), 3)]).float(),)


class _ModulationCache:
    """Caches modulations, computed for several transitions at a time as these count down."""

    def __init__(
        self,
        parts: Sequence[Modulated | Last],
        times: Tensor,
        conditioning: Tensor,
        order: Sequence[int] | None = None,
    ) -> None:
        """For `parts` of the head; the network adds `times` [T, W] and `conditioning` [..., N, W].

        `order` has the transitions that are asked for, ascending; None is every one.
        """
        self._parts, self._times, self._conditioning = parts, times, conditioning
        self._order = range(len(times)) if order is None else order
        self._cache: dict[int, tuple[Modulations, ...]] = {}

    def at(self, index: int) -> tuple[Modulations, ...]:
        """The modulations of transition `index`."""
        if index not in self._cache:
            conditioning = self._conditioning
            count = conditioning.numel() // conditioning.shape[-1]
            stop = bisect_right(self._order, index)
            some = self._order[max(0, stop - max(1, _TOGETHER // max(1, count))) : stop]
            times = self._times[some.start : some.stop] if isinstance(some, range) else self._times[list(some)]
            times = times.view(-1, *[1] * (conditioning.dim() - 1), conditioning.shape[-1])
            y = F.silu(times + conditioning)
            blocks = [part.modulations(y) for part in self._parts]
            each = zip(*(zip(*(part.unbind() for part in block), strict=True) for block in blocks), strict=True)
            self._cache = dict(zip(some, each, strict=True))
        return self._cache[index]


@dataclass(frozen=True, slots=True, eq=False)
class _Ready(States):
    """States whose modulations are computed for many transitions at a time."""

    modulation_cache: _ModulationCache = field(kw_only=True)


class _BlockCache:
    """Caches what the blocks add to tokens, and the effect of the condition, from full transitions to later ones.

    LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching, https://arxiv.org/abs/2503.12450

        transition t of T is full if t > 0.9 T, t = T-1, or t is a multiple of `every`; else, with the condition alone,
        out_c = last(W x + (h_blocks - W x) of the last full one),  out_u = out_c - (out_c - out_u) of the last full one
    """

    def __init__(self, network: MARHead, times: Tensor, states: States, every: int) -> None:
        """An empty cache for the tokens of `states`; `times` [T, W]."""
        self._network, steps = network, len(times)
        full = [t for t in range(steps) if t > 0.9 * steps or t == steps - 1 or t % every == 0]
        parts = [*network.res_blocks, network.final_layer]
        self._whole = _ModulationCache(parts, times, _conditioning(states), full)
        rest = [t for t in range(steps) if t not in full]
        self._last = _ModulationCache(parts[-1:], times, states.cond, rest)
        self._full = frozenset(full)
        self._added = self._change = torch.empty(0)  # [N, W] and [N, d]

    def outputs(self, x: Tensor, index: int, *, guided: bool) -> Tensor:
        """See `TransitionHead.outputs`."""
        network = self._network
        if index in self._full:
            modulations = self._whole.at(index)
            h = start = network.input_proj.forward(x.to(modulations[-1][0].dtype))
            for block, modulated in zip(network.res_blocks, modulations, strict=False):
                h = block.forward(h, *modulated)
            self._added = (h[0] if guided else h) - start
            out: Tensor = network.final_layer.forward(h, *modulations[-1]).float()
            if guided:
                self._change = (out[0] - out[1])[:, : network.size]
            return out
        (modulated,) = self._last.at(index)
        h = network.input_proj.forward(x.to(self._added.dtype)) + self._added
        out = network.final_layer.forward(h, *modulated).float()
        if not guided:
            return out
        plain = out.clone()
        plain[:, : network.size] -= self._change
        return torch.stack((out, plain))


@dataclass(frozen=True, slots=True, eq=False)
class _Reusing(States):
    """States for one path, on which some transitions reuse results of earlier ones."""

    blocks: _BlockCache = field(kw_only=True)


class TransitionHead:
    """A network and the times of transitions, whose embeddings and modulations are computed once for many tokens."""

    def __init__(self, network: MARHead, timesteps: Tensor) -> None:
        """`timesteps` [T]: the network's input for each transition, index 0 first."""
        self.network = network
        self._timesteps = timesteps.to(network.input_proj.weight.device)

    @cached_property
    def _times(self) -> Tensor:
        """[T, W]: the embedding of each timestep, the same for every token."""
        embedding: Tensor = self.network.time_embed(self._timesteps)
        return embedding

    def capture(self, graphs: FunctionGraphs, make: Any) -> None:
        self.network.graphs = graphs

    def refresh(self) -> None:
        """Drops values cached from the old weights; called after weights were replaced."""
        vars(self).pop("_times", None)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return self.network.named_parameters()

    @property
    def size(self) -> int:
        return self.network.size

    @property
    def steps(self) -> int:
        return len(self._timesteps)

    @torch.inference_mode()
    def ready(self, states: States, every: int = 1) -> States:
        if every > 1:
            blocks = _BlockCache(self.network, self._times, states, every)
            return _Reusing(states.cond, states.uncond, states.scale, blocks=blocks)
        parts = [*self.network.res_blocks, self.network.final_layer]
        modulation_cache = _ModulationCache(parts, self._times, _conditioning(states))
        return _Ready(states.cond, states.uncond, states.scale, modulation_cache=modulation_cache)

    def outputs(self, x: Tensor, index: int | Tensor, states: States) -> Tensor:
        """[N, outputs] float32 of the network, or [2, N, outputs] with guidance: with and without the condition."""
        if isinstance(states, _Reusing):
            assert isinstance(index, int), "a path takes one transition after the other"
            return states.blocks.outputs(x, index, guided=states.uncond is not None)
        modulations = self._modulations(index, states)
        if self.network.graphs is None or not isinstance(index, int):
            return self.network.at(x, modulations).float()
        parts = [part for block in modulations for part in block]
        return self.network.graphs("transition", self.network.at_parts, (x, *parts))[0]

    def _modulations(self, index: int | Tensor, states: States) -> Sequence[Modulations]:
        if isinstance(states, _Ready) and isinstance(index, int):
            return states.modulation_cache.at(index)
        return self.network.modulations(self._times[index] + _conditioning(states))


class DiffusionHead(TransitionHead):
    """A head's network over a schedule: the distribution of each transition."""

    stochastic = True

    def __init__(self, network: MARHead, steps: int) -> None:
        self._schedule = table = denoising(steps)
        super().__init__(network, table.timesteps)
        # The clean token is substituted into the mean; the share goes from -1, the least variance, to 1.
        of_point = table.of_point + table.of_clean * table.alpha_bar.rsqrt()
        middle, reach = (table.log_most + table.log_least) / 4, (table.log_most - table.log_least) / 4
        columns = (of_point, -table.of_clean * table.from_noise, middle, reach)
        self._columns = torch.stack(columns, 1).float().to(self._timesteps.device)  # [T, 4]

    @property
    def schedule(self) -> Denoising:
        """The constants of the transitions."""
        return self._schedule

    @property
    def signal(self) -> Tensor:
        return self._schedule.alpha_bar.sqrt()

    def respaced(self, steps: int) -> DiffusionHead:
        return self if steps == self.steps else DiffusionHead(self.network, steps)

    @torch.inference_mode()
    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        noise, share = self._predict(x, index, states)
        # One factor for all tokens, or one for each.
        of_point, of_noise, middle, reach = self._columns[index].unsqueeze(-1).unbind(-2)
        return Gaussian(of_point * x + of_noise * noise, middle + reach * share)

    def _predict(self, x: Tensor, index: int | Tensor, states: States) -> tuple[Tensor, Tensor]:
        """The guided noise, and the share of the variance with the condition; [N, d] float32 each."""
        outputs = self.outputs(x, index, states)
        if states.uncond is None or states.scale is None:
            noise, share = outputs.chunk(2, -1)
            return noise, share
        cond, uncond = outputs
        (noise, share), plain = cond.chunk(2, -1), uncond[:, : self.size]
        return plain + states.scale[:, None] * (noise - plain), share


def _conditioning(states: States) -> Tensor:
    """[N, W], or [2, N, W] with guidance: with and without the condition."""
    return states.cond if states.uncond is None else torch.stack((states.cond, states.uncond))


_MOST = 1000  # limit of steps


class FlowHead(TransitionHead):
    """NextStep-1's flow-matching head: a token's distribution as steps of a stochastic flow from noise.

    NextStep-1: Toward Autoregressive Image Generation with Continuous Tokens at Scale, https://arxiv.org/abs/2508.10711
    SiT: Exploring Flow and Diffusion-based Generative Models, https://arxiv.org/abs/2401.08740

        x_t = t token + (1-t) noise;  v(x_t, t) predicts token - noise;  score = (t v - x_t) / (1-t)
        step:  x += dt (v + w (1-t) score) + sqrt(2 w (1-t) dt) e
        times: u = 0, 1/T .. (T-1)/T, 1;  t = u / (shift - (shift-1) u);  guidance mixes velocities

    The marginals are those of the flow for every w: 1 as published beside the weights, 0 is Euler's method for the
    ordinary differential equation, in which x_T alone is random. Steps of w > 0 are Gaussian, so that paths have
    densities. The code that trains NextStep-1.1 has other noise, w (1-t) = 0.32 (1-t) / t, which is not supported.

    Deviates from the published code in half precision, where that rounds times to the model's dtype.
    """

    def __init__(self, network: MARHead, steps: int, *, noise: float = 1.0, shift: float = 1.0) -> None:
        """`noise` is w, `shift` shifts times. Raises ModelError unless 2 <= steps <= 1000, w >= 0 and shift > 0."""
        if not 2 <= steps <= _MOST:
            raise ModelError(f"a flow takes 2 to {_MOST} steps, got {steps}", "NextStep-1 is published with 20 to 50")
        if not (0 <= noise < math.inf and 0 < shift < math.inf):
            raise ModelError(f"noise must be at least 0 and the shift of times above 0, got {noise} and {shift}")
        self.noise, self.shift = float(noise), float(shift)
        u = torch.arange(steps + 1, dtype=torch.float64) / steps
        times = u / (self.shift - (self.shift - 1) * u)
        t, dt = times[:-1].flip(0), times.diff().flip(0)  # index 0 is the last step
        super().__init__(network, t.float())
        self._signal = t
        log_deviation = (2 * self.noise * (1 - t) * dt).log() / 2
        columns = (1 - self.noise * dt, dt * (1 + self.noise * t), log_deviation)
        self._columns = torch.stack(columns, 1).float().to(self._timesteps.device)  # [T, 3]

    @property
    def stochastic(self) -> bool:
        return self.noise > 0

    @property
    def signal(self) -> Tensor:
        return self._signal

    def respaced(self, steps: int) -> FlowHead:
        return self if steps == self.steps else FlowHead(self.network, steps, noise=self.noise, shift=self.shift)

    @torch.inference_mode()
    def distribution(self, x: Tensor, index: int | Tensor, states: States) -> Gaussian:
        velocity = self.outputs(x, index, states)
        if states.uncond is not None and states.scale is not None:
            cond, uncond = velocity
            velocity = uncond + states.scale[:, None] * (cond - uncond)
        of_point, of_velocity, log_deviation = self._columns[index].unsqueeze(-1).unbind(-2)
        return Gaussian(of_point * x + of_velocity * velocity, log_deviation.expand_as(x))


TRAINED = 1000  # steps that heads are trained with


@dataclass(frozen=True, slots=True, eq=False)
class Denoising:
    """The schedule of T transitions, [T] each, float64 on the CPU; index 0 is the last transition.

    Improved Denoising Diffusion Probabilistic Models, https://arxiv.org/abs/2102.09672

        alpha_bar(u) = cos^2((u + .008) / 1.008 * pi / 2),  beta_i = min(1 - alpha_bar((i+1)/n) / alpha_bar(i/n), .999)
        respaced to T steps: indices round(i (n-1) / (T-1)); beta_t = 1 - alpha_bar_t / alpha_bar_(t-1), over those kept
        mean of x_(t-1): (beta_t sqrt(alpha_bar_(t-1)) x0 + (1 - alpha_bar_(t-1)) sqrt(alpha_t) x_t) / (1 - alpha_bar_t)
        log variance: f log beta_t + (1 - f) log beta~_t,  f in [0, 1] from the network;
        beta~ of index 0 is that of index 1
    """

    timesteps: Tensor  # int64: which of the TRAINED steps each is; the network's input
    betas: Tensor
    alpha_bar: Tensor
    from_noise: Tensor  # x0 = x_t / sqrt(alpha_bar) - from_noise * noise
    of_clean: Tensor  # the mean's factor of x0 ...
    of_point: Tensor  # ... and of x_t
    log_most: Tensor  # log variance at f = 1 ...
    log_least: Tensor  # ... and at f = 0

    def __len__(self) -> int:
        return len(self.betas)


def denoising(steps: int, trained: int = TRAINED) -> Denoising:
    """The schedule over `steps` of the trained ones. Raises ModelError unless 2 <= steps <= trained."""
    if not 2 <= steps <= trained:
        raise ModelError(f"a head takes 2 to {trained} steps, got {steps}", "MAR is published with 100")
    every = np.cumprod(1 - _cosine(trained))
    stride = (trained - 1) / (steps - 1)
    timesteps = np.array([round(stride * i) for i in range(steps)])
    alpha_bar = every[timesteps]
    before = np.append(1.0, alpha_bar[:-1])
    betas = 1 - alpha_bar / before
    # The cumulative product of the new alphas, as implementations compute it: the last ones are tiny differences.
    alpha_bar = np.cumprod(1 - betas)
    before = np.append(1.0, alpha_bar[:-1])
    least = betas * (1 - before) / (1 - alpha_bar)
    least[0] = least[1]
    constants = {
        "betas": betas,
        "alpha_bar": alpha_bar,
        "from_noise": np.sqrt(1 / alpha_bar - 1),
        "of_clean": betas * np.sqrt(before) / (1 - alpha_bar),
        "of_point": (1 - before) * np.sqrt(1 - betas) / (1 - alpha_bar),
        "log_most": np.log(betas),
        "log_least": np.log(least),
    }
    tensors = {name: torch.from_numpy(value) for name, value in constants.items()}
    return Denoising(torch.from_numpy(timesteps), **tensors)


def _cosine(steps: int) -> np.ndarray:
    def alpha_bar(share: float) -> float:
        return math.cos((share + 0.008) / 1.008 * math.pi / 2) ** 2

    return np.array([min(1 - alpha_bar((i + 1) / steps) / alpha_bar(i / steps), 0.999) for i in range(steps)])
