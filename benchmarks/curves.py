"""Curves of samplers as committed figures: one comparison per task, and its Markdown tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pardec
from pardec.comparison import curve_table

Section = dict[str, Any]
SETTINGS = {
    "right": "answers that are exactly right, with the 95% interval",
    "positions per token": "computed positions per token of the answer",
    "share of the floor": "forwards of `oracle` without a cache, divided by those of the setting",
    "above reference": "accuracy in points above the reference's curve at equal forwards, with its 95% interval",
}


def measure(model: str, task: str, samplers: Sequence[str], home: Path, **arguments: Any) -> list[Section]:
    """The curves of each task of a group, on the CPU in float32; continues the comparison in `home`.

    `arguments` are those of `pardec.compare`; a section has those of generation and the seed of the problems.
    """
    compared = pardec.compare(
        model, task, samplers, sweep=True, replays=0, out=home, resume=True, device="cpu", dtype="float32", **arguments
    )  # fmt: skip
    for note in compared.notes:
        print(f"{home.name}: {note}")
    conditions = {
        "model": model,
        "seed": arguments.get("problem_seed", 7),
        "generate": {**compared.run.config["generate"]},
    }
    return [{**conditions, **with_bare_names(curves)} for curves in compared.curves]


def bare(name: str) -> str:
    """The spec without `eos`."""
    body, mark, cache = name.partition("@")
    return "+".join(part for part in body.split("+") if part != "eos") + mark + cache


def with_bare_names(section: Any) -> Any:
    """The curves of a task, with `eos` removed from the names of samplers, since all have it."""
    if isinstance(section, list):
        return [with_bare_names(one) for one in section]
    if not isinstance(section, dict):
        return section
    names = ("name", "reference", "sampler", "dominated_by")
    return {key: bare(one) if key in names and one else with_bare_names(one) for key, one in section.items()}


def conditions(section: Section) -> str:
    """The problems of a section, and the results of `sequential` and `oracle`."""
    generate = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in section["generate"].items())
    text = f"{section['problems']} held-out problems (seed {section['seed']}){', ' if generate else ''}{generate}."
    exact, oracle = section["sequential"], section["oracle"]
    if exact is not None:
        text += f" `sequential`: {100 * exact['accuracy']:.1f}% in {exact['nfe']:.1f} forwards."
    return text if oracle is None else f"{text} `oracle`: {oracle['nfe']:.1f}."


def curves_of(section: Section) -> str:
    """The short table of a section's curves."""
    return table(curve_table.cells(section))


def gains_of(sections: Sequence[Section]) -> str:
    """For each curve, its forwards relative to its reference's at equal accuracy, one column per section."""
    return _beside(sections, lambda curve, reference: curve_table.interval((curve["ratio"] or {}).get("nfe")))


def areas_of(sections: Sequence[Section]) -> str:
    """For each curve, its area (AUP) relative to its reference's, one column per section."""
    return _beside(sections, lambda curve, reference: f"{curve['aup'] / reference['aup']:.2f}" if curve["aup"] else "")


def _beside(sections: Sequence[Section], cell: Callable[[Section, Section], str]) -> str:
    cells: dict[str, dict[int, str]] = {}
    for at, section in enumerate(sections):
        by_name = {curve["name"]: curve for curve in section["curves"]}
        for name, curve in by_name.items():
            if curve["reference"]:
                cells.setdefault(name, {})[at] = cell(curve, by_name[curve["reference"]])
    head = ["curve", *(f"{section['task']}, {section['model']}" for section in sections)]
    columns = range(len(sections))
    return table([head, *([f"`{name}`", *(own.get(at) or "-" for at in columns)] for name, own in cells.items())])


def settings_of(section: Section) -> str:
    """One line per setting of the curves."""
    head = ["sampler", "right", "forwards", "tokens per forward", *list(SETTINGS)[1:]]
    unique = {point["sampler"]: point for curve in section["curves"] for point in curve["points"]}
    gains = {p["sampler"]: p["gain"] for curve in section["curves"] for p in curve["points"] if p["gain"]}
    oracle, lines = section["oracle"], [head]
    if oracle is not None:
        lines.append(["`oracle`", f"{100 * oracle['accuracy']:.1f}%", f"{oracle['nfe']:.2f}", "", "", "100%", ""])
    for name, point in unique.items():
        gain = gains.get(name)
        points = {key: None if value is None else 100 * value for key, value in gain.items()} if gain else None
        lines.append([
            f"`{name}`",
            f"{100 * point['accuracy']:.1f}% ({100 * point['accuracy_low']:.0f}..{100 * point['accuracy_high']:.0f})",
            f"{point['nfe']:.2f}",
            f"{point['tokens_per_forward']:.2f}",
            f"{point['tokens_fed'] / answer:.1f}" if (answer := point["nfe"] * point["tokens_per_forward"]) else "",
            "" if oracle is None or "@" in name else f"{100 * oracle['nfe'] / point['nfe']:.0f}%",
            curve_table.interval(points, 1),
        ])  # fmt: skip
    return table(lines)


def legend(section: Section) -> str:
    """The meanings of the columns of both tables."""
    meanings = {**curve_table.legend(section), **SETTINGS}
    return "".join(f"- {name}: {meaning}.\n" for name, meaning in meanings.items())


def table(lines: Sequence[Sequence[str]]) -> str:
    """A Markdown table whose first line has the names of the columns."""
    head, *body = lines
    return "\n".join("| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head), *body)) + "\n"
