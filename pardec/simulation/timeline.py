"""A timeline of intervals on devices and links; each interval reads the outputs of earlier ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


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
