"""Presets, tasks, embedded models and checkpoint families, as tables."""

from __future__ import annotations

import pardec
from pages.text import escaped, paper, table
from pardec.models.families import FAMILIES


def pages() -> dict[str, str]:
    return {
        "reference/generated/presets.md": _presets(),
        "reference/generated/tasks.md": _tasks(),
        "reference/generated/models.md": _models(),
        "reference/generated/families.md": _families(),
    }


def _presets() -> str:
    rows = []
    for one in pardec.list_presets():
        arguments = ", ".join(f"`{key}={value}`" for key, value in one.arguments.items())
        rows.append((f"`preset:{one.name}`", f"`{one.spec}`", arguments, paper(one.paper), escaped(one.summary)))
    head = (
        "# Presets\n\nA preset is the setting that a paper or its code states: a spec, and the arguments of `generate` "
        "that go with it. An argument of your own wins. `pardec show preset:NAME` prints one.\n\n"
    )
    return head + table(("preset", "spec", "arguments", "paper", "what it is"), rows) + "\n"


def _tasks() -> str:
    lines = ["# Tasks", "Problems are made from a seed; no held-out problem is ever in the training split."]
    for name in pardec.list_tasks():
        task = pardec.task(name)
        problem = task.problems(n=1)[0]
        lines += [f"## {name}", escaped(task.summary), escaped(" ".join((task.score.__doc__ or "").split()))]
        lines.append(f"```text\nprompt: {problem.prompt}\nanswer: {problem.answer}\n```")
    return "\n\n".join(lines) + "\n"


def _models() -> str:
    rows = []
    for card in pardec.list_models():
        rows.append((f"`{card.name}`", f"`{card.family}`", f"{card.parameters / 1e6:.1f} M", escaped(card.summary)))
    head = (
        "# Embedded models\n\nThese checkpoints ship with the package. They are small and only know the "
        "[tasks](tasks.md) that `pardec show NAME` lists; asked anything else they answer nothing, or nonsense.\n\n"
    )
    return head + table(("model", "family", "parameters", "what it is"), rows) + "\n"


def _families() -> str:
    rows = []
    for one in FAMILIES.values():
        mask = f"{one.mask[0]} (`{one.mask[1]}`)" if one.mask else ""
        block = str(one.block) if one.block else ""
        shift = "the next position" if one.shift else "the same position"
        rows.append((f"`{one.name}`", escaped(one.summary), one.attention, shift, mask, block))
    head = (
        "# Checkpoint families\n\nWhat each natively loaded family of token models states about its checkpoints. "
        "The mask token and the block length are defaults: a checkpoint's own files come first. "
        "[Checkpoints](../../checkpoints.md) says what was verified.\n\n"
    )
    return (
        head
        + table(("family", "checkpoints", "attention", "logits at position i are of", "mask token", "block"), rows)
        + "\n"
    )
