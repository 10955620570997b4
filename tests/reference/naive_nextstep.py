"""A plain version of NextStep-1's sampling: no cache, one image, transformers' decoder, and the head written out.

The formulas are those of the code that its authors publish with the weights.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
_HEAD = "image_head.net."


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])


def velocity(weights: Weights, x: Tensor, t: float, c: Tensor) -> Tensor:
    """The velocities [N, d] of points x [N, d] at time t, under conditions c [N, E]."""

    def own(name: str, value: Tensor) -> Tensor:
        return linear(weights, _HEAD + name, value)

    rate = torch.exp(-math.log(10000.0) * torch.arange(128) / 128)
    angle = torch.full((len(x), 1), t) * rate
    waves = torch.cat((torch.cos(angle), torch.sin(angle)), 1)
    y = own("time_embed.mlp.2", F.silu(own("time_embed.mlp.0", waves))) + own("cond_embed", c)
    h = own("input_proj", x)
    depth = sum(name.endswith("in_ln.weight") for name in weights)
    for block in range(depth):
        stem = f"res_blocks.{block}."
        shift, scale, gate = own(stem + "adaLN_modulation.1", F.silu(y)).chunk(3, 1)
        norm = [weights[f"{_HEAD}{stem}in_ln.{part}"] for part in ("weight", "bias")]
        inner = F.layer_norm(h, h.shape[-1:], *norm, eps=1e-6) * (1 + scale) + shift
        h = h + gate * own(stem + "mlp.2", F.silu(own(stem + "mlp.0", inner)))
    shift, scale = own("final_layer.adaLN_modulation.1", F.silu(y)).chunk(2, 1)
    return own("final_layer.linear", F.layer_norm(h, h.shape[-1:], eps=1e-6) * (1 + scale) + shift)


def times(steps: int, shift: float) -> list[float]:
    """The time at which each step begins, and 1 at the end."""
    even = torch.linspace(0, 1, steps + 1)[:-1]
    return [*(even / (shift - (shift - 1) * even)).tolist(), 1.0]


def sample(
    weights: Weights,
    cond: Tensor,
    uncond: Tensor | None,
    noise: Tensor,
    *,
    cfg: float = 1.0,
    shift: float = 1.0,
    stochastic: bool = True,
) -> Tensor:
    """Tokens [N, d] from `noise` [N, T + 1, d]; without `stochastic`, by Euler's method for the flow itself."""
    steps = noise.shape[1] - 1
    grid, x = times(steps, shift), noise[:, 0]
    for number, (start, stop) in enumerate(pairwise(grid), 1):
        v = velocity(weights, x, start, cond)
        if uncond is not None:
            plain = velocity(weights, x, start, uncond)
            v = plain + cfg * (v - plain)
        dt = stop - start
        if not stochastic:
            x = x + v * dt
            continue
        variance = (1 - start) ** 2 + start * (1 - start)
        score = (start * v - x) / variance
        x = x + (v + (1 - start) * score) * dt + math.sqrt(2 * (1 - start)) * math.sqrt(dt) * noise[:, number]
    return x


def states(model: Any, weights: Weights, prompt: list[int], tokens: Tensor, *, use_norm: bool = False) -> Tensor:
    """The projected outputs [n + 1, E] after a prompt and after each of n `tokens` [n, d]."""
    if use_norm:
        tokens = F.layer_norm(tokens, tokens.shape[-1:], eps=1e-6)
    words = model.get_input_embeddings()(torch.tensor(prompt))
    inputs = torch.cat((words, linear(weights, "image_in_projector", tokens)))
    outputs = model.model(inputs_embeds=inputs[None]).last_hidden_state[0, len(prompt) - 1 :]
    return linear(weights, "image_out_projector", outputs)


@torch.no_grad()
def generate(
    model: Any,
    weights: Weights,
    prompt: list[int],
    away: list[int] | None,
    noise: Tensor,
    *,
    cfg: float = 1.0,
    use_norm: bool = False,
    **more: Any,
) -> Tensor:
    """An image [S, d], token by token, from `noise` [S, T + 1, d]; `away` is the negative prompt of guidance."""
    tokens = torch.zeros(0, noise.shape[-1])
    for own in noise:
        cond = states(model, weights, prompt, tokens, use_norm=use_norm)[-1:]
        uncond = None if away is None else states(model, weights, away, tokens, use_norm=use_norm)[-1:]
        tokens = torch.cat((tokens, sample(weights, cond, uncond, own[None], cfg=cfg, **more)))
    return tokens


def unpatched(tokens: Tensor, grid: tuple[int, int], patch: int) -> Tensor:
    """The latents [1, c, h, w] of tokens [S, c p p]."""
    (rows, columns), channels = grid, tokens.shape[1] // patch**2
    x = tokens.reshape(1, rows, columns, channels, patch, patch)
    return torch.einsum("nhwcpq->nchpwq", x).reshape(1, channels, rows * patch, columns * patch)
