"""A simulation as a JSON document, as a table, and as one HTML file with a lane for each device and link."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any

from pardec.models.printable import in_json

from ..views import document as html_document
from ..views.document import asset, fill, spec, web
from .run import KAPPAS, Report, Simulation
from .timeline import Interval

if TYPE_CHECKING:
    from rich.table import Table


def document(report: Report) -> dict[str, Any]:
    """The whole simulation as JSON values; times in seconds."""
    return {
        "model": report.result.model,
        "spec": report.result.spec,
        "machine": report.machine.name,
        "target_layers": report.setting.target_layers,
        "draft_layers": report.setting.draft_layers,
        "text": report.result.text,
        "schedules": [_schedule(report, each) for each in report.simulations],
        "exits": exits(report),
    }


def as_json(report: Report) -> str:
    """`document` as the text of a file."""
    return in_json(json.dumps(document(report), indent=1, ensure_ascii=False)) + "\n"


def _schedule(report: Report, simulation: Simulation) -> dict[str, Any]:
    return {
        "schedule": simulation.schedule,
        "spec": simulation.spec,
        "tokens": simulation.tokens,
        "rounds": simulation.rounds,
        "seconds": simulation.seconds,
        "tokens_per_second": simulation.tokens_per_second,
        "speed_up_over_sequential": simulation.speed_up(report.of("sequential")),
        "speed_up_over_plain": simulation.speed_up(report.of("plain")),
        "utilisation": simulation.timeline.utilisation(),
        "timeline": [
            {
                "name": each.name,
                "device": each.device,
                "start": each.start,
                "end": each.end,
                "reads": list(each.reads),
                "makes": each.makes,
                "row": each.row,
                "round": each.round,
            }
            for each in simulation.timeline.intervals
        ],
    }


def exits(report: Report) -> list[dict[str, Any]]:
    """Per layer of the target except the last: the share of rounds whose next token its exit predicts.

    `accepted_by_rank` are the tokens accepted of the rollout after the exit's first, second, ... token, on average.
    """
    if report.exits is None:
        return []
    return [
        {
            "layer": layer,
            "hits": {kappa: report.exits.at(layer, kappa).rate for kappa in KAPPAS},
            "accepted_by_rank": report.exits.accepted_by_rank(layer, max(KAPPAS), report.rows),
        }
        for layer in range(len(report.exits.ranks))
    ]


def columns(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heading and the rows of the table."""
    devices = report.machine.devices
    head = ("schedule", "rounds", "tokens", "ms", "tokens/s", "over sequential", "over plain", *devices)
    return head, [_row(report, each) for each in report.simulations]


def _row(report: Report, simulation: Simulation) -> tuple[str, ...]:
    busy = simulation.timeline.utilisation()
    rate = simulation.tokens_per_second
    gains = [simulation.speed_up(report.of(name)) for name in ("sequential", "plain")]
    return (
        simulation.schedule,
        str(simulation.rounds),
        str(simulation.tokens),
        f"{simulation.seconds * 1000:.4g}",
        "-" if rate is None else f"{rate:.4g}",
        *("-" if gain is None else f"{gain:.2f}x" for gain in gains),
        *(f"{busy.get(device, 0.0):.0%}" for device in report.machine.devices),
    )


def exit_columns(report: Report) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The heading and the rows of the table of early exits."""
    head = ("exit after layer", *(f"top {kappa}" for kappa in KAPPAS))
    return head, [
        (str(each["layer"] + 1), *(f"{each['hits'][kappa]:.0%}" for kappa in KAPPAS)) for each in exits(report)
    ]


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Table:
    """A table for a terminal."""
    from rich.table import Table

    result = Table(box=None)
    for number, name in enumerate(head):
        result.add_column(name, justify="right" if number else "left")
    for row in rows:
        result.add_row(*row)
    return result


def markdown(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """The table as Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


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
    styles = [*web("page.css"), asset("pardec.simulation", "page.css")]
    return html_document.document(title, body, styles=styles, scripts=[])


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
