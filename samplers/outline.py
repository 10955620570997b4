"""Reads what a card needs from a method's file without running it, so that listing methods does not import torch.

A card holds the arguments of `@register(...)`, the fields of the dataclass and the docstring of the file. A file in
which one of them is not a literal has to be imported.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any


class Unreadable(Exception):
    """Raised if a file must be imported to know which classes it registers."""


@dataclass(frozen=True, slots=True)
class Outline:
    """A registered class as read from its file."""

    module: str
    qualname: str
    name: str
    keywords: Mapping[str, Any]  # arguments of `register`
    summary: str
    paper: str
    parameters: tuple[Mapping[str, Any], ...]  # name, type, default (absent where there is none), doc
    file: str
    line: int


def outlines(module: str, file: str) -> Iterator[Outline]:
    """Every class that the file of `module` registers. Raises Unreadable."""
    page = _Page(module, file)
    for node in page.tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name):
                if decorator.func.id != "register":
                    continue
                (name,) = map(_value, decorator.args)
                keywords = {str(keyword.arg): _value(keyword.value) for keyword in decorator.keywords}
                line = node.decorator_list[0].lineno
                fields = tuple(_fields(page, node).values())
                paper = paper_of(page.doc)
                yield Outline(module, node.name, name, keywords, page.summary, paper, fields, file, line)


def paper_of(doc: str) -> str:
    """The first paper on arXiv that a docstring gives, as "arXiv:<id>"; empty without one.

    >>> paper_of("A rule.\\n\\nIts Paper, https://arxiv.org/abs/2502.09992")
    'arXiv:2502.09992'
    """
    found = re.search(r"arxiv\.org/abs/(\d+\.\d+)", doc)
    return f"arXiv:{found[1]}" if found else ""


def explanation(file: str) -> str:
    """The docstring of a file; empty where it cannot be read."""
    try:
        return ast.get_docstring(ast.parse(Path(file).read_text(encoding="utf-8"))) or ""
    except (OSError, SyntaxError, ValueError):
        return ""


class _Page:
    """A parsed Python file."""

    def __init__(self, module: str, file: str) -> None:
        try:
            text = Path(file).read_text(encoding="utf-8")
            self.tree = ast.parse(text)
        except (OSError, SyntaxError, ValueError) as error:
            raise Unreadable(file) from error
        self.module = module
        self.doc = ast.get_docstring(self.tree) or ""
        self.summary = self.doc.split("\n")[0]

    def base(self, name: str) -> tuple[_Page, ast.ClassDef]:
        """The class that `name` refers to in this file, and the file that defines it."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._imported(node).base(alias.name)
        raise Unreadable(name)

    def _imported(self, node: ast.ImportFrom) -> _Page:
        package = self.module.rpartition(".")[0]
        module = resolve_name("." * node.level + (node.module or ""), package)
        parent, _, name = module.rpartition(".")
        folder = find_spec(parent) if parent else None  # imports the parent package only
        for location in (folder.submodule_search_locations or ()) if folder else ():
            file = Path(location, name + ".py")
            if file.is_file():
                return _page(module, str(file))
        raise Unreadable(module)


@cache
def _page(module: str, file: str) -> _Page:
    """A parsed file of base classes, which many files share."""
    return _Page(module, file)


def _fields(page: _Page, node: ast.ClassDef) -> dict[str, Mapping[str, Any]]:
    """The fields of a dataclass, fields of its bases first."""
    fields: dict[str, Mapping[str, Any]] = {}
    for base in reversed(node.bases):
        if not isinstance(base, ast.Name):
            raise Unreadable(ast.unparse(base))
        fields |= _fields(*page.base(base.id))
    if not any(ast.unparse(decorator).startswith(("dataclass", "register")) for decorator in node.decorator_list):
        return fields
    for entry in node.body:
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name):
            if ast.unparse(entry.annotation).startswith("ClassVar"):
                continue
            kind, doc = annotation(entry.annotation)
            default = {} if entry.value is None else {"default": _value(entry.value)}
            fields[entry.target.id] = {"name": entry.target.id, "type": kind, "doc": doc, **default}
    return fields


def annotation(node: ast.expr) -> tuple[str, str]:
    """The type of a field, and the description in its `Annotated`."""
    doc: ast.expr = ast.Constant("")
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).split(".")[-1] == "Annotated":
        node, doc, *_ = node.slice.elts  # type: ignore[attr-defined]  # Annotated takes two at least
    return ast.unparse(node), str(_value(doc))


def _value(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError as error:
        raise Unreadable(ast.unparse(node)) from error
