"""`pardec list` and `pardec show`: what there is, and what one name means."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pardec.models.errors import SpecError, UnknownNameError, did_you_mean
from pardec.models.loading.gguf.listing import converted_files

from ..cards import ModelCard, list_models, list_samplers
from . import options as o
from .common import Json, columns, dump

if TYPE_CHECKING:
    from pardec.samplers.cards import Card
    from pardec.samplers.presets import Preset

Kind = Literal["samplers", "models", "tasks", "presets"]


@o.command
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json_: Json = False,
    stage: Annotated[str | None, typer.Option(help="Samplers of this stage only.")] = None,
    family: Annotated[str | None, typer.Option(help="Samplers for masked, ar or continuous models only.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Samplers as a Markdown table.")] = False,
) -> None:
    """List the samplers, models, tasks or presets there are.

    pardec list samplers --stage select

    pardec list samplers --family continuous
    """
    filters = {"stage": stage, "family": family}
    if (any(filters.values()) or markdown) and kind != "samplers":
        raise SpecError(
            "--stage, --family and --markdown are for samplers", hint='try "pardec list samplers --markdown"'
        )
    found = entries(kind)
    for name, wanted in filters.items():
        if wanted is not None:
            _check(name, wanted, entries(kind))
            found = [entry for entry in found if entry[name] == wanted]
    if json_:
        dump(found)
    elif markdown:
        print(table(found))
    elif found:
        shown = [name for name in ("name", "stage", "exact", "spec", "family", "group", "summary") if name in found[0]]
        if kind == "samplers":
            shown.remove("family")
        print(columns([tuple(shown), *(tuple(str(entry[name]) for name in shown) for entry in found)]))


@o.command
def show(
    name: Annotated[str, typer.Argument(help="A sampler, model, task or preset (or preset:NAME).")], json_: Json = False
) -> None:
    """Show what a name means: the rule, parameters, paper and source of a sampler; a model's card.

    pardec show threshold
    """
    named = name.startswith("preset:")  # some presets are called what a sampler is called
    kinds: tuple[Kind, ...] = ("presets",) if named else ("samplers", "models", "tasks", "presets")
    known: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        of_kind: dict[str, list[dict[str, Any]]] = {}
        for entry in entries(kind):  # a sampler may have a namesake in each family
            of_kind.setdefault(entry["name"], []).append(entry)
        known = of_kind | known
    found = known.get(name.removeprefix("preset:"))
    if found is None:
        what, hint = ("preset", "presets") if named else ("name", "samplers")
        near = did_you_mean(name.removeprefix("preset:"), known)
        raise UnknownNameError(f"unknown {what} {name!r}{near}", hint=f'run "pardec list {hint}"')
    if json_:
        dump(found[0] if len(found) == 1 else found)
    else:
        print("\n\n".join(map(_shown, found)))


def _shown(entry: dict[str, Any]) -> str:
    if "stage" in entry:
        return _sampler(entry)
    if "tasks" in entry or "scoring" in entry:
        return _task(entry)
    return "\n".join(f"{key}: {value}" for key, value in entry.items())


def _check(what: str, wanted: str, found: list[dict[str, Any]]) -> None:
    """Refuses a stage or a family that no sampler has."""
    known = list(dict.fromkeys(entry[what] for entry in found))
    if wanted not in known:
        words = {"stage": "stages", "family": "families"}[what]
        raise SpecError(f"unknown {what} {wanted!r}{did_you_mean(wanted, known)}", hint=f"{words}: {', '.join(known)}")


def entries(kind: Kind) -> list[dict[str, Any]]:
    """The cards of one kind as plain values."""
    if kind == "samplers":
        return [_plain(card) for card in list_samplers()]
    if kind == "models":
        files = (
            ModelCard(file.name, file.family, f"{file.summary} (a GGUF file)", file.parameters, {}, file.path)
            for file in converted_files()
        )
        return [_plain(card) for card in [*list_models(), *files]]
    if kind == "tasks":
        return _tasks()
    from pardec.samplers.presets import presets

    return [_plain(preset) for preset in presets()]


def _tasks() -> list[dict[str, Any]]:
    """The tasks, each with an example, and then the groups of tasks."""
    from ..tasks import GROUPS, Task, list_tasks, task

    group_of = {name: group for group, names in GROUPS.items() for name in names}
    found: list[dict[str, Any]] = []
    for name in list_tasks():
        made = task(name)
        example = made.problems(n=1)[0]
        found.append(
            {
                "name": name,
                "group": group_of.get(name, ""),
                "summary": made.summary,
                "scoring": inspect.getdoc(made.score),
                "lenient": inspect.getdoc(made.lenient) if type(made).lenient is not Task.lenient else "the same",
                "example": {"prompt": example.prompt, "answer": example.answer},
            }
        )
    for group, names in GROUPS.items():
        found.append({"name": group, "group": "", "summary": f"the group of {', '.join(names)}", "tasks": list(names)})
    return found


def _task(entry: dict[str, Any]) -> str:
    if "tasks" in entry:
        return f"{entry['name']} (a group of tasks)\n\ntasks: {', '.join(entry['tasks'])}"
    of = f", of the group {entry['group']}" if entry["group"] else ""
    lines = [f"{entry['name']} (a task{of})", "", entry["summary"], ""]
    lines += [f"score: {entry['scoring']}", f"lenient: {entry['lenient']}", ""]
    return "\n".join([*lines, f"prompt: {entry['example']['prompt']}", f"answer: {entry['example']['answer']}"])


def table(cards: list[dict[str, Any]]) -> str:
    """The samplers as the README shows them."""
    lines = ["| name | stage | paper | exact | checked | parameters | what it does |", "|---|---|---|---|---|---|---|"]
    for card in cards:
        parameters = ", ".join(
            f"`{p['name']}={p['default']}`" if p["default"] else f"`{p['name']}`" for p in card["parameters"]
        )
        paper = card["paper"]
        number = paper.removeprefix("arXiv:")
        link = paper if number == paper else f"[{paper}](https://arxiv.org/abs/{number})"
        kinds = _kinds(card["checked"])
        cells = (f"`{card['name']}`", card["stage"], link, card["exact"], kinds, parameters, card["summary"])
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _kinds(checked: Sequence[str]) -> str:
    """The kinds of checks, the recorded sets left out."""
    return ", ".join(dict.fromkeys(word.partition("/")[0] for word in checked))


def _checks(checked: Sequence[str]) -> str:
    """Each check on a line, in words."""
    from pardec.samplers.cards import CHECKS

    found = [word.partition("/") for word in checked]
    sets = ", ".join(name for _, _, name in found if name)
    lines = [f"{kind} ({CHECKS[kind]}{': ' + sets if kind == 'golden' else ''})" for kind, _, _ in found]
    return "; ".join(dict.fromkeys(lines))


def _plain(card: Card | ModelCard | Preset) -> dict[str, Any]:
    kept = {field.name: getattr(card, field.name) for field in fields(card)}
    if "parameters" in kept and "stage" in kept:
        kept["parameters"] = [dict(parameter) for parameter in kept["parameters"]]
    return kept


def _sampler(entry: dict[str, Any]) -> str:
    from pardec.samplers.cards import find

    lines = [f"{entry['name']} ({entry['stage']} stage, {entry['family']} models)", ""]
    lines += [find(entry["name"], entry["family"]).explanation, ""]
    if entry["parameters"]:
        lines.append("parameters")
        rows = [(f"  {p['name']}", p["type"], f"default {p['default']}", p["doc"]) for p in entry["parameters"]]
        lines += [columns(rows), ""]
    lines.append(f"exact: {entry['exact']}")
    if entry["checked"]:
        lines.append(f"checked: {_checks(entry['checked'])}")
    if entry["paper"]:
        lines.append(f"paper: {entry['paper']}")
    return "\n".join([*lines, f"source: {entry['file']}:{entry['line']}"])
