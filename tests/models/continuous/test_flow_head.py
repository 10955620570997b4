"""The flow-matching head: its steps compared with the published formulas, its marginals, and its noise."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pardec.models.continuous.contracts import States
from pardec.models.continuous.diffusion_head import FlowHead, MARHead
from pardec.models.errors import ModelError
from pardec.samplers.ops.denoising_paths import denoise, rescore, trace, width
from tests.reference import naive_nextstep as naive


def network(seed: int = 0, *, size: int = 3) -> MARHead:
    generator = torch.Generator().manual_seed(seed)
    net = MARHead(size=size, condition=5, width=16, depth=2, outputs=size).eval().requires_grad_(False)
    for value in net.state_dict().values():
        value.copy_(torch.randn(value.shape, generator=generator) * 0.3)
    return net


def states(net: MARHead, count: int, *, guided: bool) -> tuple[States, Tensor, Tensor]:
    z, u = torch.randn(2, count, 5, generator=torch.Generator().manual_seed(1))
    own = States(net.cond_embed(z))
    if guided:
        own = replace(own, uncond=net.cond_embed(u), scale=torch.full((count,), 2.5))
    return own, z, u


@pytest.mark.parametrize("shift", [1.0, 3.2])
@pytest.mark.parametrize("guided", [False, True])
@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_a_token_is_that_of_the_published_formulas(shift: float, guided: bool, noise: float) -> None:
    net = network()
    head = FlowHead(net, 7, noise=noise, shift=shift)
    weights = {f"image_head.net.{name}": value for name, value in net.state_dict().items()}
    own, z, u = states(net, 4, guided=guided)
    e = torch.randn(4, width(head), generator=torch.Generator().manual_seed(2))
    expected = naive.sample(
        weights, z, u if guided else None, e.view(4, 8, 3), cfg=2.5, shift=shift, stochastic=noise > 0
    )
    torch.testing.assert_close(denoise(head, own, e, last="noise"), expected, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(trace(head, own, e).points[-1], expected, atol=2e-5, rtol=2e-5)


def test_tokens_at_steps_of_their_own_are_those_of_one_step() -> None:
    net = network()
    head = FlowHead(net, 6)
    own, _, _ = states(net, 4, guided=True)
    path = trace(head, own, torch.randn(4, width(head), generator=torch.Generator().manual_seed(2)))
    again = rescore(head, own, path)
    torch.testing.assert_close(again.means, path.means, atol=1e-5, rtol=1e-5)
    assert torch.equal(again.log_deviations, path.log_deviations)


class Straight(FlowHead):
    """A head with the exact velocity for tokens that are normal with mean z and deviation .5: E[token - noise | x_t].
    E[token - noise | x_t].
    """

    def outputs(self, x: Tensor, index: int | Tensor, states: States) -> Tensor:
        t = float(self.signal[int(index)])
        z, variance = states.cond, t**2 * 0.25 + (1 - t) ** 2
        return z + (x - t * z) * (t * 0.25 - (1 - t)) / variance


@pytest.mark.parametrize("noise", [0.0, 0.5, 1.0])
def test_the_marginals_do_not_depend_on_the_noise(noise: float) -> None:
    net = network(size=1)
    head = Straight(net, 400, noise=noise)
    head.ready = lambda own, every=1: own  # type: ignore[method-assign]
    count = 20_000
    e = torch.randn(count, width(head), generator=torch.Generator().manual_seed(5))
    tokens = denoise(head, States(torch.full((count, 1), 1.5)), e, last="noise")
    assert abs(float(tokens.mean()) - 1.5) < 0.02
    assert abs(float(tokens.std()) - 0.5) < 0.02


def test_steps_without_noise_have_no_densities() -> None:
    net = network()
    head = FlowHead(net, 4, noise=0.0)
    own, _, _ = states(net, 2, guided=False)
    assert not head.stochastic
    assert FlowHead(net, 4).stochastic
    assert bool((head.distribution(torch.zeros(2, 3), 1, own).log_deviation == -torch.inf).all())
    assert not head.respaced(9).stochastic
    assert head.respaced(9).steps == 9


def test_what_is_no_flow_is_refused() -> None:
    net = network()
    with pytest.raises(ModelError, match="2 to 1000 steps, got 1"):
        FlowHead(net, 1)
    with pytest.raises(ModelError, match="noise must be at least 0"):
        FlowHead(net, 5, noise=-0.1)
    with pytest.raises(ModelError, match="shift of times above 0"):
        FlowHead(net, 5, shift=0.0)
