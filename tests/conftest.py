"""One thread for every test: the models are tiny, and parallel test processes must not compete for the cores.

Caches are written to a folder of the session instead of the user's.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from pardec.models.files import cache_dir
from pardec.models.kernels.cpu import library, panels

from .grids import covering

torch.set_num_threads(1)
gc.disable()  # until the tests are collected, which makes few cycles and many objects
gc.set_threshold(20_000, 10, 10)

ROOT = Path(__file__).resolve().parents[1]
sys.path += [str(ROOT / folder) for folder in ("scripts", "benchmarks", "docs")]  # last: some have everyday names
LONGEST_SLOW = 7200  # seconds, for one test that is marked slow and has no limit of its own


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    """Declares the option `timeout`, so that pyproject.toml is valid without pytest-timeout (scripts/gpu_queue)."""
    parser.addoption("--method", help="of files that are not a method's or family's own, the cases that name it alone")
    if not pluginmanager.hasplugin("timeout"):
        parser.addini("timeout", "seconds that a test may take")


def pytest_configure(config: pytest.Config) -> None:
    if not config.pluginmanager.hasplugin("timeout"):
        config.addinivalue_line("markers", "timeout(seconds): how long a test may take")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Lets one of the parallel processes import the test files from the last to the first.

    All of them import all files. From both ends, each file of a new clone is compiled by one process alone.
    """
    whole = session.config.args == session.config.getini("testpaths")
    if whole and os.environ.get("PYTEST_XDIST_WORKER", "").endswith("1"):
        for file in sorted((ROOT / "tests").rglob("test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):  # the collection tells of both
                import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks the cases that `covers` leaves out as slow, and gives slow tests a longer time limit."""
    gc.freeze()  # what was collected stays until the end
    gc.enable()
    if method := config.getoption("--method"):
        others = [item for item in items if not _of_method(item, method)]
        items[:] = [item for item in items if _of_method(item, method)]
        config.hook.pytest_deselected(items=others)  # for the number that pytest shows
    grids = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("covers") and not item.get_closest_marker("slow"):
            grids[item.nodeid.split("[")[0]].append(item)
    for grid in grids.values():
        marker = grid[0].get_closest_marker("covers")
        assert marker is not None
        numbers = defaultdict[int, int](count().__next__)  # of what has no text of its own, in order of appearance
        cases = [tuple(_value(value, numbers) for value in item.callspec.params.values()) for item in grid]  # type: ignore[attr-defined]
        taken = covering(cases, *marker.args)
        for at, item in enumerate(grid):
            if at not in taken:
                item.add_marker(pytest.mark.slow)
    if config.pluginmanager.hasplugin("timeout"):
        for item in items:
            if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(LONGEST_SLOW))


def _of_method(item: pytest.Item, name: str) -> bool:
    """Whether the test's file is the method's own, or its name or its parameters name the method."""
    own = re.fullmatch(rf"test_{name}(_.*)?\.py", item.path.name)
    named = re.search(rf"(?<![a-z0-9]){name}(?![a-z0-9])", item.nodeid.partition("::")[2])
    return own is not None or named is not None


def _value(value: Any, numbers: defaultdict[int, int]) -> Any:
    """A text for a parameter's value, the same in every process."""
    text = repr(value)
    return numbers[id(value)] if " at 0x" in text or isinstance(value, torch.Tensor) else text


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fails tests named for a paper, and those of a method's own file, if a default differs from published_defaults."""
    from .samplers.published_defaults import check

    mark = item.get_closest_marker("seeds")
    check(mark.args[0].removeprefix("arXiv:") if mark else "", item.path.stem.removeprefix("test_"))


@pytest.fixture(scope="module")
def dream() -> Any:
    """The embedded masked model; each test file loads its own copy."""
    import pardec

    return pardec.load("tiny-dream", device="cpu")


@pytest.fixture(scope="module")
def llama() -> Any:
    """The embedded autoregressive model; each test file loads its own copy."""
    import pardec

    return pardec.load("tiny-llama", device="cpu")


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A cache folder for the session, its parallel processes and those that they start.

    Compiled kernels are kept in build/kernels from one session to the next: their names contain all that they are made
    of. Parallel processes compile them at the start, from both ends of the list, so that each is compiled once.
    """
    base, worker = tmp_path_factory.getbasetemp(), os.environ.get("PYTEST_XDIST_WORKER", "")
    cache, kept = (base.parent if worker else base) / "cache", ROOT / "build" / "kernels"
    kernels = cache / "kernels"
    for folder in (cache, kernels):
        folder.mkdir(0o700, exist_ok=True)
    for file in kept.glob("*.so"):
        if not (kernels / file.name).exists():
            cache_dir.write(kernels / file.name, file.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARDEC_CACHE", str(cache))
        if worker and library.supported():
            sources = sorted(file for folder in ("models", "samplers") for file in (ROOT / folder).rglob("*.c"))
            for source in sources[:: -1 if worker.endswith("1") else 1]:
                library.library(source)
        yield
        kept.mkdir(parents=True, exist_ok=True)
        for file in kernels.glob("*.so"):
            if not (kept / file.name).exists():
                cache_dir.write(kept / file.name, file.read_bytes())


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> None:
    """Freezes existing objects before each test file, so that garbage collection skips them and stays fast."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def with_autocast() -> None:
    """Leaves autocast on for one test, as in a real training run."""


@pytest.fixture
def without_autocast(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Lets trainers compute in float32: most CPUs multiply bfloat16 many times slower."""
    if "with_autocast" not in request.fixturenames:
        monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Uses kernels in C on any processor that can run them, not only where pardec chooses them."""
    if not library.supported() or library.library(panels._FILE) is None:
        pytest.skip("no AVX2, or no C compiler")
    monkeypatch.delenv("PARDEC_KERNELS", raising=False)
    monkeypatch.setattr(library, "supported", lambda: True)
    library.kernel.cache_clear()
    library.kernel_on.cache_clear()
    yield
    library.kernel.cache_clear()
    library.kernel_on.cache_clear()


@pytest.fixture
def in_two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Runs a function with two threads, even where two are slower than one."""

    def run(work: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(library, "SPREAD", 0)
            torch.set_num_threads(2)
            return work()

    yield run
    torch.set_num_threads(1)
