"""Training of the tokenizer of several scales: steps, evaluation, card."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from image_training import data
from image_training.evaluate import fresh_of_classes
from image_training.export import rounded
from image_training.export_var import export_tokenizer
from image_training.multiscale import features, quantize, start_from, tokenizer
from image_training.options import Options
from image_training.run import Training, device_of
from pardec.images.classes import score
from pardec.models.images.kl import load_kl
from pardec.models.images.vq import to_images, to_pixels
from pardec.models.scales.tokenizer import MultiScaleVQ

AUTOENCODER = "tiny-kl"  # whose network this one starts from
GATHER = 16  # batches that the first codebook is made of
ROUNDS = 12  # rounds of k-means each time
CODES, COMMIT = 1.0, 0.25  # weights of the distances of sums to features, and of features to sums
SQUARED = 4.0  # weight of the squared error beside the absolute one: edges and colours count more than texture
CUT = 0.3  # share of the images decoded from some scales only, so that coarse scales learn what matters most
KEPT, DEAD, EVERY = 0.98, 0.05, 25  # as DECAY, DEAD and EVERY of codebook.py
REVIVE_UNTIL = 0.6  # share of the run after which no code is restarted
WHOLE = "whole"  # folder in the state folder: the export with its encoder, for training a model on its codes
TOGETHER = 36  # images at a time


class MultiScaleRun(Training):
    """Trains a tokenizer of several scales, from the network of a KL autoencoder."""

    kept = (*Training.kept, "revived", "count")

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        model = tokenizer(options.shape)
        start_from(model, load_kl(options.autoencoder or AUTOENCODER))
        super().__init__(options, model.to(device))
        self.model: MultiScaleVQ
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)]
        self.count = torch.ones(model.vocab)
        self.revived = 0
        self.go_on()

    def images(self, step: int) -> Tensor:
        """The images of a step, [B, 3, S, S] in [-1, 1]."""
        rng = random.Random(f"scales/{self.o.seed}/{step}")
        return to_pixels(data.of_classes(rng, self.o.batch)[1]).to(self.device)

    def features(self, pixels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return features(self.model, pixels).float()

    @torch.no_grad()
    def init_codebook(self) -> None:
        """Initializes the codebook at clusters of pooled residuals, three times, since residuals depend on it."""
        weight = self.model.codebook.weight
        goal = torch.cat([self.features(self.images(self.step + i)) for i in range(GATHER)])
        pools = [self.model.map_of(goal, scale) for scale in range(len(self.model.scales))]
        for _ in range(3):
            points = torch.cat([pool.flatten(0, 1) for pool in pools])
            weight.copy_(kmeans(points, len(weight), self.noise()))
            pools = quantize(self.model, goal)[2]
        self.average.update({key: value.clone() for key, value in self.model.state_dict().items()})

    def take(self) -> Tensor:
        if self.step == 0:
            self.init_codebook()
        pixels, rng = self.images(self.step), self.noise()
        seen = self.features(pixels)
        codes, sums, pools = quantize(self.model, seen)
        goal = seen.detach()
        apart = torch.stack([CODES * F.mse_loss(one, goal) + COMMIT * F.mse_loss(seen, one.detach()) for one in sums])
        scales = len(sums)
        cut = torch.randint(scales - 1, (len(pixels),), generator=rng)
        cut = torch.where(torch.rand(len(pixels), generator=rng) < CUT, cut, scales - 1)
        chosen = torch.stack(sums)[cut, torch.arange(len(pixels))]
        with torch.autocast(self.device.type, torch.bfloat16):
            # The encoder gets the straight-through gradient.
            images = self.model.decoder(self.model.post_quant_conv(chosen + seen - goal)).float()
        error = images - pixels
        reconstruction = error.abs().mean() + SQUARED * error.square().mean()
        self.descend(reconstruction + apart.mean(), self.model.parameters())
        self.watch(codes, pools, rng)
        return reconstruction.detach()

    @torch.no_grad()
    def watch(self, codes: list[Tensor], pools: list[Tensor], rng: torch.Generator) -> None:
        """Counts the use of codes, and moves rarely used ones to randomly drawn residuals."""
        flat = torch.cat(codes, 1).flatten()
        share = torch.bincount(flat, minlength=len(self.count)).float().cpu() * (len(self.count) / len(flat))
        self.count.lerp_(share, 1 - KEPT)
        if self.step % EVERY or not self.step or self.progress() > REVIVE_UNTIL:
            return
        dead = self.count < DEAD
        number = int(dead.sum())
        if number:
            points = torch.cat([pool.flatten(0, 1) for pool in pools])
            rows = torch.randint(len(points), (number,), generator=rng)
            self.model.codebook.weight[dead] = points[rows]
            self.count[dead] = 1.0
            self.revived += number

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        model = MultiScaleVQ(self.model.shape, self.model.scales)
        model.load_state_dict({key: value.float() for key, value in rounded(self.average).items()})
        model.eval().requires_grad_(False)
        result = reconstruction(model, self.o.pictures if final else max(1, self.o.pictures // 4))
        self.curve.append({**self.point(), **{key: result[key] for key in ("right", "error", "codes_used")}})
        export_tokenizer(self.o.state / WHOLE, model, self.card(result))
        export_tokenizer(self.o.out, model, self.card(result), encoder=False)
        return {**result, "revived": self.revived}

    def card(self, result: dict[str, Any]) -> dict[str, Any]:
        before = {
            "started from": f"{AUTOENCODER}'s encoder and decoder, and k-means of residuals for the codebook",
            "data": "images of one object, classes, positions and backgrounds drawn evenly, on the fly",
        }
        after = {
            "codebook": f"learned by its gradient; unused codes are restarted ({self.revived} were)",
            "loss": f"absolute error + {SQUARED:g} squared error of the image, of {CUT:.0%} of the images decoded from "
            f"their first scales alone + {CODES:g} squared distance of every scale's sum to the features + {COMMIT:g} "
            "of the features to the sums",
        }
        return {**self.described(before, after), "reconstruction": result}


def kmeans(points: Tensor, count: int, rng: torch.Generator) -> Tensor:
    """`count` centres of points [n, C], [count, C]."""
    centres = points[torch.randperm(len(points), generator=rng)[:count]].clone()
    for _ in range(ROUNDS):
        nearest = (centres.square().sum(1) - 2 * points @ centres.T).argmin(1)
        used = torch.bincount(nearest, minlength=count)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        empty = used == 0
        total[empty] = points[torch.randint(len(points), (int(empty.sum()),), generator=rng)]
        centres = total / used.clamp(min=1)[:, None]
    return centres


@torch.inference_mode()
def reconstruction(model: MultiScaleVQ, count: int) -> dict[str, Any]:
    """How often reconstructions of fresh images of classes show their class; from the first scales alone too."""
    labels, pictures = fresh_of_classes(count)
    scales = len(model.scales)
    used = np.zeros(model.vocab, np.int64)
    back: list[list[np.ndarray]] = [[] for _ in range(scales)]
    for start in range(0, count, TOGETHER):
        codes, sums, _ = quantize(model, features(model, to_pixels(pictures[start : start + TOGETHER])))
        used += np.bincount(torch.cat(codes, 1).flatten().numpy(), minlength=len(used))
        for images, total in zip(back, sums, strict=True):
            images.append(to_images(model.pixels(total)))
    right = [float(np.mean([one.right for one in score(np.concatenate(images), labels)])) for images in back]
    share = used[used > 0] / used.sum()
    error = np.abs(np.concatenate(back[-1]).astype(np.float32) - pictures).mean()
    return {
        "pictures": count,
        "right": right[-1],
        "right_by_scale": [round(value, 3) for value in right],
        "originals_right": float(np.mean([one.right for one in score(pictures, labels)])),
        "error": round(float(error), 2),
        "codes_used": int((used > 0).sum()),
        "code_entropy_nats": round(float(-(share * np.log(share)).sum()), 3),
    }
