"""A simulation as a JSON document, and as a table."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pardec.models.printable import in_json

from .run import KAPPAS, Report, Simulation

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
    """The same as Markdown."""
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
