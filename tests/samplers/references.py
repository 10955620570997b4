"""Whether a plain version that a card names is there, is apart from the method, and is called by a test of the method.

Read off the sources of the tests, none of which is run: a test calls what its own lines name, and what the helpers,
fixtures and tables of its file name that it uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def pages() -> dict[str, Page]:
    """Every file of the tests, by its name below tests/ with dots."""
    files = {".".join(file.relative_to(TESTS).with_suffix("").parts): file for file in TESTS.rglob("*.py")}
    return {module: Page(module, file.read_text()) for module, file in files.items()}


class Page:
    """A file of the tests.

    Attributes:
        parts: its functions, classes and tables, by name.
        imports: what each imported name stands for, in full.
    """

    def __init__(self, module: str, text: str) -> None:
        self.module, self.tree = module, ast.parse(text)
        self.parts: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.parts[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.parts |= {name: node for target in targets for name in _names(target)}
        self.imports = {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @cached_property
    def tested(self) -> set[str]:
        """All that its test functions use."""
        return self.used(node for name, node in self.parts.items() if name.startswith("test_"))

    def used(self, nodes: Iterable[ast.AST]) -> set[str]:
        """All that these nodes name, in full, directly or by other parts of the file."""
        found = set[str]()
        names = [name for node in nodes for name in _names(node)]
        while names:
            name = names.pop()
            first, _, rest = name.partition(".")
            full = (
                f"{self.imports[first]}.{rest}".rstrip(".") if first in self.imports else f"tests.{self.module}.{name}"
            )
            if full not in found:
                found.add(full)
                names += _names(self.parts[name]) if name in self.parts else ()
        return found


def _names(node: ast.AST) -> Iterator[str]:
    """The names in a piece of code, `module.name` whole; parameters too, for fixtures; annotations left out."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.arg):
        yield node.arg
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        yield f"{node.value.id}.{node.attr}"
    for field, value in ast.iter_fields(node):
        if field not in ("annotation", "returns"):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.AST):
                    yield from _names(each)


def _is_of(page: Page, method: str, module: str) -> bool:
    """Whether a file names the method in a spec, or a beginning or end of one, or imports from its module."""
    spec = re.compile(rf"(^|[+@]){method}($|[:+@])")
    strings = [node.value for node in ast.walk(page.tree) if isinstance(node, ast.Constant)]
    return any(isinstance(text, str) and spec.search(text) for text in strings) or any(
        full.startswith(f"{module}.") for full in page.imports.values()
    )


def _borrowed(reference: str, known: Mapping[str, Page]) -> set[str]:
    """What a plain version uses of the samplers, itself or by helpers of any file; random numbers are its to use."""
    left, seen, found = [f"tests.{reference}"], set[str](), set[str]()
    while left:
        full = left.pop()
        file, _, name = full.removeprefix("tests.").rpartition(".")
        part = known[file].parts.get(name) if file in known else None
        if full.startswith("pardec.samplers.") and not full.startswith("pardec.samplers.rng."):
            found.add(full)
        elif part is not None and full not in seen:
            seen.add(full)
            left += known[file].used([part])
            found |= {"sampler=" for node in ast.walk(part) if isinstance(node, ast.keyword) and node.arg == "sampler"}
    return found


def fault(reference: str, method: str, module: str, known: Mapping[str, Page]) -> str | None:
    """What is wrong with `reference` as the plain version of a method, registered by `module`; None if nothing is."""
    file, _, name = reference.rpartition(".")
    page = known.get(file)
    if page is None or not isinstance(page.parts.get(name), ast.FunctionDef | ast.ClassDef):
        return f"tests/{file.replace('.', '/')}.py defines no {name}"
    if borrowed := _borrowed(reference, known):
        return f"{reference} is not apart from the package: it uses {', '.join(sorted(borrowed))}"
    callers = [
        page
        for page in known.values()
        if page.module.rpartition(".")[2].startswith("test_") and f"tests.{reference}" in page.tested
    ]
    if not callers:
        return f"no test calls {reference}"
    if not any(_is_of(page, method, module) for page in callers):
        return f"no test that calls {reference} is of {method}"
    return None
