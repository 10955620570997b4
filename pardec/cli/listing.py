"""`pardec list` and `pardec show`: the samplers, models, tasks and presets, and the card of one."""

from __future__ import annotations

import inspect
import os
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from pardec.models.errors import SpecError, UnknownModelError, UnknownNameError, did_you_mean
from pardec.models.files.built import BUILT, Built
from pardec.models.files.catalog import EMBEDDED
from pardec.models.files.gguf.listing import converted_files
from pardec.models.files.packaged import PACKAGED, Packaged, fetched
from pardec.models.files.sources import local
from pardec.samplers.measured import of_method, verdict

from ..cards import DrafterCard, ModelCard, list_drafters, list_models, list_samplers
from . import options as o
from .common import Json, columns, dump
from .drafter_check import check_drafter

if TYPE_CHECKING:
    from pardec.samplers.cards import Card
    from pardec.samplers.presets import Preset

Kind = Literal["samplers", "models", "drafters", "tasks", "presets"]


@o.command
def list_(
    kind: Annotated[Kind, typer.Argument(help="What to list.")],
    json_: Json = False,
    stage: Annotated[str | None, typer.Option(help="Only samplers of this stage.")] = None,
    family: Annotated[
        str | None, typer.Option(help="Only samplers for masked, ar, continuous or scales models.")
    ] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Samplers as a Markdown table.")] = False,
) -> None:
    """List the samplers, models, draft modules, tasks or presets.

    pardec list samplers --stage select

    pardec list samplers --family continuous
    """
    filters = {"stage": stage, "family": family}
    if (any(filters.values()) or markdown) and kind != "samplers":
        raise SpecError(
            "--stage, --family and --markdown are for samplers", hint='try "pardec list samplers --markdown"'
        )
    matches = entries(kind)
    for name, value in filters.items():
        if value is not None:
            _check_filter(name, value, entries(kind))
            matches = [entry for entry in matches if entry[name] == value]
    if json_:
        dump(matches)
    elif markdown:
        print(table(matches))
    elif matches:
        names = [
            name
            for name in ("name", "kind", "target", "stage", "exact", "verdict", "spec", "family", "group", "summary")
            if name in matches[0]
        ]
        if kind == "samplers":
            names.remove("family")
        print(columns([tuple(names), *(tuple(str(entry[name]) for name in names) for entry in matches)]))


@o.command
def show(
    name: Annotated[
        str, typer.Argument(help="A sampler, task, preset (or preset:NAME) or model: its name, folder, file or hub id.")
    ],
    target: Annotated[
        str | None,
        typer.Option(
            help="Load NAME as a draft module of this model; for an EAGLE, also compare its tokens with the model's."
        ),
    ] = None,
    rows: Annotated[
        list[Path] | None,
        typer.Option(
            "--rows", help="With --target: rows that the target has answered; without them it answers prompts now."
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Show a sampler's rule, parameters, source and verdict, the card of a task or preset, or what a model loads as.

    pardec show threshold

    pardec show GSAI-ML/LLaDA-8B-Instruct

    pardec show tiny-llama-eagle --target tiny-llama
    """
    if target is not None:
        check_drafter(name, target, rows or [], json_=json_)
        return
    if rows:
        raise SpecError("--rows needs --target", hint=f"name it: pardec show {name} --target MODEL --rows FILE")
    is_preset = name.startswith("preset:")  # some presets have the name of a sampler
    kinds: tuple[Kind, ...] = ("presets",) if is_preset else ("samplers", "models", "drafters", "tasks", "presets")
    known: dict[str, list[dict[str, Any]]] = {}
    for kind in kinds:
        cards: dict[str, list[dict[str, Any]]] = {}
        for entry in entries(kind):  # samplers of different families may share a name
            cards.setdefault(entry["name"], []).append(entry)
        known = cards | known
    matches = known.get(name.removeprefix("preset:"))
    if not is_preset and (_may_be_a_model(name) if matches is None else "accuracy" in matches[0]):
        matches = [{"name": name, **_recognition(name, card), **card} for card in matches or [{}]]
    if matches is None:
        what, hint = ("preset", "presets") if is_preset else ("name", "samplers")
        near = did_you_mean(name.removeprefix("preset:"), known)
        raise UnknownNameError(f"unknown {what} {name!r}{near}", hint=f'run "pardec list {hint}"')
    if json_:
        dump(matches[0] if len(matches) == 1 else matches)
    else:
        print("\n\n".join(map(_describe, matches)))


def _recognition(name: str, card: dict[str, Any]) -> dict[str, Any]:
    """How a model loads; for an embedded model this is known without importing torch."""
    if card and Path(card["path"]).parent == EMBEDDED:
        return {"loads": "natively"}
    if card and not card["path"]:
        return {"loads": f"natively, once it is {'built' if name in BUILT else 'fetched'}"}
    from pardec.models.loading.outline import check_tensors, memory_described
    from pardec.models.loading.recognition import describe

    described = describe(name)
    if described["loads"] != "natively":
        return described
    check_tensors(name)
    import torch

    captured = "known by" in described and torch.cuda.is_available()
    graphs = (
        {"forwards": "by CUDA graphs where their shapes recur, whole steps where all stages can"} if captured else {}
    )
    return described | memory_described(name) | graphs


def _may_be_a_model(name: str) -> bool:
    """Whether a name without a card may be a folder, a file or a repository of the hub."""
    try:
        local(name)
    except UnknownModelError:
        return os.sep in name
    return True


def _describe(entry: dict[str, Any]) -> str:
    if "stage" in entry:
        return _describe_sampler(entry)
    if "tasks" in entry or "scoring" in entry:
        return _describe_task(entry)
    lines = [f"{key}: {value}" for key, value in entry.items() if key != "accuracy"]
    if entry.get("accuracy"):
        rows = [
            (f"  {sampler}", task, f"{figures[task]:.1%} of {count}", f"{figures[f'{task}_nfe']:.1f} forwards")
            for sampler, figures in entry["accuracy"].items()
            for task, count in figures["problems"].items()
        ]
        lines += ["accuracy on held-out problems", columns(rows)]
    return "\n".join(lines)


def _drafting_presets(drafter: str) -> list[tuple[str, str]]:
    """The presets that draft with a method, and their specs."""
    from pardec.samplers.presets import presets
    from pardec.samplers.spec import parse

    return [
        (f"  preset:{preset.name}", preset.spec) for preset in presets() if parse(preset.spec).parts[0].name == drafter
    ]


def _layouts(drafter: str) -> list[tuple[str, str]]:
    """The layouts of draft modules that a drafter loads; none for a drafter that has no module."""
    if not (EMBEDDED.parent / "draft_modules" / f"{drafter}.py").is_file():  # others are shown without importing torch
        return []
    from pardec.models.draft_modules.load import kind_named

    kind = kind_named(drafter)
    return [(f"  {layout}", verified) for layout, verified in (kind.published if kind else {}).items()]


def _check_filter(what: str, value: str, matches: list[dict[str, Any]]) -> None:
    """Raises SpecError for a stage or a family that no sampler has."""
    known = list(dict.fromkeys(entry[what] for entry in matches))
    if value not in known:
        words = {"stage": "stages", "family": "families"}[what]
        raise SpecError(f"unknown {what} {value!r}{did_you_mean(value, known)}", hint=f"{words}: {', '.join(known)}")


def entries(kind: Kind) -> list[dict[str, Any]]:
    """The cards of one kind as plain values."""
    if kind == "samplers":
        return [_plain(card) for card in list_samplers()]
    if kind == "models":
        found: list[tuple[Packaged | Built, Path | None]] = [(card, fetched(name)) for name, card in PACKAGED.items()]
        found += [(card, card.folder) for card in BUILT.values()]
        own = [
            ModelCard(card.name, card.family, card.summary, card.parameters, {}, str(path or ""))
            for card, path in found
        ]
        paths = {card.path for card in own}
        files = (
            ModelCard(file.name, file.family, f"{file.summary} (a GGUF file)", file.parameters, {}, file.path)
            for file in converted_files()
            if file.name not in paths
        )
        return [_plain(card) for card in [*list_models(), *own, *files]]
    if kind == "drafters":
        return [_plain(card) for card in list_drafters()]
    if kind == "tasks":
        return _tasks()
    from pardec.samplers.presets import presets

    return [_plain(preset) for preset in presets()]


def _tasks() -> list[dict[str, Any]]:
    """The tasks, each with an example, and then the groups of tasks."""
    from ..tasks import GROUPS, Task, list_tasks, task

    group_of = {name: group for group, names in GROUPS.items() for name in names}
    cards: list[dict[str, Any]] = []
    for name in list_tasks():
        item = task(name)
        example = item.problems(n=1)[0]
        cards.append(
            {
                "name": name,
                "group": group_of.get(name, ""),
                "summary": item.summary,
                "scoring": inspect.getdoc(item.score),
                "lenient": inspect.getdoc(item.lenient) if type(item).lenient is not Task.lenient else "the same",
                "example": {"prompt": example.prompt, "answer": example.answer},
            }
        )
    for group, names in GROUPS.items():
        cards.append({"name": group, "group": "", "summary": f"the group of {', '.join(names)}", "tasks": list(names)})
    return cards


def _describe_task(entry: dict[str, Any]) -> str:
    if "tasks" in entry:
        return f"{entry['name']} (a group of tasks)\n\ntasks: {', '.join(entry['tasks'])}"
    of = f", of the group {entry['group']}" if entry["group"] else ""
    lines = [f"{entry['name']} (a task{of})", "", entry["summary"], ""]
    lines += [f"score: {entry['scoring']}", f"lenient: {entry['lenient']}", ""]
    return "\n".join([*lines, f"prompt: {entry['example']['prompt']}", f"answer: {entry['example']['answer']}"])


def table(cards: list[dict[str, Any]]) -> str:
    """The samplers as a Markdown table."""
    lines = ["| name | stage | paper | exact | verdict | checked | parameters | what it does |", "|---" * 8 + "|"]
    for card in cards:
        parameters = ", ".join(
            f"`{p['name']}={p['default']}`" if p["default"] else f"`{p['name']}`" for p in card["parameters"]
        )
        paper = card["paper"]
        number = paper.removeprefix("arXiv:")
        link = paper if number == paper else f"[{paper}](https://arxiv.org/abs/{number})"
        kinds = _check_kinds(card["checked"])
        cells = (
            f"`{card['name']}`",
            card["stage"],
            link,
            card["exact"],
            card["verdict"],
            kinds,
            parameters,
            card["summary"],
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


def _check_kinds(checked: Sequence[str]) -> str:
    """The kinds of checks, without the names of recorded sets."""
    return ", ".join(dict.fromkeys(word.partition("/")[0] for word in checked))


def _describe_checks(checked: Sequence[str]) -> str:
    """The checks, each with its explanation."""
    from pardec.samplers.cards import CHECKS

    matches = [word.partition("/") for word in checked]
    sets = ", ".join(name for _, _, name in matches if name)
    lines = [f"{kind} ({CHECKS[kind]}{': ' + sets if kind == 'golden' else ''})" for kind, _, _ in matches]
    return "; ".join(dict.fromkeys(lines))


def _plain(card: Card | ModelCard | DrafterCard | Preset) -> dict[str, Any]:
    values = {field.name: getattr(card, field.name) for field in fields(card)}
    if "parameters" in values and "stage" in values:
        values["parameters"] = [dict(parameter) for parameter in values["parameters"]]
        del values["references"]  # files of the repository's tests
        values["verdict"] = verdict(values["name"], values["family"])
    return values


_ROUND = "round that verifies a chain, if all stages can be"
# The trait with which a stage can be part of a captured step or round, by its family and kind.
_CAPTURED_BY = dict.fromkeys((("masked", kind) for kind in ("propose", "select", "widen", "logits")), "NEEDS_NO_HOST")
_CAPTURED_BY |= {
    ("ar", "accept"): "NEEDS_NO_HOST",
    ("ar", "draft"): "OBSERVES_TOKENS",
    ("ar", "length"): "OBSERVES_TOKENS",
}


def _describe_capture(file: str, family: str, stage: str) -> str:
    """Whether the stage in a file can be part of a step or round in one graph; read without importing torch."""
    if f"Trait.{_CAPTURED_BY[family, stage]}" in Path(file).read_text(encoding="utf-8"):
        return f"part of a captured {'step, if all stages that decide are' if family == 'masked' else _ROUND}"
    return f"needs the host: of its {'steps' if family == 'masked' else 'rounds'} only the forward is captured"


def _describe_sampler(entry: dict[str, Any]) -> str:
    from pardec.samplers.cards import find

    lines = [f"{entry['name']} ({entry['stage']} stage, {entry['family']} models)", ""]
    lines += [find(entry["name"], entry["family"]).explanation, ""]
    if entry["parameters"]:
        lines.append("parameters")
        rows = [(f"  {p['name']}", p["type"], f"default {p['default']}", p["doc"]) for p in entry["parameters"]]
        lines += [columns(rows), ""]
    lines.append(f"exact: {entry['exact']}")
    if entry["checked"]:
        lines.append(f"checked: {_describe_checks(entry['checked'])}")
    if entry["paper"]:
        lines.append(f"paper: {entry['paper']}")
    lines += [f"measured: {row}" for row in of_method(entry["name"], entry["family"])]
    if (entry["family"], entry["stage"]) in _CAPTURED_BY:
        lines.append(f"CUDA graphs: {_describe_capture(entry['file'], entry['family'], entry['stage'])}")
    if entry["stage"] == "draft" and (published := _drafting_presets(entry["name"])):
        lines += ["", "presets, with the trees of their papers", columns(published), ""]
    if entry["stage"] == "draft" and (layouts := _layouts(entry["name"])):
        lines += ["", "published checkpoints that load, and how each was verified", columns(layouts), ""]
    return "\n".join([*lines, f"source: {entry['file']}:{entry['line']}"])
