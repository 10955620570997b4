"""The packages samplers, models and pardec: allowed imports, packaging, nothing loaded twice, a light import."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from tests import fresh

ROOT = Path(__file__).resolve().parent.parent
FLOORS = {"models": ROOT / "models", "samplers": ROOT / "samplers", "pardec": ROOT / "pardec"}
BELOW = {"models": ("pardec.models",), "samplers": ("pardec.samplers", "pardec.models"), "pardec": ("pardec",)}


def module_name(file: Path) -> str:
    """The name a file of a floor imports as."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    if parts[0] != "pardec":
        parts = ("pardec", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def sources(floor: str) -> list[Path]:
    return sorted(FLOORS[floor].rglob("*.py"))


@cache
def imports(file: Path) -> set[tuple[str, str]]:
    """The modules that a file imports anywhere, relative ones resolved, each with a name from it, or none."""
    package = module_name(file) if file.name == "__init__.py" else module_name(file).rpartition(".")[0]
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found.update((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            stem = ".".join(filter(None, (base, node.module))) if node.level else str(node.module)
            found.update((stem, alias.name) for alias in node.names)
    return found


def imported(file: Path) -> set[str]:
    """The modules that a file imports anywhere; a name from `pardec` itself counts as one."""
    return {f"{stem}.{name}" if stem == "pardec" and name else stem for stem, name in imports(file)}


def python(code: str, cwd: Path = ROOT) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_down_only(floor: str) -> None:
    wrong = {
        f"{file.relative_to(ROOT)} imports {name}"
        for file in sources(floor)
        for name in imported(file)
        if (within(name, ("pardec",)) and not within(name, BELOW[floor])) or within(name, ("models", "samplers"))
    }
    assert not wrong


MODULES = {module_name(file): file for floor in FLOORS for file in sources(floor)}


def files_imported(module: str) -> set[str]:
    """The files of the package that a file imports anywhere, also in functions and for types only."""
    pairs = imports(MODULES[module])
    found = {whole if (whole := f"{stem}.{name}") in MODULES else stem for stem, name in pairs}
    return (found & set(MODULES)) - {module}


def test_no_files_import_each_other_in_a_circle() -> None:
    left = {module: files_imported(module) for module in MODULES}
    while free := [module for module, needs in left.items() if not needs & set(left)]:
        for module in free:
            del left[module]
    assert sorted(left) == []


def test_samplers_load_no_models() -> None:
    loaders = ("pardec.models.load", "pardec.models.files.weights")
    assert [file.name for file in sources("samplers") for name in imported(file) if within(name, loaders)] == []


LOOPS = ("masked", "speculative", "continuous", "scales")


@pytest.mark.parametrize("room", ["ops", *LOOPS])
def test_rules_and_loops_import_no_other_loop(room: str) -> None:
    others = tuple(f"pardec.samplers.{loop}" for loop in LOOPS if loop != room)
    files = [file for module, file in MODULES.items() if within(module, (f"pardec.samplers.{room}",))]
    assert files
    assert [(file.name, name) for file in files for name in imported(file) if within(name, others)] == []


def test_what_reads_files_imports_no_model() -> None:
    above = tuple(f"pardec.models.{name}" for name in ("model", "decoder", "load", "loading", "layers", "caches"))
    files = [file for module, file in MODULES.items() if within(module, ("pardec.models.files",))]
    assert files
    assert [(file.name, name) for file in files for name in imported(file) if within(name, above)] == []


def test_the_decoder_names_no_backend() -> None:
    text = (ROOT / "models" / "decoder.py").read_text().lower()
    assert [word for word in ("triton", "_c(", "kernels.cpu", "backend") if word in text] == []


def test_a_method_imports_no_model_family() -> None:
    wrong = [file for file in sources("samplers") for name in imported(file) if "pardec.models.families" in name]
    assert not wrong


def test_every_folder_is_packaged() -> None:
    pytest.importorskip("setuptools")
    code = """
import setuptools
from distutils.core import run_setup

print(*run_setup("setup.py", stop_after="init").packages)
"""
    folders = [module_name(file) for floor in FLOORS for file in sources(floor) if file.name == "__init__.py"]
    assert sorted(python(code).split()) == sorted(folders)


def test_every_source_file_lies_in_a_package() -> None:
    stray = [f for floor in FLOORS for f in sources(floor) if not (f.parent / "__init__.py").exists()]
    assert not stray


@pytest.mark.parametrize("name", ["models", "samplers"])
def test_a_floor_refuses_its_bare_name(name: str) -> None:
    code = f"""
try:
    import {name}
except ImportError as error:
    print(error)
else:
    print("imported")
"""
    assert f"pardec.{name}" in python(code)


def test_no_file_is_loaded_twice() -> None:
    names = [module_name(file) for floor in FLOORS for file in sources(floor) if not file.stem.endswith("_triton")]
    names.remove("pardec.__main__")
    code = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
floors = {tuple(f"{path}/" for path in FLOORS.values())!r}
files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
files = [file for file in files if file.startswith(floors)]
print(sorted(f for f in files if files.count(f) > 1), sorted(n for n in sys.modules if n in ("models", "samplers")))
"""
    [done] = fresh.results([{"language": "python", "code": code}], ROOT)
    assert (done["code"], done["told"].splitlines()[-1:]) == (0, ["[] []"]), done["told"]


@pytest.mark.parametrize(
    "command",
    [
        "import pardec",
        "from pardec.models.files.catalog import embedded_names\nembedded_names()",
        "from pardec.cli import main\nmain(['--help'])",
        "from pardec.cli import main\nmain(['compare', '--help'])",
    ],
)
def test_import_and_help_are_light(command: str) -> None:
    heavy = ("torch", "transformers", "diffusers", "accelerate", "numpy", "pardec.comparison.metrics")
    code = f"""
import contextlib, io, sys
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    exec({command!r})
print([name for name in {heavy!r} if name in sys.modules])
"""
    spent = []
    for _ in range(3):
        before = os.times()
        assert python(code) == "[]"
        after = os.times()
        # Processor time, which a busy machine does not stretch as it does the clock on the wall.
        spent.append(after.children_user + after.children_system - before.children_user - before.children_system)
        if spent[-1] < 1.5:
            break
    assert min(spent) < 1.5  # torch alone takes about twice that on the slowest processors seen


def test_decoding_imports_no_compiler() -> None:
    """PyTorch's compiler, Triton and distributed tensors are 150 MB of memory, and more than a second."""
    heavy = ("torch._dynamo", "torch.distributed.tensor", "triton", "sympy")
    code = f"""
import sys
import pardec
for name, options in (("tiny-dream", {{}}), ("tiny-llama", {{"quantize": "int8"}})):
    pardec.load(name, **options).generate("Hugo has 55 apples.", max_new_tokens=8)
    print(name, [name for name in {heavy!r} if name in sys.modules])
"""
    assert python(code).splitlines() == ["tiny-dream []", "tiny-llama []"]


def test_public_names_are_sorted_and_there() -> None:
    import pardec

    assert pardec.__all__ == sorted(pardec.__all__)
    assert [name for name in pardec.__all__ if not hasattr(pardec, name)] == []
