"""Entry e: the next part of training SmolLM2 as a masked model, by Fast-dLLM v2's recipe (arXiv:2509.26328).

Texts are cut into blocks of 32. A block draws a rate, and each of its answer tokens is masked at that rate in one view
and kept in the other, so that every answer token is predicted once. The output at p - 1 predicts the token at p: that
of the view inside a block, that of the clean copy for a block's first token. Both views and the clean copy are one
forward of three times the tokens (in `scripts/text_training/block_diffusion.py` each view has its own clean copy).

A stretch ends by writing the state: the difference of all weights to SmolLM2's in a few bits (`difference.py`), and how
far the training has come. The optimizer's moments are not kept; AdamW starts anew after each checkpoint, also in a run
that continues, which continues from the weights as they were written: resuming is bit-equal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gpu_runs import difference
from gpu_runs.llama import Weights, states
from gpu_runs.parcels import missing
from gpu_runs.report import Report
from gpu_runs.smollm2 import Shape, read
from gpu_runs.texts import Texts, captured, packed, views, write

WANTED = 10_000_000  # tokens of texts
HELD_OUT = 64  # texts at the beginning, which are never trained on; a tenth where there are few
WRITING_S = 150.0  # seconds at most for writing texts
_MOMENTS = (0.9, 0.95)


@dataclass(frozen=True)
class Recipe:
    """Sizes and rates of the training."""

    total: float = (
        170e6  # tokens of all forwards, three for each token of a text, after which the rate has fallen to 5%
    )
    rate: float = 4e-4  # AdamW's, at its peak
    warmup: int = 40  # steps after each start of the optimizer
    rows: int = 16
    length: int = 512
    block: int = 32
    decay: float = 0.01
    clip: float = 1.0
    head_rows: int = 4096  # positions whose logits are made at once


class Training:
    """One run: weights, optimizer, texts, and its progress."""

    def __init__(
        self,
        shape: Shape,
        base: dict[str, Tensor],
        texts: Texts,
        template: dict[str, Any],
        recipe: Recipe,
        device: torch.device,
        dtype: torch.dtype = torch.bfloat16,
    ) -> None:
        self.shape, self.base, self.recipe, self.template = shape, base, recipe, template
        self.weights = Weights(shape, base, device, dtype)
        self.first, self.second = (torch.zeros_like(self.weights.master) for _ in range(2))
        self.step, self.local, self.tokens = 0, 0, 0.0
        self.left: Callable[[], float] | None = None  # share of the last stretch that remains; None: it is not the last
        self.start = 1.0  # the learning rate at the start of the last stretch, divided by the recipe's
        held_out = min(HELD_OUT, len(texts) // 10 + 1)
        self.held_out, self.texts = texts.slice(0, held_out), texts.slice(held_out, len(texts))
        self._epoch, self._rows = 0, self._pack(0)
        self._row_count = len(self._rows["ids"])
        self._steps_per_epoch = max(self._row_count // recipe.rows, 1)
        size = (recipe.rows, recipe.length)
        self.inputs = {name: torch.zeros(size, dtype=torch.int64, device=device) for name in ("ids", "doc", "pos")}
        self.inputs |= {name: torch.zeros(size, dtype=torch.bool, device=device) for name in ("answer", "masked")}
        self.rates = torch.zeros(3, device=device)  # the learning rate, and what the moments are divided by
        self.loss = torch.zeros((), device=device)
        self._take: Callable[[], None] = self._one_step
        if device.type == "cuda":
            self._fill(0)
            kept = self.weights.master.clone()
            self._take = captured(self._one_step)
            with torch.no_grad():  # the steps before the capture do not count
                self.weights.master.copy_(kept)
                self.first.zero_()
                self.second.zero_()
                self.weights.refresh()

    # -- batches ---------------------------------------------------------------------------------------------------

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The rows of a step, and which of their answer tokens the first view masks: a function of the step alone."""
        rows = self._epoch_rows(step)
        at = step % self._steps_per_epoch * self.recipe.rows
        chosen = {name: _resized(values[at : at + self.recipe.rows], self.recipe.rows) for name, values in rows.items()}
        return {**chosen, "masked": masked_by(chosen, self.recipe.block, np.random.default_rng((7, step)))}

    def _epoch_rows(self, step: int) -> dict[str, np.ndarray]:
        """The rows of the step's epoch; all epochs have equally many, so that a step determines its own."""
        epoch = step // self._steps_per_epoch
        if epoch != self._epoch:
            self._epoch, rows = epoch, self._pack(epoch)
            self._rows = {name: _resized(values, self._row_count) for name, values in rows.items()}
        return self._rows

    def _pack(self, epoch: int) -> dict[str, np.ndarray]:
        order = np.random.default_rng((5, epoch)).permutation(len(self.texts))
        return packed(self.texts, self.recipe.length, self.recipe.block, self.template["end"], order)

    def _fill(self, step: int) -> None:
        for name, values in self.batch(step).items():
            self.inputs[name].copy_(torch.from_numpy(values))

    # -- a step ----------------------------------------------------------------------------------------------------

    def _one_step(self) -> None:
        """Computes loss, gradients and AdamW's step from `inputs` and `rates` without reading a value on the host."""
        loss = block_loss(self.weights, self.inputs, self.template["mask"], self.recipe)
        loss.backward()
        gradient = self.weights.flat.grad
        assert gradient is not None
        with torch.no_grad():
            self.loss.copy_(loss)
            values = gradient.float()
            values *= (self.recipe.clip / (values.norm() + 1e-6)).clamp(max=1.0)
            gradient.zero_()
            one, two = _MOMENTS
            self.first.lerp_(values, 1 - one)
            self.second.lerp_(values.square_(), 1 - two)
            rate, first, second = self.rates.unbind()
            master = self.weights.master
            master.mul_(1 - rate * self.recipe.decay)
            master.sub_(rate * (self.first / first) / ((self.second / second).sqrt_() + 1e-8))
            self.weights.refresh()

    def rate(self) -> float:
        """The learning rate: linear to the recipe's, then down to 5% of it at the end of all tokens.

        In the last stretch it falls to that from where it is, in proportion to the time that is left.
        """
        share = 1 - self.tokens / self.recipe.total if self.left is None else self.start * self.left()
        share = max(0.05, share)
        return self.recipe.rate * share * min(1.0, (self.local + 1) / self.recipe.warmup)

    @property
    def finished(self) -> bool:
        """Whether a state that is written now is the training's last."""
        return self.left is not None or self.tokens >= self.recipe.total

    def take(self) -> None:
        """One step."""
        self._fill(self.step)
        one, two = _MOMENTS
        self.rates.copy_(torch.tensor([self.rate(), 1 - one ** (self.local + 1), 1 - two ** (self.local + 1)]))
        self._take()
        self.step, self.local = self.step + 1, self.local + 1
        self.tokens += 3.0 * self.recipe.rows * self.recipe.length

    @torch.no_grad()
    def validation(self) -> float:
        """The loss over the held-out texts, with the same masks each time."""
        rows = packed(
            self.held_out, self.recipe.length, self.recipe.block, self.template["end"], np.arange(len(self.held_out))
        )
        rows["masked"] = masked_by(rows, self.recipe.block, np.random.default_rng(3))
        losses, counts = [], []
        for at in range(0, len(rows["ids"]), self.recipe.rows):
            inputs = {
                name: torch.from_numpy(values[at : at + self.recipe.rows]).to(self.weights.device)
                for name, values in rows.items()
            }
            losses.append(float(block_loss(self.weights, inputs, self.template["mask"], self.recipe)))
            counts.append(int(inputs["answer"].sum()))
        return float(np.average(losses, weights=counts))

    # -- state -----------------------------------------------------------------------------------------------------

    def checkpoint(self, folder: Path, steps: dict[str, float] = difference.FINE) -> list[Path]:
        """Writes the state and continues from the written one, like a run that loads it."""
        now = self.weights.views(self.weights.master)
        changes = {name: now[name].cpu() - self.base[name] for name in self.base}
        about = {"step": self.step, "tokens": self.tokens, "finished": self.finished}
        files = difference.save(folder, difference.encode(self.shape, changes, steps), about)
        self.restore(folder)
        return files

    def restore(self, folder: Path) -> bool:
        """Continues from a saved state; False if there is none."""
        found = difference.load(folder)
        if found is None:
            return False
        content, about = found
        changes = difference.decode(self.shape, content)
        flat = torch.cat([(self.base[name] + changes[name]).flatten() for name in self.shape.names()])
        with torch.no_grad():
            self.weights.master.copy_(flat)
            self.weights.refresh()
            for moment in (self.first, self.second):
                moment.zero_()
        self.step, self.tokens, self.local = int(about["step"]), float(about["tokens"]), 0
        return True


def _resized(rows: np.ndarray, count: int) -> np.ndarray:
    """`count` rows: the first ones, or these again from the start."""
    return np.resize(rows, (count, *rows.shape[1:]))


def masked_by(rows: dict[str, np.ndarray], block: int, rng: np.random.Generator) -> np.ndarray:
    """Which answer tokens the first view masks, bool [B, L]: each block of a text draws a rate."""
    size = rows["ids"].shape
    number = np.cumsum(rows["pos"] % block == 0, 1) - 1  # number of the block in the row
    rates = rng.random((size[0], size[1] // block + 1))
    return np.asarray(rows["answer"] & (rng.random(size) < np.take_along_axis(rates, number, 1)))


def block_states(weights: Weights, inputs: dict[str, Tensor], mask: int, block: int) -> Tensor:
    """The state [B, L, E] from which each token is predicted; the state of a text's first token has no meaning."""
    ids, answer, first = inputs["ids"], inputs["answer"], inputs["masked"]
    second = answer & ~first
    streams = torch.stack([ids.masked_fill(first, mask), ids.masked_fill(second, mask), ids], 1)
    masks = views({"doc": inputs["doc"], "block": inputs["pos"] // block})
    found = states(weights, streams, inputs["pos"], masks)
    stream = torch.where(first, 0, 1)  # the view that masks the token
    stream = torch.where(inputs["pos"] % block == 0, 2, stream)
    before = (torch.arange(ids.shape[1], device=ids.device) - 1).clamp(min=0)
    source = stream * ids.shape[1] + before  # gathered, since a graph can capture that and its backward
    return found.flatten(1, 2).gather(1, source[..., None].expand(-1, -1, found.shape[-1]))


def block_loss(weights: Weights, inputs: dict[str, Tensor], mask: int, recipe: Recipe) -> Tensor:
    """Mean cross entropy of the answer tokens."""
    wanted = block_states(weights, inputs, mask, recipe.block).flatten(0, 1)
    embed = weights.matrices()[0]
    targets, counted = inputs["ids"].flatten(), inputs["answer"].flatten()
    total = torch.zeros((), device=wanted.device)
    for at in range(0, len(wanted), recipe.head_rows):
        part = slice(at, at + recipe.head_rows)
        losses = F.cross_entropy(F.linear(wanted[part], embed).float(), targets[part], reduction="none")
        total = total + (losses * counted[part]).sum()
    return total / counted.sum().clamp(min=1)


def carried_model(report: Report) -> tuple[Shape, dict[str, Any], dict[str, Tensor]] | None:
    """SmolLM2 as it was carried here; None where it was not, and the report says why."""
    gone = missing(report.inputs, "smollm2.bin")
    if gone is None:
        return read((report.inputs / "smollm2.bin").read_bytes())
    report.set(status="waits")
    report.line(gone)
    return None


def run(report: Report) -> None:
    """Writes missing texts, then trains until the time is over, then saves the state.

    A training that has ended is continued only with `finish`, by another last stretch.
    """
    folder = report.file.parent
    carried = folder / "none" if report.dry else report.inputs
    if not report.finish and (state := difference.load(carried)) is not None and state[1]["finished"]:
        report.line(f"the training ended at {state[1]['tokens'] / 1e6:.1f} million tokens; --finish adds a stretch")  # type: ignore[operator]
        return
    if report.dry:
        shape, template, base = tiny()
        recipe = Recipe(total=1e6, rate=3e-3, warmup=4, rows=4, length=64, block=8)
        device, wanted = torch.device("cpu"), 2500
    else:
        given = carried_model(report)
        if given is None:
            return
        shape, template, base = given
        recipe, device, wanted = Recipe(), torch.device("cuda"), WANTED
    texts = Texts.load(carried)
    have = 0 if texts is None else len(texts.ids)
    if have < wanted:
        started = time.monotonic()
        model = Weights(shape, base, device, torch.bfloat16)
        share = 0.6 if texts is None else 0.3  # share of the entry's time for texts; the rest is for training
        budget = min(WRITING_S, share * report.left())
        small = {"message": 24, "answer": 24} if report.dry else {}
        fresh = write(
            model, template, tokens=wanted - have, seconds=budget, rows=32 if report.dry else 2048, seed=have, **small
        )
        texts = fresh if texts is None else texts + fresh
        del model
        files = texts.save(folder)
        report.row(
            part="texts", texts=len(texts), tokens=len(texts.ids), seconds=time.monotonic() - started, files=len(files)
        )
    if texts is None or len(texts) < 2:
        raise RuntimeError("no texts were written")
    training = Training(shape, base, texts, template, recipe, device)
    resumed = training.restore(carried)
    before = training.validation()
    report.row(part="start", resumed=resumed, step=training.step, tokens=training.tokens, validation=before)
    saving = 5.0 if report.dry else 30.0  # seconds that are kept for the state
    started, first, losses = time.monotonic(), training.step, []
    most = 30 if report.dry else 10**9
    if report.finish:
        whole = report.left() - saving
        training.start = 1 - training.tokens / recipe.total
        training.left = lambda: (report.left() - saving) / whole
    while report.left() > saving and training.step - first < most and training.tokens < recipe.total:
        training.take()
        if training.step % (10 if report.dry else 100) == 0:
            losses.append(float(training.loss))
            seconds = time.monotonic() - started
            speed = 3 * recipe.rows * recipe.length * (training.step - first) / seconds
            report.row(part="steps", step=training.step, loss=losses[-1], tokens_per_second=speed, rate=training.rate())
    trained = training.validation()
    files = training.checkpoint(folder)
    kept = training.validation()
    size = sum(file.stat().st_size for file in files)
    report.row(part="state", step=training.step, validation=trained, as_written=kept, bytes=size, files=len(files))
    report.set(recipe=asdict(recipe), finished=training.finished)
    report.line(
        f"{training.tokens / 1e6:.1f} of {recipe.total / 1e6:.0f} million tokens; validation loss {before:.3f} before, "
        f"{trained:.3f} after, {kept:.3f} as written in {size / 1e6:.1f} MB"
    )


def tiny() -> tuple[Shape, dict[str, Any], dict[str, Tensor]]:
    """A shape, a chat template and random weights for a dry run."""
    shape = Shape(vocab=40, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, mlp_width=48)
    generator = torch.Generator().manual_seed(0)
    base = {
        name: torch.randn(size, generator=generator) * (0.08 if len(size) > 1 else 0) + (len(size) == 1)
        for name, size in shape.names().items()
    }
    openings = [[[20, 21], 0.5], [[], 0.5]]
    return shape, {"before": [1, 9, 3], "after": [2, 3, 1, 8], "end": 2, "mask": 4, "openings": openings}, base
