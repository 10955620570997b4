"""Checks that the plain version named by a card exists, is independent of the method, and is called by its tests.

It reads the sources of the tests and runs none: a test calls what its own lines name, and what the helpers, fixtures
and tables that it uses name in its file; for tests in the method's own file, helpers of other files count too.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def pages() -> dict[str, Page]:
    """Every file of the tests, by its name below tests/ with dots."""
    files = {".".join(file.relative_to(TESTS).with_suffix("").parts): file for file in TESTS.rglob("*.py")}
    return {module: Page(module, file.read_text()) for module, file in files.items()}


@dataclass(frozen=True)
class Use:
    """The full names and the strings that a piece of code uses, directly or through other parts of its file."""

    names: set[str]
    strings: set[str]

    def is_of(self, method: str, module: str) -> bool:
        """Whether a string is a spec, or its end, that has the method, or a name belongs to the method's module."""
        spec = re.compile(rf"(^|[+@]){method}($|[:+@])")
        return any(map(spec.search, self.strings)) or any(name.startswith(f"{module}.") for name in self.names)


class Page:
    """A file of the tests, parsed when it is looked at."""

    def __init__(self, module: str, text: str) -> None:
        self.module, self.text = module, text

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def parts(self) -> dict[str, ast.AST]:
        """Its functions, classes and tables, by name."""
        found: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {name: node for target in targets for name in _names(target)}
        return found

    @cached_property
    def imports(self) -> dict[str, str]:
        """The full name of each imported name."""
        return {
            alias.asname or alias.name: f"{node.module}.{alias.name}"
            for node in ast.walk(self.tree)
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
        }

    @cached_property
    def tests(self) -> list[Use]:
        """The `Use` of each test function; files whose names pytest does not collect have none."""
        if not self.module.rpartition(".")[2].startswith("test_"):
            return []
        return [self.use(node) for name, node in self.parts.items() if name.startswith("test_")]

    def use(self, node: ast.AST) -> Use:
        names, strings, code = set[str](), set[str](), [node]
        for part in code:  # which grows on the way
            own, said = _read(part)
            strings |= said
            for name in own:
                first, _, rest = name.partition(".")
                if first in self.imports:
                    names.add(f"{self.imports[first]}.{rest}".rstrip("."))
                elif (full := f"tests.{self.module}.{name}") not in names:
                    names.add(full)
                    code += [self.parts[name]] if name in self.parts else []
        return Use(names, strings)


@cache  # many tests use one helper
def _read(node: ast.AST) -> tuple[set[str], set[str]]:
    """The names and the strings in a piece of code."""
    every = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return set(_names(node)), {value for value in every if isinstance(value, str)}


def _names(node: ast.AST) -> Iterator[str]:
    """The names in a piece of code, `module.name` as one, with parameters (fixtures), without annotations."""
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


def _borrowed(reference: str, known: Mapping[str, Page]) -> set[str]:
    """The parts of the samplers that a plain version uses, directly or through helpers; random numbers are allowed."""
    left, seen, found = [f"tests.{reference}"], set[str](), set[str]()
    while left:
        full = left.pop()
        file, _, name = full.removeprefix("tests.").rpartition(".")
        part = known[file].parts.get(name) if file in known else None
        if full.startswith("pardec.samplers.") and not full.startswith("pardec.samplers.rng."):
            found.add(full)
        elif part is not None and full not in seen:
            seen.add(full)
            left += known[file].use(part).names
            found |= {"sampler=" for node in ast.walk(part) if isinstance(node, ast.keyword) and node.arg == "sampler"}
    return found


def _with_helpers(test: Use, known: Mapping[str, Page]) -> Use:
    """The names that a test uses, directly or through imported helpers, without those of plain versions."""
    left, names, strings = list(test.names), set(test.names), set(test.strings)
    while left:
        file, _, name = left.pop().removeprefix("tests.").rpartition(".")
        part = known[file].parts.get(name) if file in known and not file.startswith("reference.") else None
        if part is not None:
            more = known[file].use(part)
            left += more.names - names
            names |= more.names
            strings |= more.strings
    return Use(names, strings)


def fault(reference: str, method: str, module: str, known: Mapping[str, Page]) -> str | None:
    """The fault of `reference` as the plain version of a method, registered by `module`; None if nothing is."""
    file, _, name = reference.rpartition(".")
    page = known.get(file)
    if page is None or not isinstance(page.parts.get(name), ast.FunctionDef | ast.ClassDef):
        return f"tests/{file.replace('.', '/')}.py defines no {name}"
    if borrowed := _borrowed(reference, known):
        return f"{reference} is not apart from the package: it uses {', '.join(sorted(borrowed))}"
    near = [page for page in known.values() if file.rpartition(".")[2] in page.text or page.module == file]
    callers = [test for page in near for test in page.tests if f"tests.{reference}" in test.names]
    own = [page for name, page in known.items() if name.rpartition(".")[2] == f"test_{method}"]
    whole = [_with_helpers(test, known) for page in own for test in page.tests]
    callers += [test for test in whole if f"tests.{reference}" in test.names]
    if not callers:
        return f"no test calls {reference}"
    if not any(test.is_of(method, module) for test in callers):
        return f"no test that calls {reference} is of {method}"
    return None
