"""The base of methods that sample whole token maps: filters and temperature of each scale, and how codes are drawn."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeVar

import torch
from einops import rearrange
from torch import Tensor

from pardec.models import finite
from pardec.models.errors import SpecError
from pardec.models.scales.contracts import ScaleModel, values

from ...ops.confidence import argmax
from ...ops.distribution import filter_logits
from ...ops.inverse_cdf import sample
from ...spec import Policy
from ..contracts import RoundResult, ScaleContext
from ..forward import ScaleForward

Order = Literal["filters", "temperature"]
_N = TypeVar("_N", int, float)
_MOST = 1024  # entries of a list


class MapMethod(Policy):
    """A method with filters and temperatures of each scale, given by the fields that it declares."""

    temperatures: str | None
    top_ks: str | None
    cfgs: str | None
    order: Order

    def __post_init__(self) -> None:
        self._each("temperatures", float, "above 0", lambda value: value > 0 and math.isfinite(value))
        self._each("cfgs", float, "at least 0", lambda value: value >= 0 and math.isfinite(value))
        self._each("top_ks", int, "at least 0, where 0 keeps all", lambda value: value >= 0)

    @property
    def needed_model(self) -> str | None:
        return None

    def check_model(self, model: ScaleModel) -> None:
        """Raises SpecError for a top-k beyond the codebook."""
        most = max(self._each("top_ks", int, "", lambda value: True), default=0)
        if most > model.quantizer.vocab:
            raise SpecError(
                f"{self.registered[0]}: top_ks has {most}, and {model.name} has {values(model.quantizer)}",
                hint="0 keeps all",
            )

    def start(self, context: ScaleContext) -> Any:
        return ScaleForward(context, context.model)

    def round(self, context: ScaleContext, state: Any) -> RoundResult:
        logits, fed = state.next_logits(self.guidance(context))
        self.draw(context, logits)
        return RoundResult(fed)

    def guidance(self, context: ScaleContext) -> float:
        """The factor of the request's guidance at the next scale."""
        return self._at("cfgs", float, context.maps.scale, 1.0)

    def draw(self, context: ScaleContext, logits: Tensor) -> None:
        """Draws and commits the codes of the next scale from its logits [n, n_s, V], each independently of the others.

        A code is the first whose cumulative probability, in index order, exceeds the uniform of its position; where
        codes have several digits, each digit is drawn so.
        """
        maps, request = context.maps, context.request
        digits, vocab = maps.quantizer.digits, maps.quantizer.vocab
        with context.watch("draw"):
            if digits > 1:
                logits = rearrange(logits, "n s (digit v) -> n (s digit) v", v=vocab)
            temperature = request.temperature * self._at("temperatures", float, maps.scale, 1.0)
            top_k = self._at("top_ks", int, maps.scale, request.top_k or 0) or None
            first = temperature if self.order == "temperature" else 0
            probs = filter_logits(logits, temperature=first, top_k=top_k, top_p=request.top_p, order="top_k")
            if self.order == "filters" and temperature not in (0, 1):
                probs = probs / temperature
            probs = probs.softmax(-1)
            codes = argmax(probs) if temperature == 0 else sample(probs, maps.uniforms())
            score = probs.gather(-1, codes[..., None])[..., 0]
            if digits > 1:
                place = vocab ** torch.arange(digits - 1, -1, -1, device=codes.device)
                codes = (rearrange(codes, "n (s digit) -> n s digit", digit=digits) * place).sum(-1)
                score = rearrange(score, "n (s digit) -> n s digit", digit=digits).prod(-1)
        maps.commit(codes, score, finite.highest(logits))

    def _at(self, name: str, kind: Callable[[str], _N], scale: int, default: _N) -> _N:
        """The value of a list at a scale; the last one applies to all further scales."""
        values = self._each(name, kind, "", lambda value: True)
        return values[min(scale, len(values) - 1)] if values else default

    def _each(self, name: str, kind: Callable[[str], _N], rule: str, holds: Callable[[_N], bool]) -> list[_N]:
        """The values of a list in text form: 1.1x7/1 is 1.1 seven times, then 1. Raises SpecError for other text."""
        text: str | None = getattr(self, name)
        values: list[_N] = []
        for part in () if text is None else text.split("/"):
            value, times, count = part.partition("x")
            try:
                number, repeat = kind(value), int(count) if times else 1
            except ValueError:
                number, repeat = None, 0
            if number is None or not 1 <= repeat <= _MOST or not holds(number):
                raise SpecError(
                    f"{self.registered[0]}: {name} has the entry {part!r}, which is no number {rule}",
                    hint=f"write it like {name}="
                    + ("1.1x7/1, 1.1" if kind is float else "900x7/600, 900")
                    + " at the first seven scales",
                )
            values += [number] * repeat
        return values
