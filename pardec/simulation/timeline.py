"""A timeline of intervals on devices and links; each interval reads the outputs of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_CLOSE = 1e-9  # tolerance, relative to the whole time, for rounded sums


@dataclass(frozen=True, slots=True)
class Interval:
    """One run of a part of a model, or one transfer."""

    name: str
    device: str  # or a link, as "gpu0 - gpu1"
    start: float  # seconds
    end: float
    reads: tuple[str, ...]  # outputs of other intervals
    makes: str
    row: int
    round: int
    copies: bool = False


@dataclass
class Timeline:
    """Intervals in the order of adding; each starts as soon as its device is free and its inputs exist."""

    intervals: list[Interval] = field(default_factory=list)
    _free: dict[str, float] = field(default_factory=dict)
    _ready: dict[str, float] = field(default_factory=dict)

    def run(
        self,
        name: str,
        device: str,
        seconds: float,
        *,
        reads: Iterable[str],
        makes: str,
        row: int,
        round: int,
        copies: bool = False,
    ) -> str:
        """Adds an interval and returns the name of its output. Raises KeyError for an input that no interval makes."""
        reads = tuple(reads)
        start = max((self._free.get(device, 0.0), *(self._ready[each] for each in reads)))
        end = start + seconds
        self._free[device] = self._ready[makes] = end
        self.intervals.append(Interval(name, device, start, end, reads, makes, row, round, copies))
        return makes

    @property
    def seconds(self) -> float:
        """From the first start, at 0, to the last end."""
        return max((interval.end for interval in self.intervals), default=0.0)

    def busy(self) -> dict[str, float]:
        """Per device or link, the seconds in which it runs something."""
        busy: dict[str, float] = {}
        for interval in self.intervals:
            busy[interval.device] = busy.get(interval.device, 0.0) + interval.end - interval.start
        return busy

    def utilisation(self) -> dict[str, float]:
        """Per device or link, the share of the whole time in which it runs something."""
        return {device: seconds / self.seconds if self.seconds else 0.0 for device, seconds in self.busy().items()}

    def violations(self) -> list[str]:
        """Reads of unfinished outputs, and overlapping intervals of one device; none, if the clock is right."""
        ends = {interval.makes: interval.end for interval in self.intervals}
        slack = _CLOSE * self.seconds
        wrong = [
            f"{interval.name} of row {interval.row}, round {interval.round} reads {each} before it is there"
            for interval in self.intervals
            for each in interval.reads
            if each not in ends or ends[each] > interval.start + slack
        ]
        last: dict[str, Interval] = {}
        for interval in sorted(self.intervals, key=lambda each: (each.start, each.end)):
            before = last.get(interval.device)
            if before is not None and before.end > interval.start + slack:
                wrong.append(f"{before.name} and {interval.name} overlap on {interval.device}")
            last[interval.device] = interval
        return wrong
