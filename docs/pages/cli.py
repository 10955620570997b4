"""The command line as its parser describes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pages.text import escaped, table
from pardec.cli.app import command_line


def pages() -> dict[str, str]:
    group = command_line()
    lines = [
        "# Command line",
        "Results go to stdout and everything else to stderr. The exit code is 0 when done, 1 when something failed, "
        "2 for misuse and 130 when interrupted. An error is one line that says what is wrong and one that says what "
        "would work; `--debug` adds the traceback. What `--json` prints is [described here](../output.md).",
    ]
    for name, command in _commands(group, "pardec"):
        lines += [f"## {name}", *_help(command), f"```text\n{_usage(name, command)}\n```"]
        for title, kind in (("argument", "argument"), ("option", "option")):
            found = [_parameter(one) for one in command.params if one.param_type_name == kind and not one.hidden]
            if found:
                lines.append(table((title, "value", "default", "what it is"), found))
    return {"reference/cli/index.md": "\n\n".join(lines) + "\n"}


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield name, command
        return
    for key, one in inner.items():
        yield from _commands(one, f"{name} {key}")


def _help(command: Any) -> Iterator[str]:
    for paragraph in (command.help or "").replace("\b", "").split("\n\n"):
        text = " ".join(paragraph.split())
        yield f"```text\n{text}\n```" if text.startswith(("pardec ", "torchrun ")) else escaped(text)


def _usage(name: str, command: Any) -> str:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    words = [one.name.upper() + ("..." if one.nargs != 1 else "") for one in arguments]
    return " ".join(
        [
            name,
            *(word if one.required else f"[{word}]" for word, one in zip(words, arguments, strict=True)),
            "[OPTIONS]",
        ]
    )


def _parameter(one: Any) -> tuple[str, ...]:
    argument = one.param_type_name == "argument"
    names = one.name.upper() if argument else ", ".join((*one.opts, *one.secondary_opts))
    flag = getattr(one, "is_flag", False)
    kind = "" if flag else _kind(one)
    default = one.default
    shown = "" if default is None or callable(default) or flag or default in ((), [], "") else f"`{default}`"
    return f"`{names}`", kind, shown, escaped(" ".join((getattr(one, "help", None) or "").split()))


def _kind(one: Any) -> str:
    """The type of an option's value; typer keeps the annotation or a type of click, depending on its version."""
    described = getattr(one, "type_descriptor", None)
    if described is None:
        choices = getattr(one.type, "choices", None)
        return " or ".join(map(str, choices)) if choices else str(one.type.name)
    annotation = described.annotation
    if get_origin(annotation) is list:
        (annotation,) = get_args(annotation)
    if get_origin(annotation) is Literal:
        return " or ".join(map(str, get_args(annotation)))
    names = {"str": "text", "int": "integer", "float": "number", "Path": "path"}
    return names.get(getattr(annotation, "__name__", ""), getattr(annotation, "__name__", str(annotation)))
