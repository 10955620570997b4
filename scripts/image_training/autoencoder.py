"""Training of the KL autoencoder: steps, evaluation, card."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from image_training import data
from image_training.evaluate import kept
from image_training.export import export_kl, rounded
from image_training.options import Options
from image_training.run import Training, device_of
from pardec.models.images.kl import KL, KLShape
from pardec.models.images.vq import to_pixels

SHAPE: dict[str, Any] = {"embed_dim": 16, "ch": 32, "ch_mult": (1, 1, 2, 2), "num_res_blocks": 1, "attention": (3,)}
SQUARED = 4.0  # weight of the squared error beside the absolute one: edges and colours count more than texture
# Weight of the divergence of latents' distributions from standard normal ones, in nats per number of the picture. Much
# more than latent diffusion's 1e-6: latents with small errors then lie within those that were decoded in training.
NARROW = 0.01
QUIET = -8.0  # initial log variance of latents, so small that the decoder uses them from the first step on
FREE, RISING = 300, 700  # steps with a weight of 0, then steps in which it rises: else the latents collapse at first
MEASURED = 512  # images that the scale of the latents is measured on


class AutoencoderRun(Training):
    """Trains a KL autoencoder. Its scale is 1 until it is exported.

    Never compiled: in torch 2.13 on a CPU, no gradient reaches what lies before the decoder's last levels then.
    """

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        model = KL(KLShape(**{**SHAPE, **options.shape}), scale=1.0)
        nn.init.constant_(model.network.quant_conv.bias[model.channels :], QUIET)
        super().__init__(options, model.to(device))
        self.model: KL
        weights = self.model.parameters()
        self.optimizers = [torch.optim.AdamW(weights, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)]
        self.go_on()

    def images(self, step: int) -> Tensor:
        """The images of a step, [B, 3, S, S] in [-1, 1]."""
        return to_pixels(data.batch(self.o.seed, step, self.o.batch)[1]).to(self.device)

    def remade(self, pixels: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images decoded from sampled latents, and the latents' means and deviations."""
        found = self.model.encode(pixels)
        return self.model.decode(found.sample(noise)), found.mean, found.deviation

    def take(self) -> Tensor:
        pixels = self.images(self.step)
        cells = [side // self.model.downsample for side in pixels.shape[2:]]
        noise = torch.randn(len(pixels), *cells, self.model.channels, generator=self.noise()).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            made, mean, deviation = self.remade(pixels, noise)
        error = made - pixels
        reconstruction = error.abs().mean() + SQUARED * error.square().mean()
        weight = NARROW * min(1.0, max(0.0, (self.step - FREE) / RISING))
        loss = reconstruction + weight * apart(mean, deviation) / pixels.numel()
        self.descend(loss, self.model.parameters())
        return reconstruction.detach()

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        model = KL(self.model.shape, scale=1.0)
        model.load_state_dict({key: value.float() for key, value in rounded(self.average).items()})
        model.eval().requires_grad_(False)
        model.scale = round(1 / spread(model), 4)
        found = kept(model, self.o.pictures if final else max(1, self.o.pictures // 5))
        self.curve.append({**self.point(), **{key: found[key] for key in ("right", "right_sampled", "error")}})
        export_kl(self.o.out, model, self.card(found, model.scale))
        return {**found, "scale": model.scale}

    def card(self, found: dict[str, Any], scale: float) -> dict[str, Any]:
        before = {
            "data": "images of captions of the train split, drawn on the fly",
        }
        after = {
            "loss": f"absolute error + {SQUARED:g} squared error of the image decoded from sampled latents "
            f"+ {NARROW:g} KL divergence of the latents from a standard normal distribution, in nats "
            "per value of the image",
            "scale": f"{scale:g}, which brings sampled latents of {MEASURED} images to unit standard deviation",
        }
        return {**self.described(before, after), "reconstruction": found}


def apart(mean: Tensor, deviation: Tensor) -> Tensor:
    """KL divergence of normal distributions from the standard one, in nats, summed."""
    return (0.5 * (mean.square() + deviation.square() - 1) - deviation.log()).sum()


@torch.inference_mode()
def spread(model: KL) -> float:
    """The standard deviation of sampled latents of training images."""
    pixels = to_pixels(data.batch(0, 0, MEASURED)[1])
    found = [model.encode(some) for some in pixels.split(64)]
    mean, deviation = (torch.cat([getattr(part, name) for part in found]) for name in ("mean", "deviation"))
    return float((mean.var() + deviation.square().mean()).sqrt())
