"""One training of a drafter: resumable, with a moving average of the weights exported as it learns."""

from __future__ import annotations

import json
import math
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import ModelError

from .export import Exported, export, read_export
from .losses import loss as loss_by_name
from .measure import Acceptance, measure
from .networks import KINDS, Network, Options, Target
from .states import States, Text

AVERAGE = 0.998  # weight of the past in the moving average
WARMUP = 30  # steps
SAVE_EVERY = 60.0  # seconds
_LONGEST_LAP = 60.0  # most seconds counted for one step, in case the machine was suspended


@dataclass
class Plan:
    """The settings for training one drafter."""

    kind: str
    name: str
    out: Path
    state: Path
    network: Options = field(default_factory=Options)
    loss: str = "fkl"
    steps: int | None = None
    minutes: float | None = None
    batch: int = 3000  # tokens per step
    rate: float = 1e-3  # peak learning rate
    optimizer: str = "adamw"
    weight_decay: float = 0.02  # on matrices, times the learning rate, per step
    seed: int = 0
    every: float = 3.0  # minutes between measurements and exports
    validation: int = 64  # texts that are held out
    drafts: int = 5  # tokens per draft when the drafter is measured
    init: str | os.PathLike[str] | None = None  # state.pt of a run or its folder; an exported drafter
    target_name: str = ""  # as the user names it
    target_path: str = ""  # written to the files as `base_model_name_or_path`
    script: str = "scripts/train_draft.py"  # the training command, for the card


class Run:
    """A training run. `stop()` ends it after the step in progress, with its state stored."""

    def __init__(
        self, target: Target, states: States, plan: Plan, report: Callable[[str], object] | None = None
    ) -> None:
        """`report` is called with each line of the log; by default it prints."""
        self.report = report or partial(print, flush=True)
        self.plan, self.states, self.target, self.name = plan, states, target, plan.name
        plan.state.mkdir(parents=True, exist_ok=True)
        self.loss_function = loss_by_name(plan.loss)
        exported: Exported | None = None
        state = None if plan.init is None else state_file(plan.init)
        if plan.init is not None and state is None:
            exported = read_export(plan.init, target.model, plan.kind)
            plan.network = exported.options(plan.network.chosen())
        self.network: Network = KINDS[plan.kind](target, plan.network).to(target.embedding.device)
        resumed = (plan.state / "state.pt").exists()
        self._choose_vocabulary(None if exported is None or resumed else exported.ids)
        if state is not None:
            self._start_from(state)
        elif not resumed and exported is not None:
            exported.load(self.network, states)
        elif not resumed:
            self.network.prepare(states)
        self.parameters = {name: value for name, value in self.network.named_parameters() if value.requires_grad}
        self.average = {name: value.detach().clone() for name, value in self.parameters.items()}
        self.optimizers = optimizers(self.parameters, plan.optimizer, plan.rate, plan.weight_decay)
        self.step, self.seconds, self.tokens, self.stopping = 0, 0.0, 0, False
        self.recent: list[float] = []
        self.curve: list[dict[str, Any]] = []
        self.acceptance: Acceptance | None = None
        self.learning, self.validation = split(states, plan.validation)
        if resumed:
            self._restore()

    def _choose_vocabulary(self, exported: Tensor | None) -> None:
        """Chooses the draft ids once per run: an exported drafter's, or the commonest of the answers."""
        size = self.plan.network.vocab
        if size is None or size >= len(self.target.head):
            return
        path = self.plan.state / "vocabulary.json"
        if exported is not None:
            path.write_text(json.dumps(exported.tolist()))
        elif not path.exists():
            counts = self.states.counts(len(self.target.head))
            ends = torch.tensor(self.target.model.decoding_config.eos_ids, dtype=torch.int64)
            counts[ends] = counts.sum() + 1
            chosen = counts.sort(descending=True, stable=True).indices[:size].sort().values
            path.write_text(json.dumps(chosen.tolist()))
        self.network.draft_ids(torch.tensor(json.loads(path.read_text())))

    def _start_from(self, path: Path) -> None:
        state = torch.load(path, map_location=self.network.device, weights_only=True)
        weights = state["average"] | state["buffers"]
        own = self.network.state_dict()
        if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
            raise ModelError(f"{path} holds another network", "name the state of a run with the same shape")
        self.network.load_state_dict(weights)

    def stop(self) -> None:
        self.stopping = True

    # -- steps -------------------------------------------------------------------------------------------------------

    def progress(self) -> float:
        """The completed share of the run, 0 to 1."""
        if self.plan.steps is not None:
            return min(1.0, self.step / self.plan.steps)
        return min(1.0, self.seconds / (60 * (self.plan.minutes or 0) + 1e-9))

    def texts(self, step: int) -> list[Text]:
        """The texts of one step, of similar length; a function of the seed, the step and the texts alone."""
        rng = random.Random(f"{self.plan.seed}/{step}")
        at = rng.randrange(len(self.learning))
        chosen: list[Text] = []
        while at >= 0 and (len(chosen) + 1) * max(self.learning[at].length, *(t.length for t in chosen), 0) <= max(
            self.plan.batch, self.learning[at].length
        ):
            chosen.append(self.learning[at])
            at -= 1
        return chosen

    def take(self) -> tuple[float, list[float]]:
        """Runs one step; returns its loss and the accuracy at each depth."""
        rate = min(1.0, (self.step + 1) / WARMUP) * 0.5 * (1 + math.cos(math.pi * self.progress()))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.plan.rate * rate
            optimizer.zero_grad(set_to_none=True)
        batch = self.states.batch(self.texts(self.step))
        noise = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.step)
        torch.manual_seed(self.plan.seed * 1_000_003 + self.step)  # for losses that sample
        self.network.progress = self.progress()
        loss, rates = self.network.loss(batch, self.loss_function, noise)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.tokens += int((batch.lengths - batch.begins).sum())
        past = min(AVERAGE, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.parameters.values()), 1 - past)
        return loss.item(), rates

    def train(self) -> None:
        """Trains until the run's length or `stop()`."""
        noted = stored = lap = time.monotonic()
        next_measure = self.seconds + 60 * self.plan.every
        depths: list[list[float]] = []
        while not self.stopping and self.progress() < 1:
            loss, rates = self.take()
            self.recent = [*self.recent[-49:], loss]
            depths = [*depths[-49:], rates]
            now = time.monotonic()
            self.seconds, lap = self.seconds + min(now - lap, _LONGEST_LAP), now
            if now - noted > 20:
                noted = now
                depths = [row for row in depths if len(row) == len(depths[-1])]
                right = [sum(column) / len(column) for column in zip(*depths, strict=True)]
                self._log({"right": [round(value, 3) for value in right]})
            if now - stored > SAVE_EVERY:
                self.save()
                stored = now
            if self.seconds > next_measure and self.progress() < 1:
                self.evaluate()
                self.save()
                stored = lap = time.monotonic()
                next_measure = self.seconds + 60 * self.plan.every
        self.save()
        if not self.stopping:
            self.evaluate()
            self.save()

    def evaluate(self) -> Acceptance:
        """Exports the weights, measured in their exported precision."""
        own = {name: value.detach().clone() for name, value in self.parameters.items()}
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(self.average[name].bfloat16())
            self.acceptance = measure(self.network, self.states, self.validation, self.plan.drafts)
            self.curve.append(
                {"seconds": round(self.seconds), "step": self.step, "loss": round(self.mean_loss(), 4)}
                | {"length": round(self.acceptance.length, 3)}
            )
            self._log(
                {"length": round(self.acceptance.length, 3)} | {"depths": [round(d, 3) for d in self.acceptance.depths]}
            )
            export(self.network, self.plan.out, self._card(self.acceptance), self.plan.target_path)
            for name, value in self.parameters.items():
                value.copy_(own[name])
        return self.acceptance

    def _card(self, result: Acceptance) -> dict[str, Any]:
        depths = [round(share, 3) for share in result.depths]
        measured = {"length": round(result.length, 3), "depths": depths, "rounds": result.rounds}
        return {
            "name": self.name,
            "target": self.plan.target_name,
            "recipe": {"script": self.plan.script, **self.recipe()},
            "acceptance": measured | {"texts": len(self.validation)},
            "curve": self.curve,
        }

    def mean_loss(self) -> float:
        """The mean loss of the last steps."""
        return sum(self.recent) / max(1, len(self.recent))

    def _log(self, more: dict[str, Any]) -> None:
        line = {"seconds": round(self.seconds, 1), "step": self.step, "loss": round(self.mean_loss(), 4)} | more
        with (self.plan.state / "log.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.report(json.dumps(line))

    # -- state -------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Stores the state from which the run resumes bit for bit."""
        state: dict[str, Any] = {name: getattr(self, name) for name in ("step", "seconds", "tokens", "recent", "curve")}
        state |= {"parameters": {name: value.detach() for name, value in self.parameters.items()}}
        state |= {"buffers": dict(self.network.named_buffers())}
        state |= {"average": self.average, "optimizers": [optimizer.state_dict() for optimizer in self.optimizers]}
        path = self.plan.state / "state.pt"
        torch.save(state, path.with_suffix(".part"))
        os.replace(path.with_suffix(".part"), path)

    def _restore(self) -> None:
        state = torch.load(self.plan.state / "state.pt", map_location=self.network.device, weights_only=True)
        with torch.no_grad():
            for name, value in state.pop("parameters").items():
                self.parameters[name].copy_(value)
            for name, value in state.pop("buffers").items():
                self.network.get_buffer(name).copy_(value)
        self.average = state.pop("average")
        for optimizer, value in zip(self.optimizers, state.pop("optimizers"), strict=True):
            optimizer.load_state_dict(value)
        for name, value in state.items():
            setattr(self, name, value)

    def recipe(self) -> dict[str, Any]:
        """The card's description of the training."""
        plan = self.plan
        shape = {name: value for name, value in asdict(plan.network).items() if value is not None}
        return {
            "kind": plan.kind,
            "loss": plan.loss,
            "optimizer": f"{plan.optimizer}, peak learning rate {plan.rate:g}, cosine to 0",
            "weight decay": plan.weight_decay,
            "tokens per step": plan.batch,
            "steps": self.step,
            "answer tokens": self.tokens,
            "texts": f"{len(self.learning)} that the target wrote, {len(self.validation)} held out",
            "seconds": round(self.seconds),
            "precision": f"float32 weights, {str(self.target.dtype).removeprefix('torch.')} matmuls",
            "exported": f"moving average over steps (decay {AVERAGE}) in bfloat16",
            "seed": plan.seed,
            "shape": shape,
            **({} if plan.init is None else {"started from": Path(plan.init).name}),
        }


def state_file(init: str | os.PathLike[str]) -> Path | None:
    """The state file of a run that `init` names, by file or by folder; None for an exported drafter."""
    path = Path(init)
    path = path / "state.pt" if path.is_dir() else path
    return path if path.suffix == ".pt" and path.is_file() else None


def split(states: States, count: int) -> tuple[list[Text], list[Text]]:
    """Training texts by length, and `count` validation texts (greedy ones if there are any); they share no prompts.

    Those for validation are chosen once for a folder of states.
    """
    path = states.folder / "validation.json"
    if not path.exists():
        order = list(states.texts)
        random.Random(0).shuffle(order)
        long = [text for text in order if text.length - text.prompt > 2]
        chosen = list(islice((text for text in long if states.greedy(text)), count)) or long[:count]
        path.write_text(json.dumps(sorted(text.start for text in chosen)) + "\n")
    out = set(json.loads(path.read_text()))
    prompts = {states.prompt(text) for text in states.texts if text.start in out}
    learning = [t for t in states.texts if t.length - t.prompt > 1 and states.prompt(t) not in prompts]
    validation = [text for text in states.texts if text.start in out]
    if not learning:
        raise ModelError(f"no text of {states.folder} is left to learn from", "write more texts, or hold out fewer")
    return sorted(learning, key=lambda text: (text.length, text.start)), validation


def optimizers(parameters: Mapping[str, Tensor], name: str, rate: float, decay: float) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters, or Muon for matrices and AdamW for the rest; vectors have no weight decay."""
    matrices = [value for value in parameters.values() if value.ndim == 2]
    vectors = [value for value in parameters.values() if value.ndim != 2]
    none: list[dict[str, Any]] = [{"params": vectors, "weight_decay": 0.0}] if vectors else []
    if name == "adamw":
        groups = [{"params": matrices, "weight_decay": decay}, *none]
        return [torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))]
    muon = torch.optim.Muon(matrices, lr=rate, weight_decay=decay, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    return [muon, *([torch.optim.AdamW(none, lr=rate, betas=(0.9, 0.95))] if none else [])]
