from __future__ import annotations

import pytest
import torch

from pardec.models import host_transfer
from pardec.models.host_transfer import to_host
from tests.samplers import ar_toys

PARTS = {
    "which": torch.tensor([[True, False, True]]),
    "tokens": torch.arange(6).view(2, 3).t(),
    "scores": torch.tensor([0.25, -1.5]),
    "none": torch.zeros(0, 4, dtype=torch.int64),
    "steps": torch.tensor([7], dtype=torch.int16),
}


def test_on_a_cpu_the_memory_is_shared() -> None:
    held = torch.zeros(3)
    found = to_host({"held": held})["held"]
    held += 1
    assert found.tolist() == [1, 1, 1]


def test_elsewhere_all_come_in_one_transfer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_transfer, "_shared", lambda tensors: False)
    moved: list[int] = []
    cpu = torch.Tensor.cpu
    monkeypatch.setattr(torch.Tensor, "cpu", lambda tensor: moved.append(tensor.nbytes) or cpu(tensor))
    found = to_host(PARTS)
    assert moved == [3 + 48 + 8 + 0 + 2]
    for name, tensor in PARTS.items():
        assert torch.equal(torch.from_numpy(found[name].copy()), tensor)


@pytest.mark.parametrize("spec", ["lookup", "recycling", "lookahead", "jacobi+typical"])
def test_a_decode_reads_the_same_either_way(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = ar_toys.toy_ar(vocab=11), ar_toys.prompts([5, 9, 3], vocab=11)
    more = {"temperature": 1.0} if "typical" in spec else {}
    one = ar_toys.run(model, spec, given, [12, 8, 20], **more)
    monkeypatch.setattr(host_transfer, "_shared", lambda tensors: False)
    two = ar_toys.run(model, spec, given, [12, 8, 20], **more)
    assert (one.tokens == two.tokens).all()
    assert (one.trace.drafted, one.trace.accepted) == (two.trace.drafted, two.trace.accepted)
    assert one.deviation == two.deviation
