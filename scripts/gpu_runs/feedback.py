"""Encodes the difference of a finished training so that its loss rises little for the bytes: `--encode`.

What a weight's error costs is estimated by Fisher's information on texts of the training, for each matrix as the
product of a share of its row and a matrix over columns, both from gradients of single texts (Shampoo's,
arXiv:1802.09568). Columns are rounded one after another, and each error is made up for in those that follow (GPTQ,
arXiv:2210.17323); steps are inverse to the square root of what an error costs, so that one number sets those of all
matrices. The embedding has larger ones, since the training wrote it with larger ones.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from gpu_runs import difference
from gpu_runs.difference import MOST, Coded, power
from gpu_runs.llama import Weights
from gpu_runs.smollm2 import Shape, carried, read
from gpu_runs.texts import Texts, packed
from gpu_runs.training import HELD_OUT, Recipe, Training, block_states, masked_by

EMBED = "model.embed_tokens.weight"
STEPS = {"matrix": 1.05e-3, "embedding": 1.7e-3}  # step of a weight whose squared error costs 1 nat in all
MEASURED = 8  # rows of texts
EXPECTED = 0.25  # weight of the assumed costs of rows: equal, or in proportion to how often a token occurs
DAMPING = 0.05  # share of the columns' mean cost that is added to each column
TOWARDS_ZERO = 0.1  # a number is rounded up from this much above a half
BLOCK = 64  # columns whose errors are passed on at once


@dataclass
class Cost:
    """The costs of squared errors of a matrix [R, C]: products of gradients [C, C], and the share of each row [R]."""

    columns: Tensor
    rows: Tensor


class _Recorder(TorchFunctionMode):
    """Keeps the inputs and outputs of all matrix products and of the embedding, in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in (F.linear, F.embedding):
            found = found.requires_grad_()
            found.retain_grad()
            self.kept.append((args[0].detach(), found))
        return found


def inputs_of(texts: Texts, template: dict[str, Any], rows: int) -> list[dict[str, Tensor]]:
    """At most `rows` rows of texts from all batches, each as the inputs of `block_states`, [1, L]."""
    recipe = Recipe()
    order = np.random.default_rng(11).permutation(len(texts))[: 8 * rows]
    inputs = packed(texts, recipe.length, recipe.block, template["end"], order)
    inputs["masked"] = masked_by(inputs, recipe.block, np.random.default_rng(12))
    return [
        {name: torch.from_numpy(values[row : row + 1]) for name, values in inputs.items()}
        for row in range(min(rows, len(inputs["ids"])))
    ]


def costs(
    shape: Shape, tensors: dict[str, Tensor], texts: Texts, template: dict[str, Any], rows: int
) -> dict[str, Cost]:
    """The costs of all matrices, on `rows` rows of texts; targets are drawn from the model itself."""
    weights = Weights(shape, tensors, torch.device("cpu"), torch.float32)
    weights.flat.requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    embed = weights.matrices()[0]
    sizes = shape.names()
    found = {
        name: Cost(torch.zeros(size[1], size[1]), torch.zeros(size[0])) for name, size in sizes.items() if len(size) > 1
    }
    groups = [
        [f"model.layers.{layer}.{name}.weight" for name in group]
        for layer in range(shape.layers)
        for group in (
            ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            ("self_attn.o_proj",),
            ("mlp.gate_proj", "mlp.up_proj"),
            ("mlp.down_proj",),
        )
    ]
    for number, one in enumerate(inputs_of(texts, template, rows), 1):
        with _Recorder() as recorder:
            wanted = block_states(weights, one, template["mask"], Recipe.block)[one["answer"]]
        with torch.no_grad():
            likely = F.linear(wanted, embed).softmax(-1)
            doubt = likely * (1 - likely)  # the expectation of the squared gradients of the logits
            found[EMBED].columns += wanted.T @ (wanted * doubt.sum(1, keepdim=True))
            found[EMBED].rows += doubt.T @ wanted.square().sum(1)
            drawn = torch.multinomial(likely, 1, generator=generator)[:, 0]
            gradient = likely @ embed - embed[drawn]
        wanted.backward(gradient)
        (ids, embedded), *products = recorder.kept
        for doc in range(int(one["doc"].max()) + 1):  # texts do not see each other: each is a sample
            own = (one["doc"] == doc).repeat(1, 3).flatten()
            tokens, place = ids.flatten()[own].unique(return_inverse=True)
            grad = _gradient(embedded)[own]
            grad = torch.zeros(len(tokens), shape.width).index_add_(0, place, grad)
            found[EMBED].columns += grad.T @ grad
            found[EMBED].rows[tokens] += grad.square().sum(1)
            for names, (x, y) in zip(groups, products, strict=True):
                grad = _gradient(y)[own].T @ x.flatten(0, -2)[own]
                for name, part in zip(names, grad.split([sizes[name][0] for name in names]), strict=True):
                    found[name].columns += part.T @ part
                    found[name].rows += part.square().sum(1)
        print(f"measured row {number} of {rows}", flush=True)
    for name, cost in found.items():
        usual = torch.ones(len(cost.rows))
        if name == EMBED:
            usual = torch.from_numpy(np.bincount(texts.ids, minlength=shape.vocab) + 0.05).float()
        cost.rows += EXPECTED * cost.rows.sum() * usual / usual.sum()
    return found


def _gradient(values: Tensor) -> Tensor:
    assert values.grad is not None
    return values.grad.flatten(0, -2)


def rounded(values: Tensor, cost: Cost, step: float) -> Coded:
    """A matrix [R, C] as integers; `step` is the step of a weight whose squared error costs 1."""
    inputs = cost.columns.double()
    inputs += DAMPING * inputs.diagonal().mean() * torch.eye(len(inputs))
    order = inputs.diagonal().argsort(descending=True)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(inputs[order][:, order]))
    onward = torch.linalg.cholesky(inverse, upper=True)  # [C, C]: what is left of each column, and where errors go
    free = onward.diagonal().log2()
    columns = (8 * (free - free.mean())).round().clamp(-128, 127).to(torch.int16)
    steps = step * 2 ** free.mean().float() * (cost.rows / cost.rows.sum()).rsqrt()
    left = values[:, order].T.contiguous()  # [C, R]
    rows = difference.row_exponents(steps, (left / power(columns)[:, None]).T)
    integers = torch.empty(left.shape, dtype=torch.int8)
    onward, of_rows, of_columns = onward.float(), power(-rows), power(columns)
    for first in range(0, len(left), BLOCK):
        last = min(first + BLOCK, len(left))
        errors = torch.empty(last - first, left.shape[1])
        for at in range(first, last):
            size = of_rows * of_columns[at]
            now = left[at] / size
            whole = (now.abs() + (0.5 - TOWARDS_ZERO)).floor().clamp(max=MOST) * now.sign()
            integers[at] = whole.to(torch.int8)
            errors[at - first] = (left[at] - whole * size) / onward[at, at]
            left[at + 1 : last] -= onward[at, at + 1 : last, None] * errors[at - first]
        left[last:] -= onward[first:last, last:].T @ errors
    back = order.argsort()
    return Coded(integers[back].T.contiguous(), rows, columns[back])


def encode(gguf: Path, state: Path) -> int:
    """Encodes the state of a finished training anew, in its folder; returns 2 for none, or an encoded one."""
    found = difference.load(state)
    texts = Texts.load(state)
    if found is None or texts is None or not gguf.is_file():
        absent = gguf if not gguf.is_file() else state / ("state-1.bin" if found is None else "texts-1.bin")
        print(f"error: {absent} does not exist", file=sys.stderr)
        return 2
    content, about = found
    if "encoded" in about or not about["finished"]:
        why = "has been encoded" if "encoded" in about else "is that of a training that goes on"
        print(f"error: {state}: the state {why}; git has earlier ones", file=sys.stderr)
        return 2
    shape, template, base = read(carried(gguf))
    changes = difference.decode(shape, content)
    again = encoded(shape, template, base, changes, texts.slice(HELD_OUT, len(texts)), STEPS, MEASURED)
    losses = []
    for each in (changes, difference.decode(shape, again)):
        training = Training(
            shape,
            {name: base[name] + each[name] for name in base},
            texts,
            template,
            Recipe(),
            torch.device("cpu"),
            torch.float32,
        )
        losses.append(training.validation())
    files = difference.save(state, again, {**about, "encoded": losses})
    size = sum(file.stat().st_size for file in files)
    print(f"{size / 1e6:.1f} MB; validation loss {losses[0]:.4f} before, {losses[1]:.4f} as encoded")
    return 0


def encoded(
    shape: Shape,
    template: dict[str, Any],
    base: dict[str, Tensor],
    changes: dict[str, Tensor],
    texts: Texts,
    steps: dict[str, float],
    rows: int,
) -> bytes:
    """The changes of the `base` in bytes; `texts` are those that the costs are measured on."""
    tensors = {name: base[name] + changes[name] for name in base}
    return difference.pack(shape, coded(changes, costs(shape, tensors, texts, template, rows), steps))


def coded(changes: dict[str, Tensor], cost: dict[str, Cost], steps: dict[str, float]) -> dict[str, Tensor | Coded]:
    """The changes with their matrices as integers."""
    return {
        name: rounded(values, cost[name], difference.step_of(name, steps)) if name in cost else values
        for name, values in changes.items()
    }
