"""What finish stages do within a step: rows whose open positions are all committed at once, and where rows end."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from .canvas import Canvas
from .contracts import Finish, Proposal, Request
from .decision import Decision
from .forward import MaskedForward
from .layout import visible_open
from .refusals import Read


def with_fill(
    decision: Decision, proposal: Proposal, stages: Sequence[Finish], forward: MaskedForward, distributions: list[Read]
) -> Decision:
    """The decision, with every open position committed in the rows that a stage fills; adds what that reads."""
    canvas = forward.canvas
    rows = np.zeros(len(canvas), dtype=bool)
    for stage in stages:
        if stage.fills:
            rows |= stage.fill(forward, proposal, canvas)
    if not rows.any():
        return decision
    which, columns = visible_open(canvas, rows)
    distribution = forward.at(columns)
    distributions.append(Read(None, distribution, columns, which.gather(1, columns)))
    return decision.filled(canvas, rows, which, columns, distribution)


def row_ends(stages: Sequence[Finish], forward: MaskedForward, canvas: Canvas, request: Request) -> np.ndarray:
    """[B] where rows end from now on: the least of what stages say that cut rows in this step."""
    if not forward.whole:
        return canvas.total
    return reduce(np.minimum, (stage.cut(forward, canvas, request) for stage in stages if stage.cuts))
