"""A check of simulated timelines."""

from __future__ import annotations

from pardec.simulation.timeline import Interval, Timeline

_CLOSE = 1e-9  # tolerance, relative to the whole time, for rounded sums


def violations(timeline: Timeline) -> list[str]:
    """Reads of unfinished outputs, and overlapping intervals of one device; none, if the clock is right."""
    ends = {interval.makes: interval.end for interval in timeline.intervals}
    slack = _CLOSE * timeline.seconds
    wrong = [
        f"{interval.name} of row {interval.row}, round {interval.round} reads {each} before it is there"
        for interval in timeline.intervals
        for each in interval.reads
        if each not in ends or ends[each] > interval.start + slack
    ]
    last: dict[str, Interval] = {}
    for interval in sorted(timeline.intervals, key=lambda each: (each.start, each.end)):
        before = last.get(interval.device)
        if before is not None and before.end > interval.start + slack:
            wrong.append(f"{before.name} and {interval.name} overlap on {interval.device}")
        last[interval.device] = interval
    return wrong
