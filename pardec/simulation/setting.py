"""The setting of a schedule: a machine, two models' sizes, and the resulting costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..result_data import ResultData
from .machine import Machine, Role
from .timeline import Timeline

ID_BYTES = 4  # bytes of a token id


@dataclass(frozen=True)
class Setting:
    """The machine with the models that run on it."""

    machine: Machine
    target_layers: int
    draft_layers: int
    draft_tokens: int = 0  # tokens drafted per round, if every round drafts the same number
    parallel: int = 1  # layers of the drafter that run at once
    state_bytes: int = 0  # bytes per token of the target's states that the drafter reads
    draft_state_bytes: int = 0  # bytes per token of a state between layers of the drafter

    def layers(self, role: Role, tokens: float, count: float, device: str) -> float:
        """Seconds of `count` layers of a model in a forward of `tokens`."""
        return count * self.machine.cost(device, role).layer.of(tokens)

    def head(self, role: Role, tokens: float, device: str) -> float:
        """Seconds of the head."""
        return self.machine.cost(device, role).head.of(tokens)

    def target(self, tokens: float) -> float:
        """Seconds of one forward of the target."""
        device = self.machine.target
        return self.layers("target", tokens, self.target_layers, device) + self.head("target", tokens, device)

    def draft(self, tokens: float) -> float:
        """Seconds of one forward of the drafter, one layer after the other."""
        device = self.machine.draft[0]
        return self.layers("draft", tokens, self.draft_layers, device) + self.head("draft", tokens, device)


@dataclass
class Row:
    """One row of a schedule on its timeline; rows are requests, one after the other."""

    setting: Setting
    timeline: Timeline
    number: int
    round: int = 0

    def run(self, name: str, device: str, seconds: float, *, reads: tuple[str, ...] = (), makes: str = "") -> str:
        """Adds an interval of this row and round; `makes` names its output, by default like the interval."""
        label = f"{self.number}/{self.round}/{makes or name}"
        return self.timeline.run(name, device, seconds, reads=reads, makes=label, row=self.number, round=self.round)

    def send(self, what: str, size: float, start: str, end: str) -> str:
        """`what` on device `end`, after a transfer of `size` bytes from `start`; `what` itself on the same device."""
        if start == end:
            return what
        one, other = sorted((start, end))
        return self.timeline.run(
            "send",
            f"{one} - {other}",
            self.setting.machine.link(start, end).of(size),
            reads=(what,),
            makes=f"{what} on {end}",
            row=self.number,
            round=self.round,
            copies=True,
        )


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
