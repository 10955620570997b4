"""Training of the image tokenizer: steps, evaluation, card."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from image_training import codebook, data
from image_training.evaluate import reconstruction
from image_training.export import export, rounded
from image_training.options import Options
from image_training.run import Training, device_of
from pardec.models.images.vq import VQ, VQShape, to_pixels

SHAPE: dict[str, Any] = {
    "codebook_size": 256,
    "codebook_embed_dim": 8,
    "z_channels": 64,
    "ch": 32,
    "ch_mult": (1, 1, 2),
    "num_res_blocks": 1,
}
PLAIN = 400  # steps that train the network alone, before features are rounded to codes ...
SOFT = 0.1  # ... with noise of this length added, so that nearby features mean the same
GATHER = 24  # batches that the first codebook is made of
REVIVE_UNTIL = 0.6  # share of the run after which no code is restarted
COMMIT = 0.25  # weight of the distance between features and their codes
SQUARED = 4.0  # weight of the squared error beside the absolute one: edges and colours count more than texture


class TokenizerRun(Training):
    """Trains an image tokenizer."""

    kept = (*Training.kept, "revived")

    def __init__(self, options: Options) -> None:
        device = device_of(options)
        model = VQ(VQShape(**{**SHAPE, **options.shape})).to(device)
        model.codebook.requires_grad_(False)
        super().__init__(options, model)
        self.model: VQ
        trained = [value for value in model.parameters() if value.requires_grad]
        self.optimizers = [torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)]
        self.codes = codebook.Averages(model.codebook.weight.data)
        self.revived = 0
        self.go_on()

    def parts(self) -> dict[str, Any]:
        return {**super().parts(), "codes": self.codes}

    def ready(self) -> bool:
        return self.step > PLAIN

    def images(self, step: int) -> Tensor:
        """The images of a step, [B, 3, S, S] in [-1, 1]."""
        return to_pixels(data.batch(self.o.seed, step, self.o.batch)[1]).to(self.device)

    def features(self, pixels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.model.features(pixels)

    @torch.no_grad()
    def init_codebook(self) -> None:
        """Initializes the codebook at clusters of the features of coming batches."""
        some = [self.features(self.images(self.step + i)) for i in range(GATHER)]
        points = torch.cat([rearrange(part, "b c h w -> (b h w) c") for part in some]).cpu()
        rows = codebook.kmeans(points, self.model.shape.codebook_size, self.noise()).to(self.device)
        self.model.codebook.weight.copy_(rows)
        self.average["codebook.weight"].copy_(rows)
        self.codes = codebook.Averages(rows)

    def take(self) -> Tensor:
        if self.step == PLAIN:
            self.init_codebook()
        pixels = self.images(self.step)
        features = self.features(pixels)
        flat = rearrange(features, "b c h w -> (b h w) c")
        if self.step < PLAIN:
            noise = torch.randn(features.shape, generator=self.noise()).to(self.device)
            vectors, apart = F.normalize(features + SOFT * noise, dim=1), features.new_zeros(())
        else:
            with torch.no_grad():
                codes = self.model.nearest(features)
                quantized = self.model.vectors(codes)
            apart = (features - quantized).square().sum(1).mean()
            vectors = features + (quantized - features).detach()
        with torch.autocast(self.device.type, torch.bfloat16):
            made = self.model.pixels(vectors)
        error = made - pixels
        loss = error.abs().mean() + SQUARED * error.square().mean() + COMMIT * apart
        self.descend(loss, self.model.parameters())
        if self.step >= PLAIN:
            self.model.codebook.weight.copy_(self.codes.update(flat.detach(), codes.flatten()))
            if self.step % codebook.EVERY == 0 and self.progress() < REVIVE_UNTIL:
                self.revived += self.codes.revive(flat.detach(), self.noise())
        return loss.detach()

    # -- what comes out ----------------------------------------------------------------------------------------

    def evaluate(self, final: bool) -> dict[str, Any]:
        model = VQ(self.model.shape)
        model.load_state_dict({key: value.float() for key, value in rounded(self.average).items()})
        model.eval().requires_grad_(False)
        found = reconstruction(model, self.o.pictures if final else max(1, self.o.pictures // 5))
        self.curve.append({**self.point(), **{key: found[key] for key in ("right", "error", "codes_used")}})
        export(self.o.out, model, self.card(found))
        return {**found, "revived": self.revived}

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        before = {
            "data": "images of captions of the train split, drawn on the fly",
        }
        after = {
            "first": f"{PLAIN} steps without a codebook, then k-means for the first one",
            "codebook": f"moving averages (decay {codebook.DECAY}); unused codes are restarted ({self.revived} were)",
            "loss": f"absolute error + {SQUARED:g} squared error + {COMMIT:g} distance of features to their codes",
        }
        return {**self.described(before, after), "reconstruction": found}
