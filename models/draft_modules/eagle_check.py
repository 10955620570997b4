"""Checks on a target's text which convention for an EAGLE-3's layer ids drafts better."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..plan import Plan, TargetStates, Visible
from .eagle import EagleModule

_MARGIN = 0.05  # minimum gain in agreement for the other convention to be named


@dataclass(frozen=True, slots=True)
class Agreement:
    """Shares of positions at which the drafter's likeliest token is the target's."""

    layers: tuple[int, ...]
    share: float
    others: tuple[int, ...] | None = None  # the layers that the other convention reads from the same ids
    other_share: float = 0.0

    @property
    def warning(self) -> str | None:
        """Advice if the other convention is better; None if it is not, or if there is none."""
        if self.others is None or self.other_share < self.share + _MARGIN:
            return None
        better = "-".join(map(str, self.others))
        return (
            f"the outputs of layers {better} agree with the target at {self.other_share:.0%} of positions, those that "
            f"are read at {self.share:.0%}: try taps={better}"
        )


@torch.inference_mode()
def agreement(module: EagleModule, tokens: Tensor) -> Agreement:
    """How often `module` is right on texts [B, T] of its target, with the target's states (256 tokens suffice).

    Both meanings of the layer ids are tried where the config allows two.
    """
    target, readings = module.target, [module.states.layers]
    if module.taps is not None and module.taps.others is not None:
        readings.append(module.taps.others)
    plan = Plan.full(tokens, Visible.causal())
    layers = tuple({layer for reading in readings for layer in reading})
    whole = target.forward(
        Plan(plan.tokens, plan.positions, plan.slots, plan.visible, plan.lengths, plan.want, hidden=layers)
    )
    expected = whole.logits()[:, 1:].argmax(-1)
    pairs = Plan.full(tokens[:, 1:], Visible.causal())
    shares = []
    for reading in readings:
        states = TargetStates(reading) if reading else module.states
        soft = module.fuse(states.of(whole))[:, :-1]
        output = module.run(
            Plan(pairs.tokens, pairs.positions, pairs.slots, pairs.visible, pairs.lengths, pairs.want, soft=soft)
        )
        shares.append(float((output.logits().argmax(-1) == expected).float().mean()))
    return Agreement(readings[0], shares[0], *((readings[1], shares[1]) if len(readings) > 1 else ()))
