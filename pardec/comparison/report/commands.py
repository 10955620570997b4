"""The command and the Python call that repeat a run, from its configuration."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...tasks.scorers import SCORERS

_DEFAULTS = {
    "limit": 50, "seeds": [0], "split": "heldout", "problem_seed": 7, "batch_size": 8, "references": True,
    "replays": 4, "points": None, "cost_ratio": None, "dtype": "auto", "revision": None, "quantize": None,
    "device": "auto", "device_map": None, "executor": "local", "workers": None, "cuda_graphs": "auto", "adapter": None,
    "packed": None, "activations": None,
}  # fmt: skip


# The arguments of `generate` that the command has; the others exist in Python only.
_FLAGS = {"max_new_tokens", "block_length", "temperature", "top_k", "top_p", "cfg"}


def call_arguments(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `compare` that differ from its defaults; `prompts` is None if they were not a file."""
    settings = {**config, **config.get("where", {})}
    changed = {
        name: settings[name]
        for name, default in _DEFAULTS.items()
        if name in settings and _plain(settings[name]) != default
    }
    generate = {name: value for name, value in config["generate"].items() if value is not None}
    tasks = [task["name"] for task in config["tasks"] if task["scorer"] is None]
    arguments: dict[str, Any] = {"task": tasks} if tasks else {}
    for task in config["tasks"]:
        if task["scorer"] is not None:
            arguments |= {"prompts": task["file"], "scorer": task["scorer"]}
    arguments["samplers"] = [entry["sampler"] for entry in config["samplers"] if not entry["reference"]]
    if "sweep" in config:
        arguments |= {"samplers": config["sweep"], "sweep": True}
    if config.get("chat") in ("chat", "raw"):
        changed["chat"] = config["chat"] == "chat"
    return {**arguments, **changed, **generate}


def shell(config: Mapping[str, Any]) -> list[str]:
    """The command, one argument per line; empty if the run can be repeated from Python only."""
    arguments = call_arguments(config)
    if (
        arguments.get("prompts", "") is None
        or is_function(arguments.get("scorer"))
        or not _FLAGS.issuperset(config["generate"].keys() & arguments.keys())
    ):
        return []
    torchrun = arguments.get("executor") == "torchrun"
    start = f"torchrun --nproc-per-node {arguments.get('workers', 'auto')} -m " if torchrun else ""
    lines = [f"{start}pardec compare {shlex.quote(str(config['model']))}"]
    for name, value in arguments.items():
        if name == "references":
            lines.append("--no-references")
        elif name == "chat":
            lines.append("--chat" if value else "--raw")
        elif name == "packed":
            lines.append("--packed" if value else "--dense")
        elif isinstance(value, bool):
            lines.append(f"--{'' if value else 'no-'}{name.replace('_', '-')}")
        elif name == "seeds":
            lines.append("--seeds " + ",".join(map(str, value)))
        elif isinstance(value, list | tuple):
            flag = "-s" if name == "samplers" else f"--{name}"
            lines.append(" ".join(f"{flag} {shlex.quote(str(item))}" for item in value))
        else:
            lines.append(f"--{name.replace('_', '-')} {shlex.quote(str(value))}")
    return [f"{lines[0]} \\", *(f"  {line} \\" for line in lines[1:]), "  --out run"]


def is_function(scorer: str | None) -> bool:
    """Whether a scorer was a Python function, which a command cannot name."""
    return scorer is not None and scorer not in SCORERS and ":" not in scorer


def python(config: Mapping[str, Any]) -> list[str]:
    """The Python call that repeats a run."""
    lines = ["import pardec", "", "table = pardec.compare(", f"    {config['model']!r},"]
    for name, value in call_arguments(config).items():
        if name == "prompts" and value is None:
            lines.append("    prompts=prompts,  # the prompts of this run")
        elif name == "scorer" and is_function(value):
            lines.append(f"    scorer=scorer,  # {value}, the function of this run")
        else:
            lines.append(f"    {name}={_plain(value)!r},")
    return [*lines, '    out="run",', ")"]


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
