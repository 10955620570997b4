"""The base of the runs of this folder: weights, schedule, card."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from image_training.export import SUMMARY
from image_training.options import Options
from pardec.training.resumable import AVERAGE, Resumable


class Training(Resumable):
    """The training of one model; `optimizers` are to be set."""

    kept = (*Resumable.kept, "loss", "curve", "average")

    def __init__(self, options: Options, model: nn.Module) -> None:
        length = {"steps": options.steps, "minutes": options.minutes, "every": options.every}
        super().__init__(options.model, options.state, **length, peak=options.lr)  # type: ignore[arg-type]
        self.o, self.model = options, model
        self.device = next(model.parameters()).device
        self.average = {key: value.detach().clone() for key, value in model.state_dict().items()}

    @abstractmethod
    def take(self) -> Tensor:
        """The loss of the step in progress, its gradients computed and the optimizers stepped."""

    def advance(self) -> float:
        loss = self.take().item()
        self.step += 1
        self.update_average(self.model.state_dict())
        return loss

    def parts(self) -> dict[str, Any]:
        return {"model": self.model}

    def settings(self) -> dict[str, Any]:
        return {"init": self.o.init and self.o.init.name, "shape": sorted(self.o.shape.items())}

    def go_on(self) -> None:
        """Continues from a saved state, if there is one and it is wanted."""
        if not self.o.fresh:
            self.restore(self.device)

    def noise(self) -> torch.Generator:
        return torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)

    def log(self, more: Mapping[str, Any]) -> str:
        return super().log({"rate": round(self.rate(), 4), **more})

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


class Descent(Training):
    """A run that minimizes losses of a corpus' batches, with Muon for matrices of layers and AdamW for the rest."""

    corpus: Any  # what has `batch(step, count)`

    @abstractmethod
    def loss_of(self, batch: Any) -> tuple[Tensor, Tensor]:
        """The loss, and the part of it that is logged."""

    def passing(self) -> AbstractContextManager[Any]:
        """The context of a forward and backward pass."""
        return nullcontext()

    def take(self) -> Tensor:
        with self.passing():
            loss, told = self.loss_of(self.corpus.batch(self.step, self.o.batch))
            self.descend(loss, self.model.parameters())
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
