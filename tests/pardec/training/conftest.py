from __future__ import annotations

import pytest

import pardec


@pytest.fixture(scope="session")
def model() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu")
