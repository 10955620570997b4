"""Plain docstring text as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"([\\*_\[\]<>~|$#^{}])")
_REFERENCE = re.compile(r"(https?://[^\n]*[^,.\n])\n(?=[A-Z])")  # a line that ends a reference, before another one
_URL = re.compile(r"https?://[^\s),]+")


def escaped(text: str) -> str:
    """Text whose code spans stay and whose links become links; every other character is escaped."""
    parts = re.split(r"(`[^`]*`|https?://[^\s),;]+)", text)
    return "".join(_part(part) for part in parts)


def _part(part: str) -> str:
    if part.startswith("`") and part.endswith("`") and len(part) > 1:
        return part
    if _URL.fullmatch(part):
        end = "." if part.endswith(".") else ""
        return f"<{part.removesuffix('.')}>{end}"
    return _SPECIAL.sub(r"\\\1", part)


def prose(text: str) -> str:
    """A docstring: indented paragraphs become literal blocks."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        if block.startswith("    "):
            lines = [line[4:] for line in block.split("\n")]
            blocks.append("```text\n" + "\n".join(lines) + "\n```")
        else:
            blocks.append(_REFERENCE.sub(r"\1\\\n", escaped(block)))
    return "\n\n".join(blocks)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; cells are Markdown, with bars escaped."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(re.sub(r"(?<!\\)\|", r"\\|", cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def paper(name: str) -> str:
    """An arXiv number, or the address of a model's card, as a link."""
    if name.startswith("https:"):
        return f"[{name.rpartition('/')[2]}]({name})"
    return f"[{name}](https://arxiv.org/abs/{name.removeprefix('arXiv:')})" if name.startswith("arXiv:") else name
