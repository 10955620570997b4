"""One row of eight positions with given probabilities, on which rules of selects are computed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence, Proposal
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.registry import build_method
from pardec.samplers.spec import parse
from tests.samplers.toys import request, run, table

# The probability of the likeliest token at each position; three others share the rest evenly.
SURE = (0.95, 0.60, 0.91, 0.30, 0.99, 0.85, 0.901, 0.45)  # surest first: positions 4 0 2 6 5 1 7 3
TOKENS = (2, 0, 1, 3, 3, 0, 2, 1)  # the likeliest
MASK = 6
LAWS = torch.zeros(8, 7)  # ids 0..3 are tokens; pad, end and mask have no probability here
for _place, (_token, _sure) in enumerate(zip(TOKENS, SURE, strict=True)):
    LAWS[_place, :4] = (1 - _sure) / 3
    LAWS[_place, _token] = _sure


def steps_of(spec: str, *, block_length: int = 8, row: Sequence[int] = (MASK,) * 8) -> list[int]:
    """The forward that commits each position; each gets its likeliest token, and no forward follows the last commit."""
    got = run(table(LAWS), spec, request([list(row)], [0], block_length=block_length))
    steps: list[int] = got.trace.commit_step[0].tolist()
    assert got.nfe == (max(steps) + 1,)
    expected = [likeliest if given == MASK else given for likeliest, given in zip(TOKENS, row, strict=False)]
    assert got.tokens[0].tolist() == expected
    return steps


def proposal(name: str, **options: float) -> Proposal:
    """A proposal for the eight positions, of which the last one is not eligible."""
    rows = (torch.tensor([MASK] * 7 + [0]),)
    canvas = Canvas(rows, (0,), mask_id=MASK, pad_id=4, block_length=8)
    asked = request([rows[0].tolist()], [0], block_length=8, **options)
    evidence = Evidence(DenseDistribution(LAWS.log()[None]), canvas.window, canvas.eligible, asked)
    return build_method(parse(name).parts[0]).propose(evidence, canvas)
