"""NextStep-1's flow-matching head: the distribution of a token, as steps of a stochastic flow from noise.

NextStep-1: Toward Autoregressive Image Generation with Continuous Tokens at Scale, https://arxiv.org/abs/2508.10711
SiT: Exploring Flow and Diffusion-based Generative Models, https://arxiv.org/abs/2401.08740

    x_t = t token + (1-t) noise;  v(x_t, t) predicts token - noise;  score = (t v - x_t) / (1-t)
    step:  x += dt (v + w (1-t) score) + sqrt(2 w (1-t) dt) e
    times: u = 0, 1/T .. (T-1)/T, 1;  t = u / (shift - (shift-1) u);  guidance mixes velocities

The marginals are those of the flow for every w: 1 as published beside the weights, 0 is Euler's method for the ordinary
differential equation, in which x_T alone is random. Steps of w > 0 are Gaussian, so that paths have densities. The code
that trains NextStep-1.1 has other noise, w (1-t) = 0.32 (1-t) / t, which is not supported.

Deviates from the published code in half precision, where that rounds times to the model's dtype.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import ModelError
from .contracts import Gaussian, States
from .diffusion_head import MARHead, TransitionHead

_MOST = 1000  # limit of steps


class FlowHead(TransitionHead):
    """A network that predicts velocities, over steps of a flow."""

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
