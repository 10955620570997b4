"""A training run that resumes after an interruption: its clock, schedule, stored state and log."""

from __future__ import annotations

import json
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.files import cache_dir

AVERAGE = 0.998  # decay of the moving average of the weights
SAVE_EVERY = 120.0  # seconds
LOG_EVERY = 20.0  # seconds of training
LONGEST_LAP = 60.0  # most seconds counted for one step, in case the process or the machine was suspended


def write_json(path: Path, value: object) -> None:
    """Writes a small file of a run, whole or not at all."""
    cache_dir.write(path, (json.dumps(value) + "\n").encode())


class Resumable(ABC):
    """A training run. `stop()` ends it after the step in progress, with its state stored in the folder `state`."""

    kept: tuple[str, ...] = ("step", "seconds")  # attributes that are state
    warmup = 100  # steps
    decay_from = 0.35  # share of the run after which the learning rate falls, linearly to `floor`
    floor = 0.02  # share of the peak learning rate
    optimizers: list[torch.optim.Optimizer]
    average: dict[str, Tensor]  # the moving average of the weights, for runs that keep one

    def __init__(
        self, name: str, state: Path, *, steps: int | None, minutes: float | None, every: float, peak: float
    ) -> None:
        """The run is as long as `steps`, or as `minutes` of training; `every`: minutes between measurements.

        `peak` is the greatest learning rate.
        """
        self.name, self.state = name, state
        self.steps, self.minutes, self.every, self.peak = steps, minutes, every, peak
        self.step, self.seconds, self.loss = 0, 0.0, float("nan")
        self.curve: list[dict[str, Any]] = []
        self.stopping = False
        state.mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        self.stopping = True

    # -- what a run is of --------------------------------------------------------------------------------------------

    @abstractmethod
    def advance(self) -> float:
        """Runs one step; returns its loss."""

    @abstractmethod
    def evaluate(self, final: bool) -> dict[str, Any]:
        """Measures the weights as they are exported, adds to the curve and exports them; what to log."""

    @abstractmethod
    def parts(self) -> Mapping[str, Any]:
        """The objects with state (`state_dict` and `load_state_dict`) by name; the optimizers are stored as well."""

    def settings(self) -> Mapping[str, Any]:
        """The options, by name, that cannot change when a run is resumed."""
        return {}

    def ready(self) -> bool:
        """Whether there is anything to measure before the end."""
        return True

    # -- steps -------------------------------------------------------------------------------------------------------

    def progress(self) -> float:
        """The completed share of the run, 0 to 1."""
        if self.steps is not None:
            return min(1.0, self.step / max(1, self.steps))
        return min(1.0, self.seconds / (60 * (self.minutes or 0) + 1e-9))

    def done(self) -> bool:
        """Whether the run has its length."""
        return self.progress() >= 1

    def rate(self) -> float:
        """Factor on the peak learning rate: warm-up, plateau, linear decay."""
        left = (1 - self.progress()) / (1 - self.decay_from)
        return min(1.0, (self.step + 1) / self.warmup) * max(self.floor, min(1.0, left))

    def descend(self, loss: Tensor, weights: Iterable[Tensor]) -> None:
        """One step of the optimizers down the gradient of the loss, whose norm over `weights` is at most 1."""
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.peak * self.rate()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    @torch.no_grad()
    def update_average(self, weights: Mapping[str, Tensor]) -> None:
        """Moves the average towards the weights after a step."""
        past = min(AVERAGE, self.step / (self.step + 10))
        torch._foreach_lerp_(list(self.average.values()), [weights[name] for name in self.average], 1 - past)

    def train(self) -> None:
        """Trains until the run's length or `stop()`. An interrupted run exports nothing."""
        lap = saved = time.monotonic()
        noted = self.seconds
        next_measure = self.seconds + 60 * self.every
        while not self.stopping and not self.done():
            self.observe(self.advance())
            now = time.monotonic()
            self.seconds, lap = self.seconds + min(now - lap, LONGEST_LAP), now
            if self.seconds - noted > LOG_EVERY:
                noted = self.seconds
                self.log(self.observed())
            if now - saved > SAVE_EVERY:
                self.save()
                saved = now
            if self.seconds > next_measure and self.ready():
                self._measure(final=False)
                lap = saved = time.monotonic()  # a measurement does not count as training
                next_measure = self.seconds + 60 * self.every
        self.save()
        if not self.stopping:
            self._measure(final=True)

    def _measure(self, final: bool) -> None:
        started = time.monotonic()
        found = self.evaluate(final)
        self.log({**found, "eval_s": round(time.monotonic() - started, 1)})
        self.save()

    # -- log ---------------------------------------------------------------------------------------------------------

    def observe(self, loss: float) -> None:
        """Takes the loss of a step into the mean that is shown."""
        self.loss = loss if self.loss != self.loss else 0.98 * self.loss + 0.02 * loss

    def observed(self) -> dict[str, Any]:
        """The values that are logged between measurements, besides the loss."""
        return {}

    def point(self) -> dict[str, Any]:
        """The run's progress, for the curve."""
        return {"seconds": round(self.seconds), "step": self.step, "loss": round(self.loss, 4)}

    def log(self, more: Mapping[str, Any]) -> str:
        """Adds a line to the log, which is returned."""
        line = json.dumps({**self.point(), "seconds": round(self.seconds, 1), **more})
        with (self.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
        return line

    # -- state -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Stores the state from which the run resumes bit for bit."""
        state = {name: getattr(self, name) for name in self.kept}
        state |= {name: part.state_dict() for name, part in self.parts().items()}
        state["settings"] = {name: str(value) for name, value in self.settings().items()}
        state["optimizers"] = [optimizer.state_dict() for optimizer in self.optimizers]
        path = self.state / "state.pt"
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def restore(self, device: torch.device) -> None:
        """Continues from the stored state, if there is one.

        Raises ModelError for a state that lacks a part, or whose run had other settings or weights of other shapes.
        """
        path = self.state / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, map_location=device, weights_only=True)
        if missing := {*self.parts(), "optimizers"} - set(state):
            raise ModelError(
                f"{path} was written by another version: it has no {', '.join(sorted(missing))}",
                "finish that run with the version that began it, or give another folder",
            )
        settings = state.pop("settings", {})  # states of earlier versions have none
        for name, value in self.settings().items():
            if settings.get(name, str(value)) != str(value):
                raise ModelError(
                    f"{path} is of a run with {name} {settings[name]}, and this one asks for {value}",
                    "give the options that the run began with, or another folder",
                )
        for name, part in self.parts().items():
            part.load_state_dict(state.pop(name))
        for optimizer, stored in zip(self.optimizers, state.pop("optimizers"), strict=True):
            optimizer.load_state_dict(stored)
        for name, value in state.items():
            setattr(self, name, value)


class Tensors(dict[str, Tensor]):
    """Tensors by name, as a part of a run: restored in place."""

    def state_dict(self) -> dict[str, Tensor]:
        return {name: value.detach() for name, value in self.items()}

    @torch.no_grad()
    def load_state_dict(self, stored: Mapping[str, Tensor]) -> None:
        if {name: value.shape for name, value in stored.items()} != {name: value.shape for name, value in self.items()}:
            raise ModelError("the stored run has weights of other names or shapes", "name another folder for its state")
        for name, value in stored.items():
            self[name].copy_(value)
