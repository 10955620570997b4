"""A simulation as one self-contained HTML file: the table, and a lane for each device and link."""

from __future__ import annotations

from html import escape

from ..views.document import asset, document, fill, spec, web
from .report import columns, exit_columns
from .run import Report, Simulation
from .timeline import Interval

_LANE, _BAR, _LEFT, _WIDTH = 26, 18, 150, 1000  # pixels; the longest schedule takes the width
_MOST = 1500  # intervals displayed of a schedule
_COLOURS = {"verify": "#0a5aad", "forward": "#0a5aad", "draft": "#136b45", "rollout": "#7a5c00", "send": "#8a8f94"}
_OTHER = "#6b4a9e"


def page(report: Report) -> str:
    """The whole HTML page."""
    sections = [_table("Schedules", *columns(report))]
    if report.exits is not None:
        sections.append(_table("Rounds whose next token an early exit names", *exit_columns(report)))
    sections += [_section(report, each) for each in report.simulations]
    title = f"{report.result.model} on {report.machine.name}"
    body = fill(
        asset("pardec.simulation", "page.html"),
        title=escape(title),
        spec=spec(report.result.spec),
        sections="\n".join(sections),
    )
    return document(title, body, styles=[*web("page.css"), asset("pardec.simulation", "page.css")], scripts=[])


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    lines = "".join("<tr>" + "".join(f"<td>{escape(value)}</td>" for value in row) + "</tr>" for row in rows)
    return f"<section><h2>{escape(title)}</h2><div class=scroll><table><tr>{top}</tr>{lines}</table></div></section>"


def _section(report: Report, simulation: Simulation) -> str:
    intervals = [each for each in simulation.timeline.intervals if each.end > each.start]
    displayed = intervals[:_MOST]
    rest = f"<p class=soft>the first {_MOST} of {len(intervals)} intervals</p>" if len(intervals) > _MOST else ""
    return (
        f"<section><h2>{escape(simulation.schedule)}</h2><p>{spec(simulation.spec)}</p>"
        f"<div class=scroll>{_lanes(report, displayed)}</div>{rest}</section>"
    )


def _lanes(report: Report, intervals: list[Interval]) -> str:
    links = dict.fromkeys(each.device for each in intervals if each.copies)
    lanes = [*report.machine.devices, *links]
    end = max((each.end for each in intervals), default=0.0) or 1.0
    names = "".join(f'<text x="0" y="{number * _LANE + 14}">{escape(lane)}</text>' for number, lane in enumerate(lanes))
    bars = "".join(
        f'<rect x="{_LEFT + each.start / end * _WIDTH:.2f}" y="{lanes.index(each.device) * _LANE}"'
        f' width="{max((each.end - each.start) / end * _WIDTH, 0.5):.2f}" height="{_BAR}"'
        f' fill="{_COLOURS.get(each.name, _OTHER)}"><title>{escape(_title(each))}</title></rect>'
        for each in intervals
    )
    return (
        f'<svg width="{_LEFT + _WIDTH}" height="{len(lanes) * _LANE}" role="img"'
        f' aria-label="what runs on each device until {end * 1000:.4g} ms">{names}{bars}</svg>'
    )


def _title(each: Interval) -> str:
    times = f"{each.start * 1000:.4g} to {each.end * 1000:.4g} ms"
    return f"{each.makes}: {each.name}, row {each.row + 1}, round {each.round + 1}, {times}"
