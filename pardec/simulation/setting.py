"""The setting of a schedule: a machine, two models' sizes, and the resulting costs."""

from __future__ import annotations

from dataclasses import dataclass

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
        """Adds an interval of this row and round; its output `makes` is its name unless two have the same."""
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
