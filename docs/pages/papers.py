"""The table of papers: from `papers.toml`, the papers that methods name, and the tests that are marked with one."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pardec
from pages.text import escaped, paper, table

_TITLE = re.compile(r"^(.+?)[,.]?\s*\n?\s*https://arxiv\.org/abs/([0-9.]+[0-9])", re.MULTILINE)


def papers(root: Path) -> str:
    """The tables, of the checkout at `root`. Raises ValueError where data and tests do not agree."""
    known = tomllib.loads((root / "docs" / "papers.toml").read_text(encoding="utf-8"))["paper"]
    methods, titles = _of_methods()
    tests = seeds(root / "tests")
    rows = {one["id"]: one for one in known}
    for one in known:
        if "shown" in one and one["id"] not in tests:
            raise ValueError(
                f"papers.toml has `shown` for {one['id']}, and no test is marked @pytest.mark.seeds with it"
            )
        if "shown" not in one and one["id"] in tests:
            raise ValueError(f"{tests[one['id']]} shows {one['id']}: write what it shows to `shown` in papers.toml")
    for key in methods:
        if key not in rows and key not in titles:
            raise ValueError(
                f"{', '.join(methods[key])}: the docstring needs the paper's title before its address, as in\n"
                f"Title of the Paper, https://arxiv.org/abs/{key}"
            )
    rows |= {key: {"id": key, "title": titles[key]} for key in methods if key not in rows}
    here = [_row(one, methods.get(key, []), tests) for key, one in rows.items() if "why" not in one]
    elsewhere = [
        (escaped(one["title"]), paper(f"arXiv:{key}"), one.get("use", ""), one["why"])
        for key, one in rows.items()
        if "why" in one
    ]
    return "\n\n".join(
        (
            table(("paper", "", "in pardec", "shown by"), sorted(here)),
            "## What is not here, or not shown",
            table(("paper", "", "in pardec", "why not"), sorted(elsewhere)),
        )
    )


def _row(one: Mapping[str, Any], methods: Sequence[str], tests: Mapping[str, str]) -> tuple[str, ...]:
    use = one.get("use") or ", ".join(f"`{name}`" for name in methods)
    shown = one.get("shown", "")
    test = tests.get(one["id"])
    by = f"[{test.partition('::')[2]}](../{test.partition('::')[0]})" if test else "its methods' own tests"
    return escaped(one["title"]), paper(f"arXiv:{one['id']}"), use, f"{by}: {shown}" if shown else by


def seeds(folder: Path) -> dict[str, str]:
    """The test of each paper, as "path::name" from the folder's parent, by the paper's number.

    Raises ValueError for a second test of one paper.
    """
    found: dict[str, str] = {}
    for file in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            for mark in getattr(node, "decorator_list", ()):
                if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.seeds":
                    key = ast.literal_eval(mark.args[0]).removeprefix("arXiv:")
                    if key in found:
                        raise ValueError(f"{key} has two tests: {found[key]} and {file}::{node.name}")
                    found[key] = f"{file.relative_to(folder.parent)}::{node.name}"
    return found


def _of_methods() -> tuple[dict[str, list[str]], dict[str, str]]:
    """The methods that name each paper, and the titles as their files give them."""
    methods: dict[str, list[str]] = defaultdict(list)
    titles: dict[str, str] = {}
    for card in pardec.list_samplers():
        for title, key in _TITLE.findall(card.explanation):
            titles.setdefault(key, re.sub(r' \(["A-Z].*\)$', "", title.strip()))
        if card.paper.startswith("arXiv:"):
            methods[card.paper.removeprefix("arXiv:")].append(card.name)
    return methods, titles
