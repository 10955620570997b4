"""The rounds of a real run, in the form that schedules need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..result_data import ResultData


@dataclass(frozen=True, slots=True)
class Round:
    """One verify forward of one row, and the draft before it."""

    before: int  # tokens of the row, prompt included
    nodes: int  # positions that the target runs on
    depth: int  # tokens drafted; of a tree, its deepest path
    accepted: int
    gained: int  # tokens committed
    forwards: float  # forwards of the drafter

    @property
    def width(self) -> int:
        """Tokens in one forward of the drafter: the mean of a tree's levels, rounded up."""
        return max(1, -(-(self.nodes - 1) // max(self.depth, 1)))


def rounds(result: ResultData) -> list[list[Round]]:
    """The rounds of each row without the prompt's round, whose forward is not timed.

    The forwards of a drafter are recorded per row, and spread over the rounds by their depth. Without a drafting model
    there are none.
    """
    return [_row(result, row) for row in range(len(result.tokens))]


def _row(result: ResultData, row: int) -> list[Round]:
    trace = result.trace
    count = len(trace.fed[row])
    when = trace.commit_step[row]
    gained = np.bincount(when[when >= 0], minlength=count).tolist()
    drafted, accepted = trace.drafted[row], trace.accepted[row]
    drafting = result.draft_forwards[row] if result.draft_forwards else 0
    each = drafting / max(sum(drafted[1:]), 1)
    before, result_rounds = int(result.prompts[row]) + gained[0], []
    for number in range(1, count):
        result_rounds.append(
            Round(
                before,
                len(trace.fed[row][number]),
                drafted[number],
                accepted[number],
                gained[number],
                drafted[number] * each,
            )
        )
        before += gained[number]
    return result_rounds
