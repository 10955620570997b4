"""Assembles the report: heading, main result, sections, and the data for its script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...views import replay
from ...views.colour import ramp
from ...views.document import asset, document, fill, spec, web
from . import curves, grids, played, tables
from .columns import Row, columns, plain
from .commands import python, shell
from .finding import finding
from .orders import acceptance_section, order_section, rate_section

if TYPE_CHECKING:
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
    prompts, plot = played.prompts(run), played.plot(rows)
    tasks = list(dict.fromkeys(row["task"] for row in run.rows))
    candidates = {
        "results": ("Results", _results(rows, table.notes)),
        "quality": ("Quality against cost", asset(_HERE, "frontier.html") if plot else ""),
        "curves": ("Curves", curves.section(table.curves)),
        "images": ("Images", grids.section(run)),
        "decode": ("Decode replay", asset("pardec.views", "web/replay.html") if prompts else ""),
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
        data={"scale": replay.scale(), "prompts": prompts, "plot": plot},
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
