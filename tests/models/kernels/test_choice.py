from __future__ import annotations

import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.kernels import choice

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.fixture(autouse=True)
def _unforced(monkeypatch):
    monkeypatch.delenv("PARDEC_KERNELS", raising=False)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(choice, "_has_triton", lambda: True)


def test_the_device_decides():
    assert choice.backend(CPU) == "reference"
    assert choice.backend(CUDA) == "triton"
    assert choice.backend(CUDA, suited=False) == "reference"


def test_without_triton_the_definition_runs(monkeypatch):
    monkeypatch.setattr(choice, "_has_triton", lambda: False)
    assert choice.backend(CUDA) == "reference"
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    with pytest.raises(ModelError, match="not installed"):
        choice.backend(CUDA)


def test_the_variable_forces_a_version(monkeypatch):
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    assert choice.backend(CUDA) == "reference"
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    assert choice.backend(CUDA, suited=False) == "triton"
    with pytest.raises(ModelError, match="cannot run on cpu") as error:
        choice.backend(CPU)
    assert "TRITON_INTERPRET=1" in str(error.value.hint)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert choice.backend(CPU) == "triton"
    monkeypatch.setenv("PARDEC_KERNELS", "fast")
    with pytest.raises(ModelError, match="PARDEC_KERNELS=fast"):
        choice.backend(CPU)
