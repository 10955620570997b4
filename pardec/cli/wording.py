"""Words errors for the command line: names of Python arguments become names of options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

# Arguments of Python that an option has under another name.
_PLURALS = {"samplers": "sampler", "caches": "cache", "block_lengths": "block_length"}
_FILES = ("allowed", "response_format")  # options that name a file with the value
_BEFORE = r"(?<![\w:,.+@/\"'-])"  # not a parameter of a spec, a part of a path, nor quoted
_SAFE = re.compile(r"[^\s$`*?;&|<>()]+")  # characters that a shell needs no quotes for
_ECHO = re.compile(r" \((--[a-z][a-z-]+(?:, --[a-z][a-z-]+)*)\)")  # the options of arguments named before
_VALUE = r"\"[^\"]*\"|'[^']*'|\[[^\]]*\]|\([^)]*\)|\{[^}]*\}|[^\s,;()]+(?=[\s,;()]|$)"


def option_names(command: Any, arguments: Sequence[str]) -> dict[str, str]:
    """The options of the command that `arguments` begin with, by the name of the argument in Python.

    `command`: all commands, as click runs them.
    """
    for word in arguments:
        inner = getattr(command, "commands", {}).get(word)
        if inner is None:
            break
        command = inner
    names: dict[str, str] = {}
    for parameter in command.params:
        long = [name for name in parameter.opts if name.startswith("--")]
        if long:
            names[str(parameter.name).rstrip("_")] = long[0]
        if parameter.secondary_opts:
            names[f"{parameter.name}=False"] = parameter.secondary_opts[0]
    names |= {plural: names[name] for plural, name in _PLURALS.items() if name in names}
    if "no_references" in names:
        names["references=False"] = names.pop("no_references")
    return names


def as_options(text: str, names: Mapping[str, str]) -> str:
    """`text` with the Python arguments of `names` replaced by the options that they map to.

    >>> names = {"max_new_tokens": "--max-new-tokens", "sampler": "--sampler", "stop": "--stop"}
    >>> as_options("max_new_tokens=64 asks for 64 tokens; sampler=\\"fixed:steps=32\\"", names)
    '--max-new-tokens 64 asks for 64 tokens; --sampler fixed:steps=32'
    >>> as_options("leave out stop or max_new_tokens", names)
    'leave out --stop or --max-new-tokens'
    >>> as_options("stop cannot be combined with tools", names)
    '--stop cannot be combined with tools'
    >>> as_options("use more tokens: max_new_tokens=64 (--max-new-tokens)", names)
    'use more tokens: --max-new-tokens 64'
    """
    for name in names:
        if "=" in name:
            text = text.replace(name, names[name])
    for name, option in sorted(names.items(), key=lambda each: -len(each[0])):
        if not name.isidentifier():
            continue
        word = re.escape(name)
        text = re.sub(rf"{_BEFORE}{word}=({_VALUE})", partial(_with_value, name, option), text)
        text = re.sub(rf"{_BEFORE}{word}=(?=[\s,;.)]|$)", option, text)
        if "_" in name:
            text = re.sub(rf"{_BEFORE}{word}(?![\w/(:\"'-]|\.\w)", option, text)
        else:  # an ordinary word: only where a sentence speaks of the argument
            text = re.sub(rf"^{word}(?= (?:must be|cannot be combined)\b)", option, text)
            text = re.sub(rf"\b(leave(?: out)?|with) {word}(?= out\b| or\b|[,;.]|$)", rf"\1 {option}", text)
    return _ECHO.sub(_without_echo, text)


def _without_echo(match: re.Match[str]) -> str:
    """Nothing for options in brackets that the text before them names; else the brackets as they are."""
    return "" if all(option in match.string[: match.start()] for option in match[1].split(", ")) else match[0]


def _with_value(name: str, option: str, match: re.Match[str]) -> str:
    """An option with the value of the Python argument."""
    value = match[1]
    if name in _FILES:
        return f"{option} FILE.json"
    if value in ("True", "False"):
        return option if value == "True" else f"no {option}"
    if value[0] in "[(":  # several values: a repeated option, or numbers with commas
        inner = value[1:-1].strip()
        texts = re.findall(r"\"([^\"]*)\"|'([^']*)'", inner)
        if texts:
            return " ".join(f"{option} {shlex.quote(first or second)}" for first, second in texts)
        return f"{option} {inner.replace(' ', '')}"
    if value[0] in "\"'":
        inner = value[1:-1]
        return f"{option} {inner}" if _SAFE.fullmatch(inner) else f"{option} {shlex.quote(inner)}"
    return f"{option} {value}"
