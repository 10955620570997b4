"""One thread for every test: the models are tiny, and runs beside each other must not fight for the cores.

What they prepare is saved in a folder of the session, and not in the user's.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
import torch

from pardec.models.kernels.cpu import library, panels

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For the session and the processes that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(autouse=True, scope="module")
def _short_collections() -> None:
    """The collector of cycles leaves alone what was there before a file: all other tests, and the libraries."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def in_c(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels in C on any processor that can run them, not only where they are chosen."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or library.library(panels._FILE) is None:
        pytest.skip("no AVX-512, or no C compiler")
    monkeypatch.delenv("PARDEC_KERNELS", raising=False)
    monkeypatch.setattr(library, "supported", lambda: True)
    library.kernel.cache_clear()
    yield
    library.kernel.cache_clear()


@pytest.fixture
def in_two_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[], object]], object]]:
    """Runs what is handed in with two threads, also where they cost more than they save."""

    def run(work: Callable[[], object]) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(library, "SPREAD", 0)
            torch.set_num_threads(2)
            return work()

    yield run
    torch.set_num_threads(1)
