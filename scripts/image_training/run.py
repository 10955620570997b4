"""The base of every training run: state, schedule, clock, evaluations."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from until_done import Stopwatch

from image_training.export import SUMMARY
from image_training.options import Options

SAVE_EVERY = 120.0  # seconds
WARMUP = 100  # steps
DECAY_FROM = 0.35  # share of the run after which the learning rate falls, linearly to FLOOR
FLOOR = 0.02
AVERAGE = 0.998  # decay of the moving average of the weights


class Training(ABC):
    """One training run. `stop()` ends it after the step in progress, with its state saved."""

    kept: tuple[str, ...] = ("step", "seconds", "loss", "curve", "average")  # attributes that are state

    def __init__(self, options: Options, model: nn.Module) -> None:
        self.o, self.name, self.model = options, options.model, model
        self.device = next(model.parameters()).device
        self.average = {key: value.detach().clone() for key, value in model.state_dict().items()}
        self.step, self.seconds, self.loss = 0, 0.0, float("nan")
        self.curve: list[dict[str, float]] = []
        self.stopping = False
        options.state.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        self.stopping = True

    # -- what a run is of --------------------------------------------------------------------------------------

    @abstractmethod
    def take(self) -> Tensor:
        """The loss of the step in progress, its gradients computed and the optimizer stepped."""

    @abstractmethod
    def parts(self) -> dict[str, Any]:
        """Further objects with state (`state_dict` and `load_state_dict`), by name."""

    @abstractmethod
    def evaluate(self, final: bool) -> dict[str, Any]:
        """Measures the averaged weights as they are exported, adds to the curve and exports them; what to log."""

    def ready(self) -> bool:
        """Whether there is anything to measure yet."""
        return True

    # -- state -------------------------------------------------------------------------------------------------

    def save(self) -> None:
        state = {key: getattr(self, key) for key in self.kept}
        state |= {name: part.state_dict() for name, part in self._parts().items()}
        path = self.o.state / "state.pt"
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def restore(self) -> None:
        """Continues from a saved state, if there is one."""
        path = self.o.state / "state.pt"
        if not path.exists() or self.o.fresh:
            return
        state = torch.load(path, map_location=self.device, weights_only=True)
        for name, part in self._parts().items():
            part.load_state_dict(state.pop(name))
        for key, value in state.items():
            setattr(self, key, value)

    def _parts(self) -> dict[str, Any]:
        return {"model": self.model, **self.parts()}

    # -- schedule ----------------------------------------------------------------------------------------------

    def progress(self) -> float:
        """Share of the run that is done, 0 to 1."""
        if self.o.steps is not None:
            return min(1.0, self.step / max(1, self.o.steps))
        return min(1.0, self.seconds / (60 * (self.o.minutes or 0) + 1e-9))

    def rate(self) -> float:
        """Factor on the peak learning rate: warm-up, plateau, linear decay."""
        left = (1 - self.progress()) / (1 - DECAY_FROM)
        return min(1.0, (self.step + 1) / WARMUP) * max(FLOOR, min(1.0, left))

    def noise(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)

    # -- the run -----------------------------------------------------------------------------------------------

    def train(self) -> None:
        """Trains until the run's length, or `stop()`. An interrupted run exports nothing."""
        stopwatch, saved = Stopwatch(), time.monotonic()
        noted = self.seconds
        next_eval = self.seconds + 60 * self.o.every
        while not self.stopping and self.progress() < 1:
            loss = self.advance()
            self.loss = loss if self.loss != self.loss else 0.98 * self.loss + 0.02 * loss
            self.seconds += stopwatch.lap()
            if self.seconds - noted > 20:
                noted = self.seconds
                self.log({})
            if time.monotonic() - saved > SAVE_EVERY:
                self.save()
                saved = time.monotonic()
            if self.seconds > next_eval and self.ready():
                self._measure(final=False)
                next_eval = self.seconds + 60 * self.o.every
                stopwatch = Stopwatch()
        self.save()
        if not self.stopping:
            self._measure(final=True)
            self.save()

    def advance(self) -> float:
        """Runs one step; returns its loss."""
        loss = self.take().item()
        self.step += 1
        keep = min(AVERAGE, self.step / (self.step + 10))
        current = self.model.state_dict()
        torch._foreach_lerp_(list(self.average.values()), [current[key] for key in self.average], 1 - keep)
        return loss

    def _measure(self, final: bool) -> None:
        """Evaluates; the time does not count as training."""
        started = time.monotonic()
        found = self.evaluate(final)
        self.log({**found, "eval_s": round(time.monotonic() - started, 1)})

    def log(self, extra: dict[str, Any]) -> None:
        line = {"seconds": round(self.seconds, 1), "step": self.step, "loss": round(self.loss, 4)}
        line |= {"rate": round(self.rate(), 4)} | extra
        with (self.o.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def described(
        self,
        before: dict[str, Any],
        after: dict[str, Any],
        *,
        optimizer: str = "AdamW",
        seen: str = "pictures",
        model: nn.Module | None = None,
    ) -> dict[str, Any]:
        """The card without measurements; `before` and `after` are the recipe's entries around the numbers of images."""
        recipe = {
            "script": "scripts/train_image.py",
            **before,
            "images per step": self.o.batch,
            "steps": self.step,
            seen: self.step * self.o.batch,
            **after,
            "optimizer": f"{optimizer}, peak learning rate {self.o.lr:g}, linear decay",
            "seconds": round(self.seconds),
            "device": self.device.type,
            "precision": "float32 weights, bfloat16 matmuls",
            "exported": f"moving average over steps (decay {AVERAGE}) in bfloat16",
            "seed": self.o.seed,
        }
        size = sum(value.numel() for value in (model or self.model).parameters())
        head = {"name": self.name, "summary": SUMMARY[self.name], "parameters": size, "recipe": recipe}
        return {**head, "curve": self.curve}

    def point(self) -> dict[str, float]:
        """The run's progress, for the curve."""
        return {"seconds": round(self.seconds), "step": self.step, "loss": round(self.loss, 4)}


class Descent(Training):
    """A run that minimizes losses of a corpus' batches, with Muon for matrices of layers and AdamW for the rest."""

    optimizers: list[torch.optim.Optimizer]
    corpus: Any  # what has `batch(step, count)`

    @abstractmethod
    def loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss, and the part of it that is logged."""

    def passing(self) -> AbstractContextManager[Any]:
        """The context of a forward and backward pass."""
        return nullcontext()

    def parts(self) -> dict[str, Any]:
        return {f"optimizer {number}": optimizer for number, optimizer in enumerate(self.optimizers)}

    def take(self) -> Tensor:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.o.lr * self.rate()
        with self.passing():
            loss, told = self.loss_of(self.corpus.batch(self.step, self.o.batch))
            loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return told


def muon_and_adamw(model: nn.Module, lr: float, within: str) -> list[torch.optim.Optimizer]:
    """Muon for the matrices whose names hold `within`, AdamW for the rest."""
    matrices = [value for name, value in model.named_parameters() if value.ndim == 2 and within in name]
    inside = {id(value) for value in matrices}
    rest = [value for value in model.parameters() if id(value) not in inside]
    muon = torch.optim.Muon(matrices, lr=lr, weight_decay=0.05, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)]


def device_of(options: Options) -> torch.device:
    """The device that a run is asked to use; sets its threads and the seed of the first weights."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    wanted = options.device
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
