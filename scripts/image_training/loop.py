"""The training loop of the image tokenizer: state, schedule, steps, evaluation."""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from image_training import codebook, data
from image_training.evaluate import reconstruction
from image_training.export import SUMMARY, export, rounded
from image_training.options import Options
from pardec.models.vision.vq import VQ, to_pixels
from pardec.models.vision.vq_shape import VQShape

SHAPE: dict[str, Any] = {
    "codebook_size": 256,
    "codebook_embed_dim": 8,
    "z_channels": 64,
    "ch": 32,
    "ch_mult": (1, 1, 2),
    "num_res_blocks": 1,
}
SAVE_EVERY = 120.0  # seconds
WARMUP = 100  # steps
DECAY_FROM = 0.35  # share of the run after which the learning rate falls, linearly to FLOOR
FLOOR = 0.02
AVERAGE = 0.998  # decay of the moving average of the weights
PLAIN = 400  # steps that train the network alone, before features are rounded to codes ...
SOFT = 0.1  # ... with noise of this length added, so that nearby features mean the same
GATHER = 24  # batches that the first codebook is made of
REVIVE_UNTIL = 0.6  # share of the run after which no code starts anew
COMMIT = 0.25  # weight of the distance between features and their codes
SQUARED = 4.0  # weight of the squared error beside the absolute one: edges and colours count more than texture


class Run:
    """One training run. `stop()` ends it after the step in progress, with its state saved."""

    def __init__(self, options: Options) -> None:
        self.o, self.name = options, options.model
        torch.set_num_threads(options.threads)
        wanted = options.device
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
        torch.manual_seed(options.seed)
        self.model = VQ(VQShape(**{**SHAPE, **options.shape})).to(self.device)
        self.model.codebook.requires_grad_(False)
        trained = [value for value in self.model.parameters() if value.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=options.lr, betas=(0.9, 0.95), weight_decay=0.01)
        self.codes = codebook.Averages(self.model.codebook.weight.data)
        self.average = {key: value.detach().clone() for key, value in self.model.state_dict().items()}
        self.step = self.revived = 0
        self.seconds, self.loss = 0.0, float("nan")
        self.curve: list[dict[str, float]] = []
        self.stopping = False
        options.state.mkdir(parents=True, exist_ok=True)
        if (options.state / "state.pt").exists() and not options.fresh:
            self._restore()

    def stop(self) -> None:
        self.stopping = True

    # -- state -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        state: dict[str, Any] = {
            k: getattr(self, k) for k in ("step", "revived", "seconds", "loss", "curve", "average")
        }
        state |= {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        state["codes"] = self.codes.state()
        path = self.o.state / "state.pt"
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def _restore(self) -> None:
        state = torch.load(self.o.state / "state.pt", map_location=self.device, weights_only=True)
        self.model.load_state_dict(state.pop("model"))
        self.optimizer.load_state_dict(state.pop("optimizer"))
        self.codes.load(state.pop("codes"))
        for key, value in state.items():
            setattr(self, key, value)

    # -- steps -------------------------------------------------------------------------------------------------

    def progress(self) -> float:
        """Share of the run that is behind, 0 to 1."""
        if self.o.steps is not None:
            return min(1.0, self.step / max(1, self.o.steps))
        return min(1.0, self.seconds / (60 * (self.o.minutes or 0) + 1e-9))

    def rate(self) -> float:
        """Factor on the peak learning rate: warm-up, plateau, linear decay."""
        left = (1 - self.progress()) / (1 - DECAY_FROM)
        return min(1.0, (self.step + 1) / WARMUP) * max(FLOOR, min(1.0, left))

    def pictures(self, step: int) -> Tensor:
        """What a step sees, [B, 3, S, S] in [-1, 1]."""
        return to_pixels(data.batch(self.o.seed, step, self.o.batch)[1]).to(self.device)

    def noise(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)

    def features(self, pixels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16):
            return self.model.features(pixels)

    @torch.no_grad()
    def found_codebook(self) -> None:
        """Put the first codebook where features of coming batches gather."""
        some = [self.features(self.pictures(self.step + i)) for i in range(GATHER)]
        points = torch.cat([rearrange(part, "b c h w -> (b h w) c") for part in some]).cpu()
        rows = codebook.kmeans(points, self.model.shape.codebook_size, self.noise()).to(self.device)
        self.model.codebook.weight.copy_(rows)
        self.average["codebook.weight"].copy_(rows)
        self.codes = codebook.Averages(rows)

    def take(self) -> float:
        """One optimizer step; its loss."""
        if self.step == PLAIN:
            self.found_codebook()
        for group in self.optimizer.param_groups:
            group["lr"] = self.o.lr * self.rate()
        pixels = self.pictures(self.step)
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
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.step >= PLAIN:
            self.model.codebook.weight.copy_(self.codes.update(flat.detach(), codes.flatten()))
            if self.step % codebook.EVERY == 0 and self.progress() < REVIVE_UNTIL:
                self.revived += self.codes.revive(flat.detach(), self.noise())
        self.step += 1
        keep = min(AVERAGE, self.step / (self.step + 10))
        current = self.model.state_dict()
        torch._foreach_lerp_(list(self.average.values()), [current[key] for key in self.average], 1 - keep)
        return loss.item()

    # -- the run -----------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Until the run's length, or `stop()`. An interrupted run exports nothing."""
        clock = saved = time.monotonic()
        noted = self.seconds
        next_eval = self.seconds + 60 * self.o.every
        while not self.stopping and self.progress() < 1:
            loss = self.take()
            self.loss = loss if self.loss != self.loss else 0.98 * self.loss + 0.02 * loss
            now = time.monotonic()
            self.seconds, clock = self.seconds + now - clock, now
            if self.seconds - noted > 20:
                noted = self.seconds
                self.log({})
            if now - saved > SAVE_EVERY:
                self.save()
                saved = now
            if self.seconds > next_eval and self.step > PLAIN:
                self.evaluate(final=False)
                next_eval = self.seconds + 60 * self.o.every
                clock = time.monotonic()
        self.save()
        if not self.stopping:
            self.evaluate(final=True)
            self.save()

    def evaluate(self, final: bool) -> None:
        """Measure the weights as they are exported, log, export; the time it takes does not count as training."""
        started = time.monotonic()
        model = VQ(self.model.shape)
        model.load_state_dict({key: value.float() for key, value in rounded(self.average).items()})
        model.eval().requires_grad_(False)
        found = reconstruction(model, self.o.pictures if final else max(1, self.o.pictures // 5))
        self.log({**found, "eval_s": round(time.monotonic() - started, 1)})
        point = {"seconds": round(self.seconds), "step": self.step, "loss": round(self.loss, 4)}
        self.curve.append({**point, **{key: found[key] for key in ("right", "error", "codes_used")}})
        export(self.o.out, model, self.card(found))

    def log(self, extra: dict[str, Any]) -> None:
        line = {"seconds": round(self.seconds, 1), "step": self.step, "loss": round(self.loss, 4)}
        line |= {"rate": round(self.rate(), 4), "revived": self.revived} | extra
        with (self.o.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        recipe = {
            "script": "scripts/train_image.py",
            "data": "pictures of captions of the train split, drawn on the fly",
            "pictures a step": self.o.batch,
            "steps": self.step,
            "pictures": self.step * self.o.batch,
            "first": f"{PLAIN} steps without a codebook, then k-means for the first one",
            "codebook": f"moving averages (decay {codebook.DECAY}); unused codes start anew, {self.revived} did",
            "loss": f"absolute error + {SQUARED:g} squared error + {COMMIT:g} distance of features to their codes",
            "optimizer": f"AdamW, peak learning rate {self.o.lr:g}, linear decay",
            "seconds": round(self.seconds),
            "device": self.device.type,
            "precision": "float32 weights, bfloat16 products",
            "exported": f"moving average over steps (decay {AVERAGE}) in bfloat16",
            "seed": self.o.seed,
        }
        head = {"name": self.name, "summary": SUMMARY[self.name]}
        size = sum(value.numel() for value in self.model.parameters())
        return head | {"parameters": size, "recipe": recipe, "reconstruction": found, "curve": self.curve}
