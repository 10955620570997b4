"""One thread for every test: the models are tiny, and runs beside each other must not fight for the cores.

What they prepare is saved in a folder of the session, and not in the user's.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For the session and the processes that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARDEC_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield
