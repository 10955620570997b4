"""The training loop: state, schedule, steps, evaluation."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from pardec.training.resumable import AVERAGE, Resumable
from text_training import data, networks
from text_training.evaluate import measure
from text_training.export import SUMMARY, export, read_weights, rounded
from text_training.options import Options
from text_training.self_drafting import BLOCK, joint_loss

MASKS = (
    "half of the rows (all on cached prompts) as decoding leaves them, masked where the model is least sure; "
    "the others at random or after a prefix"
)
BLOCKS = f"half of the loss: blocks of a token and {BLOCK - 1} masks in one pass; the other half is causal"
PROMPT_WEIGHT = 0.1
_GOLDEN = 0.6180339887498949  # spreads the steps that train on cached prompts evenly


def read_card(folder: Path) -> dict[str, Any]:
    """The card of the model that was exported to `folder`."""
    held: dict[str, Any] = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    return held


class Run(Resumable):
    """The training of one text model."""

    kept = (*Resumable.kept, "chunk", "index", "tokens", "loss", "curve", "average", "mixes")

    def __init__(self, options: Options) -> None:
        length = {"steps": options.steps, "minutes": options.minutes, "every": options.every}
        super().__init__(options.model, options.state, **length, peak=options.lr)  # type: ignore[arg-type]
        self.o = options
        torch.set_num_threads(options.threads)
        wanted = options.device
        self.device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if wanted == "auto" else wanted)
        self.tokenizer = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json"))
        self.masked = networks.is_masked(self.name)
        torch.manual_seed(options.seed)
        self.model = self._network(self.name)
        self._check_exits(options.exits)
        if options.init:
            networks.adopt(self.model, read_weights(options.init))
        self.taught_by = str(read_card(options.teacher)["name"]) if options.teacher else ""
        self.teacher = self._network(self.taught_by) if options.teacher else None
        if self.teacher:
            networks.adopt(self.teacher, read_weights(options.teacher))  # type: ignore[arg-type]
            self.teacher.requires_grad_(False)
        # The same parameters without compiled layers, for passes that need no gradient.
        self.reader = self._network(self.name)
        self.reader.load_state_dict(self.model.state_dict(keep_vars=True), assign=True)
        if options.compile:
            networks.compile_layers(self.model)
        self.optimizers = networks.optimizers(self.model, options.optimizer, options.lr)
        self.average = {k: v.detach().clone() for k, v in self.model.state_dict().items()}
        self.chunk = self.index = self.tokens = 0
        self.source = self.batches()
        self.reached = False  # what `--until` asks for
        self.mixes: list[tuple[int, str]] = []  # step from which on, shares of the tasks
        if not options.fresh:
            self.restore(self.device)
        shares = ", ".join(f"{kind} {share:.0%}" for kind, share in options.mix.items())
        if not self.mixes or self.mixes[-1][1] != shares:
            self.mixes.append((self.step, shares))

    def _check_exits(self, exits: tuple[int, ...]) -> None:
        layers = self.model.config.num_hidden_layers
        if exits and (self.masked or list(exits) != sorted(set(exits)) or exits[0] < 1 or exits[-1] != layers):
            raise ValueError(
                f"exits of {self.name} must rise to its {layers} layers, and it must be causal, got {exits}"
            )

    def _network(self, name: str) -> torch.nn.Module:
        model = networks.build(name, self.tokenizer.get_vocab_size(), **self.o.shape).to(self.device)
        # 2-byte SDPA is slow backwards on a CPU: matmuls take half the time of a step's attention there
        model.set_attn_implementation("eager" if self.device.type == "cpu" else "sdpa")
        return model

    def parts(self) -> dict[str, torch.nn.Module]:
        return {"model": self.model}

    def settings(self) -> dict[str, Any]:
        folders = {"init": self.o.init and self.o.init.name, "tokenizer": self.o.tokenizer.name}
        return {"optimizer": self.o.optimizer, **folders, "shape": sorted(self.o.shape.items())}

    def done(self) -> bool:
        return self.reached or super().done()

    # -- steps -------------------------------------------------------------------------------------------------

    def batches(self) -> Iterator[data.Batch]:
        while True:
            made = data.chunk(self.tokenizer, self.o.seed, self.chunk, self.masked, self.o.batch, mix=self.o.mix)
            while self.index < len(made):
                self.index += 1
                yield made[self.index - 1]
            self.chunk, self.index = self.chunk + 1, 0

    def targets(self, batch: data.Batch) -> data.Targets:
        if not self.masked:
            return data.causal_targets(batch, PROMPT_WEIGHT)
        noise = torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)
        return data.masked_targets(batch, noise, self.o.focus, self.surest, 1.0 if self.on_cached_prompt() else 0.5)

    def on_cached_prompt(self) -> bool:
        """Whether this step reads the prompt from a cache, as a cached decode does."""
        return self.masked and (self.step * _GOLDEN) % 1 < self.o.stale

    @torch.no_grad()
    def surest(self, inputs: Tensor) -> Tensor:
        """The probability of the likeliest token of each position, [B, L]."""
        shift = networks.SHIFT[self.name]
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = networks.logits_of(self.reader, inputs.to(self.device), self.masked)
        return logits.float().softmax(-1).amax(-1).roll(shift, 1).cpu()

    def loss_of(self, target: data.Targets, prompt: Tensor) -> Tensor:
        """Weighted mean of the cross entropy (with a teacher: half of it against the teacher's distribution).

        With exits it is the mean over them, so that each counts alike.
        """
        shift = networks.SHIFT[self.name]
        inputs, labels, weights = (x.to(self.device) for x in (target.inputs, target.labels, target.weights))
        with torch.autocast(self.device.type, torch.bfloat16):
            if self.on_cached_prompt():
                drafts = [networks.logits_from_cache(self.model, inputs, prompt.to(self.device), data.MASK, shift)]
            elif self.o.exits:
                drafts = networks.logits_at(self.model, inputs, self.o.exits)
            else:
                drafts = [networks.logits_of(self.model, inputs, self.masked)]
        length = inputs.shape[1]
        wanted = weights[:, shift:] > 0
        weight, soft = weights[:, shift:][wanted], None
        if self.teacher is not None:
            with torch.no_grad(), torch.autocast(self.device.type, torch.bfloat16):
                taught = networks.logits_of(self.teacher, inputs, networks.is_masked(self.taught_by))
                taught = taught.roll(networks.SHIFT[self.taught_by] - shift, 1)
            soft = taught[:, : length - shift][wanted].float().softmax(-1)
        total = torch.zeros((), device=self.device)
        for logits in drafts:
            rows = logits[:, : length - shift][wanted].float()
            each = F.cross_entropy(rows, labels[:, shift:][wanted], reduction="none")
            if soft is not None:
                each = 0.5 * each + 0.5 * F.cross_entropy(rows, soft, reduction="none")
            total = total + (each * weight).sum() / weight.sum()
        return total / len(drafts)

    def take(self, batch: data.Batch) -> float:
        """One optimizer step; its loss."""
        target = self.targets(batch)
        if self.name == "tiny-nemotron":
            noise = torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = joint_loss(self.model, batch, target, noise)
        else:
            loss = self.loss_of(target, batch.prompt)
        self.descend(loss, self.model.parameters())
        self.step += 1
        self.tokens += batch.ids.numel()
        self.update_average(self.model.state_dict())
        return loss.item()

    def advance(self) -> float:
        return self.take(next(self.source))

    # -- what comes out ----------------------------------------------------------------------------------------

    def exported(self) -> tuple[torch.nn.Module, dict[str, Tensor]]:
        """The averaged weights as they are exported, and a network with them."""
        weights = rounded(self.average)
        model = self._network(self.name).to("cpu")
        model.load_state_dict({key: value.float() for key, value in weights.items()})
        model.requires_grad_(False).set_attn_implementation("eager")
        return model, weights

    def evaluate(self, final: bool) -> dict[str, float]:
        model, weights = self.exported()
        found, shares = measure(model, self.name, self.tokenizer, self.o.mix, self.o.problems, final)
        self.curve.append(self.point() | shares)
        export(self.o.out, self.name, model, weights, self.card(found))
        self.reached = self.o.until is not None and shares[next(iter(self.o.mix))] >= self.o.until
        return shares

    def log(self, more: Mapping[str, Any]) -> str:
        speed = round(self.tokens / max(self.seconds, 1e-9))
        return super().log({"rate": round(self.rate(), 4), "tokens_per_s": speed, **more})

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        given = read_card(self.o.init) if self.o.init else {}
        before = given if given.get("name") == self.name else {}  # more of the same model
        decoding_config = {
            "started from": "random weights" if not given else "the run before" if before else given["name"],
            "distilled from": self.taught_by or "nothing",
            "data": "train splits, drawn on the fly: "
            + "; ".join(f"from step {step} on {shares}" for step, shares in self.mixes),
            "masks": MASKS if self.masked else BLOCKS if self.name == "tiny-nemotron" else "none",
            "steps with a cached prompt": f"{self.o.stale:.0%}" if self.masked else "none",
            "optimizer": f"{self.o.optimizer}, peak learning rate {self.o.lr:g}, linear decay",
            **({"exits": "-".join(map(str, self.o.exits))} if self.o.exits else {}),
            "tokens per step": self.o.batch,
            "steps": self.step,
            "tokens": self.tokens,
            "seconds": round(self.seconds),
            "device": self.device.type,
            "precision": "float32 weights, bfloat16 matmuls",
            "exported": f"moving average over steps (decay {AVERAGE}) in bfloat16",
            "seed": self.o.seed,
        }
        recipe = {"script": "scripts/train_text.py", **decoding_config}
        if before:
            recipe["run before"] = before["recipe"]
        parameters = sum(p.numel() for p in self.model.parameters())
        head = {"name": self.name, "summary": SUMMARY[self.name], "parameters": parameters}
        return head | {"recipe": recipe, "accuracy": found, "curve": [*before.get("curve", []), *self.curve]}
