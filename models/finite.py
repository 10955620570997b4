"""Detects values that are not finite, at almost no cost, and searches for the cause.

    highest(logits) = the sum of each row's highest logit: finite iff no row holds NaN or +inf, or nothing but -inf

A logit of -inf is a token that is ruled out. Infinity in the head's weights makes such logits too, so these are checked
once per model. The search may take seconds: it reads every weight, then runs the forward again layer by layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .caches.kv_cache import KVCache
from .errors import ModelError, PardecError, SpecError
from .kernels.cpu import blocks
from .kernels.cpu.blocks import BlockWeight
from .kernels.layout import dense, stored
from .plan import Hidden, Plan

if TYPE_CHECKING:
    from .model import LanguageModel

Run = tuple[Plan, KVCache | None]  # a forward's arguments


def highest(logits: Tensor) -> Tensor:
    """[]: the sum of the highest logit of each row of [..., V]; nothing is copied to the host.

    >>> highest(torch.tensor([[0.0, -torch.inf], [2.0, 1.0]])), highest(torch.tensor([[0.0, torch.nan]]))
    (tensor(2.), tensor(nan))
    """
    return logits.amax(-1).sum()


def sound(logits: Tensor) -> Tensor:
    """[...] bool: the rows of `logits` [..., V] that define a distribution."""
    return logits.amax(-1).isfinite()


def damaged(weights: Iterable[tuple[str, Tensor]]) -> str | None:
    """Names the first weight that holds NaN or infinity, and says how many it holds; None if all are finite."""
    for name, weight in weights:
        if weight.is_meta or not weight.numel():
            continue
        values: Any = dense(weight).detach()
        if hasattr(values, "dequantize") and type(values) not in (Tensor, torch.nn.Parameter):
            values = values.dequantize()
        wrong = values.numel() - int(values.isfinite().sum())
        if wrong:
            return f"its weight {name} holds NaN or infinity ({wrong} of {values.numel()} numbers)"
    return None


def named_weights(*parts: Any) -> Iterable[tuple[str, Tensor]]:
    """The weights of networks by name, without networks that name none."""
    for part in parts:
        yield from getattr(part, "named_parameters", tuple)()


def by_weights(name: str, what: str, *parts: Any) -> ModelError | None:
    """The error for a model whose `what` are not finite because weights of its networks `parts` are not; else None."""
    wrong = damaged(named_weights(*parts))
    return None if wrong is None else ModelError(f"{name} gives {what} that are not finite: {wrong}", _AGAIN)


def demand_head(model: LanguageModel) -> None:
    """Raises ModelError where a matrix of the model's head holds NaN or infinity; looks once, with one sum per matrix.

    Infinity there gives its token a logit of +inf in some places and of -inf in others, and a capped logit is finite
    again. Of block-quantized matrices the scales are read. Those of torchao are left out, whose scales would make the
    whole row NaN, and so are those that accelerate keeps elsewhere.
    """
    if model.head_read:
        return
    head = getattr(model.decoder, "head", None)
    for weight in getattr(head, "parameters", tuple)():
        plain = stored(weight)
        if weight.ndim < 2 or weight.is_meta:
            continue
        if isinstance(weight, BlockWeight):
            if blocks.is_finite(weight):
                continue
        elif type(plain) not in (Tensor, torch.nn.Parameter) or bool(plain.detach().sum().isfinite()):
            continue
        if (error := by_weights(model.name, "logits", model.decoder, head)) is not None:  # else an overflow
            raise error
    model.head_read = True


def pixels(name: str, image: Tensor, decoder: Any) -> Tensor:
    """The pixels that an image decoder of the model called `name` made. Raises ModelError unless they are finite."""
    if not bool(image.isfinite().all()):
        raise by_weights(name, "pixels", decoder) or ModelError(
            f"the image decoder of {name} gives pixels that are not finite, though its weights are", "decode in float32"
        )
    return image


def conditioning(name: str, outputs: Iterable[Tensor], reader: Any) -> None:
    """Raises ModelError if `outputs` of the model `name` are not finite, and weights of `reader` are the cause."""
    if all(bool(states.isfinite().all()) for states in outputs):
        return
    if (error := by_weights(name, "states of an image's condition", reader)) is not None:
        raise error


_GUIDANCE = "guidance"
_AGAIN = "the checkpoint is damaged: download it again, or convert it again from its source"


def failure(model: LanguageModel, runs: Sequence[Run], *, cfg: float | None = None) -> PardecError | None:
    """Why logits of these forwards are not finite: a weight, else a layer, else the guidance `cfg`.

    The forwards stand in the order in which they were made. None where nothing that is not finite is found.
    """
    if (error := by_weights(model.name, "logits", model.decoder)) is not None:
        return error
    kind = str(model.dtype).removeprefix("torch.")
    hint = "load it with dtype=float32" if kind != "float32" else "values overflow float32: check its configuration"
    where = None
    if model.processes == 1:  # else all of them would have to run it again
        with suppress(torch.OutOfMemoryError):  # the outputs of all layers are in memory at once
            where = _first_not_finite(model, runs, cfg)
    if where is None:
        return None
    if where == _GUIDANCE:
        return SpecError(
            f"cfg={cfg} mixes huge or infinite logits into values that are not finite",
            "lower cfg, or leave it out; of a network of your own, give tokens that it excludes a low logit, not -inf",
        )
    return ModelError(f"{model.name} gives logits that are not finite: {where} is the first, in {kind}", hint)


def _first_not_finite(model: LanguageModel, runs: Sequence[Run], cfg: float | None) -> str | None:
    """The first layer whose output is not finite when the forward runs again."""
    with torch.inference_mode():
        for plan, cache in runs:
            within = range(model.layers)[plan.layers] if plan.layers is not None else range(model.layers)
            taps = tuple(layer for layer in within if layer < model.layers - 1)
            hidden = model.decoder(replace(plan, hidden=taps, narrow=False), cache)
            raw: Hidden = getattr(hidden, "hidden", hidden)  # holds both halves of a guided image
            logits_sound = bool(sound(raw.logits()[raw.plan.want >= 0]).all())
            if cfg is not None and logits_sound:
                halves = raw.logits().chunk(2)
                mixed = hidden.logits() if hidden is not raw else halves[1] + cfg * (halves[0] - halves[1])
                if not bool(sound(mixed).all()):
                    return _GUIDANCE
            real = raw.plan.positions >= 0
            each = [*sorted(raw.taps.items()), (within[-1], raw.states)]
            for layer, states in each:
                if not bool(states[real].isfinite().all()):
                    return f"the output of layer {layer} of 0..{model.layers - 1}"
            if not logits_sound:
                return "the output of its head"
    return None
