"""The call that makes a run again, read off its configuration: for a shell, and for Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

_DEFAULTS = {
    "limit": 50,
    "seeds": [0],
    "split": "heldout",
    "problem_seed": 7,
    "batch_size": 8,
    "references": True,
    "replays": 4,
    "dtype": "auto",
    "revision": None,
    "device": "auto",
    "device_map": None,
    "executor": "local",
    "workers": None,
}


def asked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `compare` that differ from its defaults."""
    held = {**config, **config.get("where", {})}
    changed = {
        name: held[name] for name, default in _DEFAULTS.items() if name in held and _plain(held[name]) != default
    }
    generate = {name: value for name, value in config["generate"].items() if value is not None}
    tasks = [task for task in config["tasks"] if task["scorer"] is None]
    files = [task for task in config["tasks"] if task["scorer"] is not None]
    found: dict[str, Any] = {"task": [task["name"] for task in tasks]} if tasks else {}
    if files:
        found |= {"prompts": files[0]["file"] or "prompts.jsonl", "scorer": files[0]["scorer"]}
    found["samplers"] = [entry["sampler"] for entry in config["samplers"] if not entry["reference"]]
    return {**found, **changed, **generate}


def commands(config: Mapping[str, Any]) -> list[str]:
    """One command for a shell, an argument a line."""
    lines = [f"pardec compare {shlex.quote(str(config['model']))}"]
    for name, value in asked(config).items():
        flag = {"samplers": "-s", "seeds": "--seed"}.get(name, "--" + name.replace("_", "-"))
        if isinstance(value, bool):
            lines.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            lines.append(" ".join(f"{flag} {shlex.quote(str(one))}" for one in value))
        else:
            lines.append(f"{flag} {shlex.quote(str(value))}")
    return [*(f"{line} \\" for line in [lines[0], *(f"  {line}" for line in lines[1:])]), "  --out run"]


def python(config: Mapping[str, Any]) -> list[str]:
    """The same call from Python."""
    arguments = "".join(f"    {name}={_plain(value)!r},\n" for name, value in asked(config).items())
    return ["import pardec", "", f"table = pardec.compare(\n    {config['model']!r},\n{arguments})"]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
