"""Assembles the report: heading, main result, sections, and the data for its script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...views import image_view, replay
from ...views.colour import ramp
from ...views.document import asset, document, fill, spec, web
from . import curves, tables
from .columns import COLUMNS, Row, columns, plain
from .commands import python, shell
from .finding import finding
from .orders import acceptance_section, order_section, rate_section

if TYPE_CHECKING:
    from ...result import Result
    from ..run import Run

_HERE = "pardec.comparison.report"
_FILES = (".gguf", ".safetensors", ".pt", ".pth")
_EXTRA_MEANINGS = {
    "Output": "exact: the tokens of sequential decoding, or tokens of the same distribution; relaxed: neither is "
    "promised; not kept: exact was promised, and the tokens differ",
    "Failed": "problems that ended in an error, of all problems",
}


def page(run: Run) -> str:
    """The report of a run, finished or not, as one self-contained HTML file."""
    from ..table import Table

    table = Table(run)
    rows: list[Row] = [*table.rows]
    replayed, plot = replays(run), plot_data(rows)
    tasks = list(dict.fromkeys(row["task"] for row in run.rows))
    candidates = {
        "results": ("Results", _results(rows, table.notes)),
        "quality": ("Quality against cost", asset(_HERE, "frontier.html") if plot else ""),
        "curves": ("Curves", curves.section(table.curves)),
        "images": ("Images", image_section(run)),
        "decode": ("Decode replay", asset("pardec.views", "web/replay.html") if replayed else ""),
        "order": ("Commit order", order_section(rows, run.rows)),
        "accepted": ("Acceptance by draft position", acceptance_section(rows, run.rows)),
        "rates": ("Acceptance over forwards", rate_section(rows, run.rows)),
        "tasks": ("By task", tables.by_task(rows)),
        "again": ("Run it again", _commands(run.config)),
        "made": ("Made with", _provenance(run)),
    }
    sections = {name: section for name, section in candidates.items() if section[1]}
    title = f"{_named(str(run.config['model']))}: {_count(len(rows), 'sampler')} on {_words(tasks)}"
    body = fill(
        asset(_HERE, "page.html"),
        title=escape(title),
        subtitle=escape(_subtitle(run)),
        kind="lead bad" if all(row["failed"] for row in rows) else "lead",
        finding=_with_code(finding(rows)),
        links="".join(f'<a href="#{name}">{head}</a>' for name, (head, _) in sections.items()),
        sections="\n".join(_section(name, *section) for name, section in sections.items()),
    )
    return document(
        title,
        body,
        styles=[*web("page.css", "replay.css"), asset(_HERE, "report.css"), _heat_styles()],
        scripts=[*web("page.js", "replay.js"), asset(_HERE, "plot.js"), asset(_HERE, "report.js")],
        data={"scale": replay.scale(), "prompts": replayed, "plot": plot},
    )


def _named(model: str) -> str:
    """A model's name: of a folder or a file the last part of its path, without the suffix of a file of weights."""
    if model.count("/") == 1 and not model.startswith((".", "/", "~")) and not model.endswith(_FILES):
        return model  # an id of the hub
    return Path(model).name.removesuffix(".gguf") or model


def _subtitle(run: Run) -> str:
    problems = len({(row["task"], row["problem"]) for row in run.rows})
    seeds = len({row["seed"] for row in run.rows})
    device = _words(list(dict.fromkeys(row["device"] for row in run.rows if row["device"])))
    date = str(run.environment.get("began", ""))[:16].replace("T", " ")
    return ", ".join(filter(None, (_count(problems, "problem"), _count(seeds, "seed"), device, date)))


def _results(rows: Sequence[Row], notes: Sequence[str]) -> str:
    meanings = {column.title: column.meaning for column in columns(rows) if column.meaning} | _EXTRA_MEANINGS
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    note_list = f'<ul class="soft small" aria-label="Notes">{items}</ul>' if items else ""
    return (
        f"{tables.samplers(rows)}{note_list}"
        f"<details><summary>What the columns mean</summary>{tables.definitions(meanings)}</details>"
    )


def _commands(config: Row) -> str:
    blocks = (("shell", "In a shell", shell(config)), ("python", "From Python", python(config)))
    return "".join(
        f'<h3>{head}</h3><div class="command"><pre id="{name}" tabindex="0" aria-label="{head}">'
        f"{escape(chr(10).join(lines))}</pre>"
        f'<button type="button" data-copies="{name}" aria-label="Copy: {head}" hidden>Copy</button></div>'
        for name, head, lines in blocks
        if lines
    )


def _provenance(run: Run) -> str:
    config = dict(run.config)
    entries, tasks = config.pop("samplers"), config.pop("tasks")
    tasks = [f"{task['name']}: {_count(task['problems'], 'problem')}, digest {task['digest']}" for task in tasks]
    resolved = {_entry(entry): entry["spec"] for entry in entries}
    rest = {key: value for key, value in config.items() if key not in ("notes", "format") and value is not None}
    return (
        f"<h3>Samplers as resolved</h3>{tables.specs(resolved)}"
        f'<div class="columns"><div><h3>Configuration</h3>{tables.definitions({"tasks": tasks, **rest})}</div>'
        f"<div><h3>Environment</h3>{tables.definitions(run.environment)}</div></div>"
    )


def _entry(entry: Row) -> str:
    return f"{entry['sampler']} (reference)" if entry["reference"] else str(entry["sampler"])


def _section(name: str, head: str, content: str) -> str:
    return f'<section id="{name}" aria-labelledby="{name}-head"><h2 id="{name}-head">{head}</h2>\n{content}</section>'


def _heat_styles() -> str:
    """The colour scale as CSS classes of heat map cells, and as a strip."""
    cells = [f".warm-{at} {{ background: {ground}; color: {ink}; }}" for at, (ground, ink) in enumerate(ramp())]
    strip = ", ".join(ground for ground, _ in ramp())
    return "\n".join([*cells, f".painted {{ background: linear-gradient(to right, {strip}); }}"])


def _with_code(text: str) -> str:
    """Plain text as HTML; text in backquotes becomes a spec."""
    parts = text.split("`")
    return "".join(spec(part) if at % 2 else escape(part) for at, part in enumerate(parts))


def _count(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{plain(count)} {what}s"


def _words(words: Sequence[Any]) -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words)


_LEGEND = """<p>For each caption or class an image of every sampler, and its map: for each token, how many tokens were
committed in the same forward, from 1 (dark) to {top} (light).</p>"""

_MAPS_LEGEND = """<p>For each class an image of every sampler, and its token maps, coarse to fine: the lighter a
code, the likelier it was.</p>"""


def image_section(run: Run) -> str:
    """The images whose results were saved; empty for text."""
    by_problem: dict[tuple[str, int], list[tuple[Row, Result]]] = {}
    for row in run.rows:
        result = run.traces.get(row["key"])
        if result is not None and result.images:
            by_problem.setdefault((row["task"], row["index"]), []).append((row, result))
    if not by_problem:
        return ""
    order = {entry["sampler"]: number for number, entry in enumerate(run.config["samplers"])}
    top = max(image_view.max_count(result) for pairs in by_problem.values() for _, result in pairs)
    maps = any(result.sides is not None for pairs in by_problem.values() for _, result in pairs)
    parts = [_MAPS_LEGEND if maps else _LEGEND.format(top=top)]
    for problem in sorted(by_problem):
        pairs = sorted(by_problem[problem], key=lambda pair: (order[pair[0]["sampler"]], pair[0]["seed"]))
        title = image_view.title(pairs[0][1], 0)
        suffix = "" if pairs[0][1].shown == [title] else f": {pairs[0][0]['problem']}"
        parts.append(f"<h3>{escape(title + suffix)}</h3>")
        parts.append(f'<div class="images">{"".join(_figure(*pair, top) for pair in pairs)}</div>')
    return "\n".join(parts)


def _figure(row: Row, result: Result, top: int) -> str:
    assert result.images is not None, "`image_section` selects results with images"
    image = result.images[0]
    counts = image_view.commit_counts(result, 0)
    verdict = {None: "", 1.0: ", right", 0.0: ", wrong"}.get(row["score"], "")
    caption = ", ".join(filter(None, (image_view.forwards_text(result, 0), image_view.acceptance_text(result, 0))))
    alt = f"{row['sampler']}: {image_view.title(result, 0)}"
    return (
        f'<figure><img src="{image_view.data_url(image)}" alt="{escape(alt, quote=True)}">'
        f'<img src="{image_view.data_url(image_view.heat(result, 0, top, image.size))}" '
        f'alt="tokens gained per forward, at most {int(counts.max())}"><figcaption>'
        f"{spec(row['sampler'])}<br>{escape(caption)}{verdict}</figcaption></figure>"
    )


COSTS = ("nfe", "nfe_to_end", "tokens_per_forward", "tokens_per_second")
QUALITIES = ("accuracy", "lenient", "agreement")
_LONG = {
    "nfe": "Forwards per problem (NFE)",
    "nfe_to_end": "Forwards to the end token",
    "tokens_per_forward": "Tokens per forward",
    "tokens_per_second": "Tokens per second",
    "lenient": "Lenient accuracy",
    "agreement": "Agreement with sequential",
}


def replays(run: Run) -> list[dict[str, Any]]:
    """The replays: for each problem with saved traces, the decode of every sampler, references last."""
    tasks = list(dict.fromkeys(row["task"] for row in run.rows))
    order = sorted(run.rows, key=lambda row: (tasks.index(row["task"]), row["index"], row["reference"]))
    by_problem: dict[tuple[str, str], dict[str, Any]] = {}
    for row in order:
        result = run.traces.get(row["key"])
        if result is None or result.images:
            continue
        key = row["task"], row["problem"]
        if key not in by_problem:
            label = f"{row['task']} {row['index'] + 1}"
            by_problem[key] = {"label": label, "prompt": replay.prompt(result, 0), "runs": []}
        name = f"{row['sampler']} (reference)" if row["reference"] else row["sampler"]
        by_problem[key]["runs"].append({**replay.run(result, 0, name), "score": row["score"]})
    return list(by_problem.values())


def plot_data(rows: Sequence[Row]) -> dict[str, Any] | None:
    """Points and axes of quality against cost, overall and per task; None if nothing was scored."""
    points = [
        {
            "number": number,
            "name": row["sampler"],
            "exact": row["exact"] != "relaxed",
            "failed": row["failed"],
            "all": figures,
            "tasks": {task: _figures(task_row) for task, task_row in row["by_task"].items()},
        }
        for number, row in enumerate(rows, 1)
        if "nfe" in (figures := _figures(row)) and not figures.keys().isdisjoint(QUALITIES)
    ]
    if not points:
        return None
    return {"samplers": points, "costs": _axes(COSTS, rows), "qualities": _axes(QUALITIES, rows)}


def _figures(row: Row) -> dict[str, Any]:
    keys = (f"{key}{end}" for key in (*COSTS, *QUALITIES) for end in ("", "_low", "_high"))
    return {key: row[key] for key in keys if row.get(key) is not None}


def _axes(keys: Sequence[str], rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The axes of the plot: title of a figure, which direction is better, and whether it is a share."""
    known = {column.key: column for column in COLUMNS}
    return [
        {"key": key, "title": _LONG.get(key, known[key].title), "better": known[key].better, "share": key in QUALITIES}
        for key in keys
        if known[key].worth_showing(rows)
    ]
