"""The denoising schedule against diffusers' scheduler of the same process."""

from __future__ import annotations

import pytest
import torch
from diffusers import DDPMScheduler

from pardec.models.continuous.contracts import States
from pardec.models.continuous.diffusion_head import DiffusionHead, MARHead, denoising
from pardec.models.errors import ModelError


@pytest.mark.parametrize("steps", [2, 7, 100, 1000])
def test_transitions_are_those_of_diffusers(steps: int) -> None:
    """Means and variances equal diffusers', except the variance of the last transition, which diffusers sets to 0."""
    torch.manual_seed(0)
    theirs = DDPMScheduler(1000, beta_schedule="squaredcos_cap_v2", variance_type="learned_range", clip_sample=False)
    ours = denoising(steps)
    theirs.set_timesteps(timesteps=ours.timesteps.flip(0).tolist())
    network = MARHead(size=3, condition=5, width=16, depth=1).eval()
    head = DiffusionHead(network, steps)
    states = States(torch.randn(4, 16))
    for index in sorted({0, 1, steps // 2, steps - 2, steps - 1}):
        t = int(ours.timesteps[index])
        x = torch.randn(4, 3)
        distribution = head.distribution(x, index, states)
        with torch.inference_mode():
            cond = network(x, torch.tensor([t]), states.cond)
        alone = theirs.step(cond, t, x, generator=torch.Generator().manual_seed(1), return_dict=True)
        if index:
            noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
            torch.testing.assert_close(
                distribution.mean + distribution.deviation * noise, alone.prev_sample, rtol=2e-4, atol=2e-4
            )
        else:  # no noise
            torch.testing.assert_close(distribution.mean, alone.prev_sample, rtol=2e-4, atol=2e-4)


def test_an_index_for_each_token_is_an_index_for_all() -> None:
    torch.manual_seed(0)
    head = DiffusionHead(MARHead(size=3, condition=5, width=16, depth=2).eval(), 10)
    states = States(torch.randn(4, 16), torch.randn(4, 16), torch.tensor([1.0, 2.0, 0.5, 3.0]))
    x = torch.randn(4, 3)
    each = head.distribution(x, torch.tensor([9, 0, 4, 4]), states)
    for row, index in enumerate((9, 0, 4, 4)):
        one = head.distribution(x[row : row + 1], index, states[torch.tensor([row])])
        torch.testing.assert_close(each.mean[row], one.mean[0])
        torch.testing.assert_close(each.log_deviation[row], one.log_deviation[0])


@pytest.mark.parametrize("guided", [True, False])
@pytest.mark.parametrize("count", [1, 5, 40, 300])
def test_what_is_made_beforehand_gives_the_laws_of_each_transition(count: int, guided: bool) -> None:
    torch.manual_seed(0)
    head = DiffusionHead(MARHead(size=3, condition=5, width=16, depth=2).eval(), 12)
    cond, uncond, x = torch.randn(count, 16), torch.randn(count, 16), torch.randn(count, 3)
    states = States(cond, uncond, torch.linspace(0.5, 3, count)) if guided else States(cond)
    ready = head.ready(states)
    for index in (*range(11, -1, -1), 7, 0, 11):  # as they come in a walk, and in any order
        ours, plain = head.distribution(x, index, ready), head.distribution(x, index, states)
        torch.testing.assert_close(ours.mean, plain.mean, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(ours.log_deviation, plain.log_deviation, rtol=1e-4, atol=1e-5)
    some = ready[torch.arange(count - 1, -1, -2)]  # other conditions
    every = head.distribution(x.flip(0)[::2], 4, some)
    torch.testing.assert_close(every.mean, head.distribution(x, 4, states).mean.flip(0)[::2], rtol=1e-4, atol=1e-5)


def test_guidance_mixes_the_noise_and_leaves_the_variance() -> None:
    torch.manual_seed(0)
    head = DiffusionHead(MARHead(size=2, condition=5, width=16, depth=1).eval(), 10)
    cond, uncond, x = torch.randn(3, 16), torch.randn(3, 16), torch.randn(3, 2)
    plain, nothing = head.distribution(x, 4, States(cond)), head.distribution(x, 4, States(uncond))
    guided = head.distribution(x, 4, States(cond, uncond, torch.full((3,), 2.5)))
    torch.testing.assert_close(guided.mean, nothing.mean + 2.5 * (plain.mean - nothing.mean), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(guided.log_deviation, plain.log_deviation)


def test_ends_of_the_schedule() -> None:
    table = denoising(1000)
    assert table.timesteps.tolist() == list(range(1000))
    assert float(table.alpha_bar[0]) == pytest.approx(0.99995872, abs=1e-8)  # noise of deviation 0.0064 is left
    assert float(table.betas[-1]) == pytest.approx(0.999)
    assert float(denoising(100).alpha_bar[0]) == pytest.approx(float(table.alpha_bar[0]))
    for steps in (0, 1, 1001):
        with pytest.raises(ModelError, match="2 to 1000"):
            denoising(steps)
