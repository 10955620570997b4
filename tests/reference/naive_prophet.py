"""Prophet (https://arxiv.org/abs/2508.19982) written from its description: one row, no cache, a forward at every step.

A plan of S steps is divided evenly among the blocks. Each step has a forward, even if the schedule commits nothing in
it. If the gap of the region is wide enough for the share of the plan reached with this step, everything open is filled;
else the scheduled number of tokens is committed, the surest first.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pardec.models.plan import Plan


@dataclass
class Told:
    """The result: each position's token, the step that committed it, and the number of steps."""

    tokens: list[int]
    when: dict[int, int] = field(default_factory=dict)
    steps: int = 0
    idle: int = 0  # steps that committed nothing, before the last that did

    @property
    def forwards(self) -> dict[int, int]:
        """The commit steps, counted over the steps that committed something."""
        busy = sorted(set(self.when.values()))
        return {position: busy.index(step) for position, step in self.when.items()}


def prophet(
    model: Any,
    canvas: list[int],
    prompt: int,
    *,
    mask: int,
    block: int,
    steps: int | None,  # of the plan, shared out evenly over the blocks; None: one per token
    gaps: tuple[float, float, float],
    region: Callable[[list[int], list[int]], list[int]],  # (open, open in the block) -> where the gap is taken
    least: bool,
) -> Told:
    told = Told(list(canvas))
    tokens = told.tokens
    starts = range(prompt, len(tokens), block)
    passed, planned = 0, steps or tokens.count(mask)
    for number, lo in enumerate(starts):
        todo = tokens[lo : lo + block].count(mask)
        share = todo if steps is None else steps // len(starts) + (number < steps % len(starts))
        for i in range(share):
            opened = [p for p, token in enumerate(tokens) if token == mask]
            if not opened:
                return told
            here = [p for p in opened if lo <= p < lo + block]
            rows = model.forward(Plan.full(torch.tensor([tokens]), model.visible())).logits()[0].clone()
            rows[:, mask] = -torch.inf
            rows = torch.stack([rows[max(p - model.decoding_config.shift, 0)] for p in range(len(tokens))])
            two, sure = rows.topk(2).values, rows.softmax(-1).amax(-1)
            passed += 1
            told.steps += 1
            progress = passed / planned
            enough = gaps[0] if progress < 0.33 else gaps[1] if progress < 0.67 else gaps[2]
            found = [float(two[p, 0] - two[p, 1]) for p in region(opened, here)]
            if found and (min(found) if least else float(np.mean(found))) >= enough:
                chosen = opened
            else:
                owed = todo // share + (i < todo % share)
                chosen = sorted(here, key=lambda p: (-float(sure[p]), p))[:owed]
                told.idle += not chosen
            for p in chosen:
                tokens[p], told.when[p] = int(rows[p].argmax()), passed - 1
    return told
