"""One training of a drafter: resumable, with a moving average of the weights exported as it learns."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel

from .export import Exported, export, read_export
from .losses import loss as loss_by_name
from .networks import KINDS, Network, Options, Target
from .networks.eagle import default_taps
from .networks.kangaroo import Kangaroo, exit_taps
from .resumable import AVERAGE, Resumable, Tensors, write_json
from .states import Row, States, Text, open_states

# Options of a network that a resumed run cannot change.
_FIXED = ("vocab", "layers", "mlp_width", "kv_heads", "taps", "heads", "rank", "block", "mask_id", "tied", "start")


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
    weight_decay: float = 0.02  # per step, times the learning rate; on matrices only
    seed: int = 0
    every: float = 3.0  # minutes between measurements and exports
    validation: int = 64  # texts that are held out
    drafts: int = 5  # tokens per draft when the drafter is measured
    init: str | os.PathLike[str] | None = None  # state.pt of a run or its folder; an exported drafter
    target_name: str = ""  # as the user names it
    target_path: str = ""  # written to the files as `base_model_name_or_path`
    script: str = "scripts/train_draft.py"  # the training command, for the card


class Run(Resumable):
    """A training of one drafter."""

    kept = (*Resumable.kept, "tokens", "loss", "recent", "curve", "average")
    warmup = 30

    def __init__(
        self, target: Target, states: States, plan: Plan, report: Callable[[str], object] | None = None
    ) -> None:
        """`report` is called with each line of the log; by default it prints."""
        self.report = report or partial(print, flush=True)
        super().__init__(
            plan.name, plan.state, steps=plan.steps, minutes=plan.minutes, every=plan.every, peak=plan.rate
        )
        self.plan, self.states, self.target = plan, states, target
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
        self.tokens = 0
        self.recent: list[float] = []  # losses of the last steps
        self.depths: list[list[float]] = []  # their accuracies at each depth
        self.acceptance: Acceptance | None = None
        self.learning, self.validation = split(states, plan.validation)
        self.restore(self.network.device)

    def _choose_vocabulary(self, exported: Tensor | None) -> None:
        """Chooses the draft ids once per run: an exported drafter's, or the commonest of the answers."""
        size = self.plan.network.vocab
        if size is None or size >= len(self.target.head):
            return
        path = self.plan.state / "vocabulary.json"
        if exported is not None:
            write_json(path, exported.tolist())
        elif not path.exists():
            counts = self.states.counts(len(self.target.head))
            ends = torch.tensor(self.target.model.decoding_config.eos_ids, dtype=torch.int64)
            counts[ends] = counts.sum() + 1
            chosen = counts.sort(descending=True, stable=True).indices[:size].sort().values
            write_json(path, chosen.tolist())
        self.network.draft_ids(torch.tensor(json.loads(path.read_text())))

    def _start_from(self, path: Path) -> None:
        state = torch.load(path, map_location=self.network.device, weights_only=True)
        weights = state["average"] | state["buffers"]
        own = self.network.state_dict()
        if {name: value.shape for name, value in weights.items()} != {name: value.shape for name, value in own.items()}:
            raise ModelError(f"{path} holds another network", "name the state of a run with the same shape")
        self.network.load_state_dict(weights)

    def parts(self) -> dict[str, Tensors]:
        return {"parameters": Tensors(self.parameters), "buffers": Tensors(self.network.named_buffers())}

    def settings(self) -> dict[str, Any]:
        plan = self.plan
        shape = asdict(plan.network)
        fixed = {name: shape[name] for name in _FIXED}
        fixed |= {"kind": plan.kind, "optimizer": plan.optimizer, "weight decay": plan.weight_decay}
        return {"init": None if plan.init is None else Path(plan.init).name, **fixed}

    def ready(self) -> bool:
        return not self.done()

    # -- steps -------------------------------------------------------------------------------------------------------

    def rate(self) -> float:
        """Factor on the peak learning rate: warm-up, and half a cosine to 0."""
        return min(1.0, (self.step + 1) / self.warmup) * 0.5 * (1 + math.cos(math.pi * self.progress()))

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
        batch = self.states.batch(self.texts(self.step))
        noise = torch.Generator().manual_seed(self.plan.seed * 1_000_003 + self.step)
        torch.manual_seed(self.plan.seed * 1_000_003 + self.step)  # for losses that sample
        self.network.progress = self.progress()
        loss, rates = self.network.loss(batch, self.loss_function, noise)
        self.descend(loss, self.parameters.values())
        self.step += 1
        self.tokens += int((batch.lengths - batch.begins).sum())
        self.update_average(self.parameters)
        return loss.item(), rates

    def advance(self) -> float:
        loss, rates = self.take()
        self.depths = [*self.depths[-49:], rates]
        return loss

    def observe(self, loss: float) -> None:
        self.recent = [*self.recent[-49:], loss]
        self.loss = sum(self.recent) / len(self.recent)

    def observed(self) -> dict[str, Any]:
        """The accuracy at each depth."""
        depths = [row for row in self.depths if len(row) == len(self.depths[-1])]
        right = [sum(column) / len(column) for column in zip(*depths, strict=True)]
        return {"right": [round(value, 3) for value in right]}

    def log(self, more: Mapping[str, Any]) -> str:
        line = super().log(more)
        self.report(line)
        return line

    def evaluate(self, final: bool = True) -> dict[str, Any]:
        own = {name: value.detach().clone() for name, value in self.parameters.items()}
        with torch.no_grad():
            for name, value in self.parameters.items():
                value.copy_(self.average[name].bfloat16())
            self.acceptance = measure(self.network, self.states, self.validation, self.plan.drafts)
            length, depths = round(self.acceptance.length, 3), [round(d, 3) for d in self.acceptance.depths]
            self.curve.append({**self.point(), "length": length})
            measured = {"length": length, "depths": depths, "rounds": self.acceptance.rounds}
            export(self.network, self.plan.out, self._card(measured), self.plan.target_path)
            for name, value in self.parameters.items():
                value.copy_(own[name])
        return {"length": length, "depths": depths}

    def _card(self, measured: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": self.name,
            "target": self.plan.target_name,
            "recipe": {"script": self.plan.script, **self.recipe()},
            "acceptance": measured | {"texts": len(self.validation)},
            "curve": self.curve,
        }

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
        write_json(path, sorted(text.start for text in chosen))
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


_TOKENS = 6000  # tokens of one batch


@dataclass(frozen=True)
class Acceptance:
    """The acceptance of greedy chains on the target's greedy texts."""

    length: float  # tokens per round, the target's own included
    depths: tuple[float, ...]  # share of the positions at which the first j drafted tokens are all right
    rounds: int


def measure(network: Network, states: States, texts: Sequence[Text], drafts: int) -> Acceptance:
    """Follows every text as decoding would: a round drafts `drafts` tokens, keeps the right ones and adds one."""
    tokens = rounds = positions = 0
    right = torch.zeros(drafts)
    remaining = sorted((text for text in texts if text.length - text.prompt > 1), key=lambda text: text.length)
    while remaining:
        count = max(1, _TOKENS // remaining[-1].length)
        part, remaining = remaining[-count:], remaining[:-count]
        batch = states.batch(part)
        drafted = network.chain(batch, drafts)  # [B, W, k]
        width = batch.width
        follows = torch.stack(
            [torch.nn.functional.pad(batch.ids[:, 2 + j :], (0, min(2 + j, width)), value=-2) for j in range(drafts)],
            -1,
        )
        accepted = (drafted == follows).long().cumprod(-1).cpu()  # [B, W, k]
        for row, text in enumerate(part):
            last = text.length - 1
            known = accepted[row, text.prompt - 1 : last - drafts]
            right += known.sum(0)
            positions += len(known)
            lengths = accepted[row].sum(-1).tolist()
            at = text.prompt - 1  # the token at `at` + 1 is known
            while at + 1 < last:
                gain = min(lengths[at] + 1, last - at - 1)
                tokens, rounds, at = tokens + gain, rounds + 1, at + gain
    depths = tuple((right / max(1, positions)).tolist())
    return Acceptance(tokens / max(1, rounds), depths, rounds)


# Peak learning rates of a whole training.
RATE = dict.fromkeys(("eagle", "medusa", "hydra", "dflash", "kangaroo", "mtp", "idlm"), 2e-3) | {"prompts": 2e-2}


def prepare(
    target: LanguageModel,
    files: Mapping[str, Sequence[Row]],
    plan: Plan,
    chosen: Mapping[str, Any],
    *,
    folder: Path,
    longest: int,
    online: bool = False,
    report: Callable[[str], object] | None = None,
) -> Run:
    """Sets up a run: the states of the texts, computed if `folder` lacks them, and the run, resumed if it was stopped.

    Args:
        target: the model that the drafter drafts for.
        files: prompts and answers as ids, by the path of their file, for messages.
        plan: all but the network's options.
        chosen: the named `Options`; the others come from the exported drafter `plan.init`, or are the defaults.
        folder: where states are stored, for every kind of drafter that reads the same layers.
        longest: tokens of a text; prompts are cut at their beginning.
        online: run the target over each batch in place of storing its states.
        report: called with each line of the log, by default printed.

    Raises:
        ModelError: an option contradicts the exported drafter, which may also be of another kind or target.
    """
    exported = plan.init is not None and state_file(plan.init) is None
    options = read_export(plan.init, target, plan.kind).options(chosen) if exported and plan.init else Options(**chosen)
    taps = options.taps or (exit_taps if plan.kind == Kangaroo.kind else default_taps)(target.layers)
    states = open_states(folder, taps, target, online=online)
    states.update(files, longest)
    return Run(Target(target), states, replace(plan, network=replace(options, taps=taps)), report)
