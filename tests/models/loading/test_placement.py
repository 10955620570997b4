from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.files.weights import Published
from pardec.models.parallel import placement

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)


@pytest.fixture
def machine(monkeypatch):
    def make(*, cuda=False, mps=False, bf16=True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: int(cuda))
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: bf16)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return make


def test_auto_prefers_cuda_then_mps_then_cpu(machine):
    machine()
    assert placement.choose_device("auto") == (CPU, "no GPU found")
    machine(mps=True)
    assert placement.choose_device("auto") == (torch.device("mps"), "Apple GPU found")
    machine(cuda=True, mps=True)
    assert placement.choose_device("auto") == (CUDA, "A GPU found")
    assert placement.choose_device("cpu") == (CPU, "as asked")


def test_a_device_that_is_not_there_is_refused(machine):
    machine()
    for device, message in (
        ("cuda", "finds no CUDA GPU"),
        ("mps", "finds no Apple GPU"),
        ("toaster", "unknown device"),
    ):
        with pytest.raises(ModelError, match=message):
            placement.choose_device(device)
    machine(cuda=True)
    with pytest.raises(ModelError, match="there are 1 CUDA GPUs"):
        placement.choose_device("cuda:1")


@pytest.mark.parametrize(
    ("device", "stored", "bf16", "expected"),
    [
        (CPU, torch.bfloat16, True, torch.float32),
        (CPU, torch.float32, True, torch.float32),
        (CUDA, torch.bfloat16, True, torch.bfloat16),
        (CUDA, torch.bfloat16, False, torch.float16),
        (CUDA, torch.float16, True, torch.float16),
        (CUDA, torch.float32, True, torch.float32),
        (CUDA, torch.float64, True, torch.float32),
    ],
)
def test_auto_dtype(device, stored, bf16, expected, machine):
    machine(cuda=True, bf16=bf16)
    assert placement.choose_dtype("auto", device, stored)[0] == expected


def test_a_dtype_can_be_asked_for_by_name_or_value():
    assert placement.choose_dtype("bf16", CPU, torch.float32) == (torch.bfloat16, "as asked")
    assert placement.choose_dtype(torch.float16, CPU, torch.float32) == (torch.float16, "as asked")


def test_the_stored_dtype_is_that_of_most_numbers():
    file = Path("x")
    held = {
        "a": Published(file, (2, 2), torch.float32),
        "b": Published(file, (9,), torch.bfloat16),
        "c": Published(file, (99,), None),
    }
    assert placement.stored_dtype(held) == torch.bfloat16
    assert placement.stored_dtype({}) == torch.float32
