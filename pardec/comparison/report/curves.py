"""The report's curves: per method, a small chart of its settings and its reference's settings, and a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import log
from typing import Any

from ...views.document import spec
from .. import curve_table
from . import tables
from .columns import NOTHING, log_ticks, percent, plain

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 300, 200, 42, 34, 10

_LEAD = """<p>Each chart has a method's settings in colour and those of its reference in grey: up is more accurate, left
is fewer forwards per problem. A hollow point is dominated: another setting of any method is no worse in both. The
dashed line is the accuracy at which costs are compared, 1 point below sequential decoding.</p>"""


def section(some: Sequence[Mapping[str, Any]]) -> str:
    """The charts and the table of each task; empty for a run without curves."""
    return "".join(_task(task, head=len(some) > 1) for task in some)


def _task(task: Mapping[str, Any], *, head: bool) -> str:
    points = [point for curve in task["curves"] for point in curve["points"]]
    if not points:
        return ""
    by_name = {curve["name"]: curve for curve in task["curves"]}
    scale = _Scale(points, task["accuracy"])
    charts = "".join(
        _chart(curve, by_name.get(curve["reference"] or ""), scale, task["accuracy"])
        for curve in task["curves"]
        if curve["points"]
    )
    title = f"<h3>{escape(task['task'])}</h3>" if head else ""
    return f'{title}{_LEAD}<div class="charts">{charts}</div>{_table(task)}'


class _Scale:
    """Forwards on a logarithmic axis and accuracy on a linear one, the same for all charts of a task."""

    def __init__(self, points: Sequence[Mapping[str, Any]], level: float) -> None:
        costs = [point["nfe"] for point in points]
        self.left: float = min(costs) * 0.9
        self.right: float = max(costs) * 1.1
        self.low: float = max(0.0, min(level, *(point["accuracy_low"] for point in points)))

    def x(self, forwards: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _EDGE) * log(forwards / self.left) / log(self.right / self.left)

    def y(self, accuracy: float) -> float:
        room = _HEIGHT - _BOTTOM - _EDGE
        return _EDGE + room * (1 - (accuracy - self.low) / max(1e-9, 1 - self.low))


def _chart(curve: Mapping[str, Any], reference: Mapping[str, Any] | None, scale: _Scale, level: float) -> str:
    bottom = _HEIGHT - _BOTTOM
    y = scale.y(level)
    parts = [
        f'<path class="axis" d="M{_LEFT} {_EDGE}V{bottom}H{_WIDTH - _EDGE}"/>',
        f'<path class="level" d="M{_LEFT} {y:.1f}H{_WIDTH - _EDGE}"/>',
        *(_tick(scale, share) for share in (scale.low, (1 + scale.low) / 2, 1.0)),
        *(
            f'<text x="{scale.x(tick):.1f}" y="{_HEIGHT - 18}" text-anchor="middle">{plain(tick)}</text>'
            for tick in _apart(log_ticks(scale.left, scale.right), scale)
        ),
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 4}" text-anchor="middle">forwards per problem</text>',
        _line(reference, scale, "reference") if reference else "",
        _line(curve, scale, "own"),
    ]
    return (
        f'<figure><figcaption>{spec(curve["name"])}</figcaption><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="Accuracy against forwards of {escape(curve["name"], quote=True)}">{"".join(parts)}</svg></figure>'
    )


def _apart(ticks: Sequence[float], scale: _Scale) -> list[float]:
    """The ticks whose numbers do not touch, the first one always."""
    kept: list[float] = []
    for tick in ticks:
        if not kept or scale.x(tick) - scale.x(kept[-1]) >= 30:
            kept.append(tick)
    return kept


def _tick(scale: _Scale, share: float) -> str:
    return f'<text x="{_LEFT - 4}" y="{scale.y(share) + 4:.1f}" text-anchor="end">{percent(share)}</text>'


def _line(curve: Mapping[str, Any], scale: _Scale, kind: str) -> str:
    at = [(scale.x(point["nfe"]), scale.y(point["accuracy"]), point) for point in curve["points"]]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in at)
    marks = "".join(
        f'<circle class="{"hollow" if point["dominated_by"] else "full"}" cx="{x:.1f}" cy="{y:.1f}" r="3.5">'
        f"<title>{escape(_tip(point))}</title></circle>"
        for x, y, point in at
    )
    return f'<g class="curve {kind}"><path d="M{path}"/>{marks}</g>'


def _tip(point: Mapping[str, Any]) -> str:
    text = f"{point['sampler']}: {percent(point['accuracy'])} in {plain(point['nfe'])} forwards"
    return text + (f"; dominated by {point['dominated_by']}" if point["dominated_by"] else "")


def _table(task: Mapping[str, Any]) -> str:
    head, *body = curve_table.cells(task, mark="")
    meanings = curve_table.legend(task)
    top = "".join(f'<th scope="col" title="{escape(meanings[cell], quote=True)}">{escape(cell)}</th>' for cell in head)
    lines = [
        f'<tr><th scope="row">{spec(name)}</th>{"".join(f"<td>{escape(cell) or NOTHING}</td>" for cell in line)}</tr>'
        for name, *line in body
    ]
    caption = '<caption class="hidden">Costs at equal accuracy</caption>'
    table = f"<table>{caption}<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    details = f"<details><summary>What the columns mean</summary>{tables.definitions(meanings)}</details>"
    return tables.scroll(table, "Costs at equal accuracy") + details
