"""Training of a model whose tokens are vectors: masks, the diffusion loss, evaluation, card.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838
Improved Denoising Diffusion Probabilistic Models, https://arxiv.org/abs/2102.09672
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from image_training.export import rounded, with_figures
from image_training.export_mar import export, loaded, network
from image_training.latents import Batch, LatentCorpus
from image_training.options import Options
from image_training.painted import painted_right
from image_training.run import Descent, device_of, muon_and_adamw
from pardec.images.classes import NAMES
from pardec.images.drawing import SIDE
from pardec.models.continuous.diffusion_head import TRAINED, denoising
from pardec.models.images.kl import load_kl

AUTOENCODER = "tiny-kl"
SHAPES: dict[str, dict[str, int]] = {
    "tiny-mar": {"width": 160, "depth": 4, "heads": 5, "diffloss_d": 3, "diffloss_w": 256},
    "tiny-mar-draft": {"width": 96, "depth": 1, "heads": 3, "diffloss_d": 2, "diffloss_w": 128},
}
BUFFER = 8  # positions that hold the class
DROPPED = 0.1  # share of the classes that are dropped
# The share of a picture that is masked: normal about 1 with this deviation, cut at 0 and 1. The paper's is 0.25, cut at
# 0.7; a model this small draws better where it has also seen nearly complete images.
SPREAD = 0.5
LOUD = 6.0  # see init_as_identity
LEVELS = 4  # levels of noise with which each token is trained per step
# The weight of a squared error is 1 / alpha_bar, at most this: drawing a token multiplies an error in nearly pure noise
# by 1 / sqrt(alpha_bar), so that every level then counts like an error of the token itself.
HEAVIEST = 1000.0
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples of this modulo 1 fill the range from 0 to 1 evenly


class MARRun(Descent):
    """Trains a model of classes; with a teacher, towards its predictions in addition to the noise itself."""

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        kl = load_kl(options.autoencoder or AUTOENCODER).to(device)
        shape = {**SHAPES[options.model], **options.shape}
        self.config: dict[str, Any] = {
            "model_type": "mar",
            "img_size": SIDE,
            "vae_stride": kl.downsample,
            "patch_size": 1,
            "vae_embed_dim": kl.channels,
            **{f"{half}_{what}": shape[key] for half in ("encoder", "decoder") for what, key in _HALVES.items()},
            "mlp_ratio": 4.0,
            "class_num": len(NAMES),
            "buffer_size": BUFFER,
            "diffloss_d": shape["diffloss_d"],
            "diffloss_w": shape["diffloss_w"],
            "num_sampling_steps": "100",
            "image_tokenizer": AUTOENCODER,
        }
        self.taught_by = loaded(options.teacher).to(device) if options.teacher else None
        model = network(self.config)
        initialise(model)
        if options.init:
            model.load_state_dict(loaded(options.init).state_dict())
        model = model.to(device)
        super().__init__(options, model)
        self.optimizers = muon_and_adamw(model, options.lr, within="blocks")
        schedule = denoising(TRAINED)
        names = ("alpha_bar", "from_noise", "of_clean", "log_most", "log_least")
        self.table = torch.stack([getattr(schedule, name) for name in names], 1).float().to(device)  # [T, 5]
        corpus = options.corpus or options.state / "corpus"
        self.corpus = LatentCorpus(corpus, kl, seed=options.seed, chunks=options.chunks)
        self.go_on()

    def passing(self) -> AbstractContextManager[Any]:
        return sdpa_kernel(SDPBackend.MATH)  # for so few tokens, half the time of PyTorch's choice on a CPU

    def loss_of(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The loss, and its part from the squared error of the noise."""
        rng = self.noise()
        rows, tokens, size = batch.latents.mean.shape
        latents = batch.latents.sample(torch.randn(rows, tokens, size, generator=rng)).to(self.device)
        labels = torch.where(torch.rand(rows, generator=rng) < DROPPED, -1, batch.labels).to(self.device)
        # One share for the whole step, as in the authors' code: no row is padded.
        masked = masked_of(self.step, tokens)
        order = torch.rand(rows, tokens, generator=rng).argsort(1)
        known = (order >= masked).to(self.device)
        # Each token is seen with one level of noise out of each part of the steps.
        part = torch.arange(LEVELS)[:, None]
        times = ((part + torch.rand(LEVELS, rows * masked, generator=rng)) * (TRAINED / LEVELS)).long().flatten()
        noise = torch.randn(len(times), size, generator=rng).to(self.device)
        times = times.clamp(max=TRAINED - 1).to(self.device)
        clean = latents[~known].repeat(LEVELS, 1)
        alpha_bar = self.table[times, :1]
        points = alpha_bar.sqrt() * clean + (1 - alpha_bar).sqrt() * noise
        said, share = self.predicted_noise(self.model, latents, known, labels, points, times)
        told = ((said - noise).square() / alpha_bar.clamp(min=1 / HEAVIEST)).mean()
        loss = told + self.bound(said.detach(), share, clean, points, times)
        if self.taught_by is not None:
            with torch.no_grad():
                better, _ = self.predicted_noise(self.taught_by, latents, known, labels, points, times)
            loss = loss + ((said - better).square() / alpha_bar.clamp(min=1 / HEAVIEST)).mean()
        return loss, told.detach()

    def predicted_noise(
        self, model: nn.Module, latents: Tensor, known: Tensor, labels: Tensor, points: Tensor, times: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The predicted noise in points [N, d] of unknown tokens, and shares of the variance; float32 [N, d] each."""
        with torch.autocast(self.device.type, torch.bfloat16):
            z = model.backbone(latents, known, labels)
            read = model.head.cond_embed(z[~known]).repeat(len(points) // int((~known).sum()), 1)
            noise, share = model.head(points, times, read).float().chunk(2, -1)
        return noise, share

    def bound(self, said: Tensor, share: Tensor, clean: Tensor, points: Tensor, times: Tensor) -> Tensor:
        """The variational bound, which trains only the variance; bits per number.

        Each transition's distribution is compared with the true one, the last one's with the token.
        """
        alpha_bar, from_noise, of_clean, most, least = self.table[times].unsqueeze(-1).unbind(1)
        guess = points / alpha_bar.sqrt() - from_noise * said
        share = (share + 1) / 2
        spread = share * most + (1 - share) * least
        last = times[:, None] == 0
        off = torch.where(last, clean - guess, of_clean * (clean - guess)).square()
        between = 0.5 * (spread - least - 1 + (least - spread).exp() + off * (-spread).exp())
        at_last = 0.5 * (math.log(2 * math.pi) + spread + off * (-spread).exp())
        return torch.where(last, at_last, between).mean() / math.log(2)

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        weights = {key: value.float() for key, value in rounded(self.average).items()}
        export(self.o.out, self.config, weights, self.card({}))
        count = self.o.pictures if final else max(1, self.o.pictures // 4)
        found = painted_right(self.o.out, count, decoder=self.o.autoencoder)
        self.curve.append({**self.point(), "right": found["right"]})
        export(self.o.out, self.config, weights, self.card(found))
        return found

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        before = {
            "started from": "random weights" if self.o.init is None else "the run before",
            "data": f"{self.o.chunks * self.corpus.size} images of one object, positions and backgrounds drawn evenly, "
            f"as {AUTOENCODER} latents sampled anew each time",
        }
        after = {
            "masks": "the masked share is drawn per step from a normal distribution (mean 1, deviation "
            f"{SPREAD:g}), cut at 0 and 1",
            "classes": f"{DROPPED:.0%} are dropped, for classifier-free guidance",
            "loss": f"squared error of the predicted noise at {LEVELS} noise levels per masked "
            f"token, one from each quarter of the {TRAINED} steps, divided by the share of signal (at most "
            f"{HEAVIEST:g}-fold) + the variational bound for the variance, in bits"
            + ("" if self.o.teacher is None else f" + squared distance to {self.o.teacher.name}'s prediction"),
        }
        card = self.described(before, after, optimizer="Muon for the blocks, AdamW for the rest", seen="images seen")
        return with_figures(card, found, of="classes", sampler="mar")


_HALVES = {"embed_dim": "width", "depth": "depth", "num_heads": "heads"}


def masked_of(step: int, tokens: int) -> int:
    """The number of tokens that `step` masks, 1 to `tokens`: evenly spread quantiles of the distribution of shares."""
    normal = torch.distributions.Normal(0.0, 1.0)
    lowest = float(normal.cdf(torch.tensor(-1 / SPREAD)))
    even = ((step + 0.5) * GOLDEN) % 1.0
    share = 1 + SPREAD * float(normal.icdf(torch.tensor(lowest + even * (0.5 - lowest))))
    return max(1, min(tokens, math.ceil(tokens * share)))


def initialise(model: nn.Module) -> None:
    """Initializes the weights; the modulation of the head's blocks, and its output, start at zero.

    Classes and places are ten times what the authors start with, so that they count from the first step on.
    """
    for name, value in model.named_parameters():
        if "adaLN_modulation" in name or "final_layer.linear" in name or name.endswith("bias"):
            nn.init.zeros_(value)
        elif value.ndim == 3 or name.endswith(("class_emb.weight", "fake_latent")):
            nn.init.normal_(value, std=0.2)
        elif value.ndim == 2:
            nn.init.xavier_uniform_(value)
    init_as_identity(model.head)


@torch.no_grad()
def init_as_identity(head: nn.Module) -> None:
    """Makes the head initially predict that a point is pure noise, which is nearly right at most levels.

    Sampling multiplies errors in nearly pure noise by hundreds, and a norm lies between point and answer: the point is
    the input twice, once negated, next to constants of LOUD times its size, with which the norm is nearly constant.
    """
    size, width = head.size, head.input_proj.weight.shape[0]
    one = torch.eye(size)
    head.input_proj.weight.zero_()
    head.input_proj.weight[: 2 * size] = torch.cat((one, -one))
    head.input_proj.bias[2 * size :] = LOUD * (1 - 2 * (torch.arange(width - 2 * size) % 2))
    spread = math.sqrt((2 * size + LOUD**2 * (width - 2 * size)) / width)
    head.final_layer.linear.weight[:size, : 2 * size] = torch.cat((one, -one), 1) * spread / 2
