"""Functions whose calls of the same shapes are captured, and the image models that use them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.cuda_graphs.capture import CaptureError
from pardec.models.cuda_graphs.functions import FunctionGraphs
from pardec.models.images.contracts import ImageModel
from tests.models.traced import Traced

WEIGHT = torch.arange(12.0).view(3, 4)


def graphs() -> FunctionGraphs:
    return FunctionGraphs(Traced(lambda: [WEIGHT]))


def product(x: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    made = x @ WEIGHT + shift
    return made, made.sum(-1)


@torch.inference_mode()
def test_calls_of_a_shape_are_replayed_with_their_own_values() -> None:
    stack, kept = graphs(), list[tuple[Tensor, ...]]()
    expected = []
    for seed in range(4):
        inputs = torch.randn(2, 3, generator=torch.Generator().manual_seed(seed)), torch.full((4,), float(seed))
        kept.append(stack("product", product, inputs))
        expected.append(product(*inputs))
    assert stack.counts == {"the first of its shape": 1, "recorded": 1, "replayed": 2}
    for found, wanted in zip(kept, expected, strict=True):  # results outlive the next call
        assert all(map(torch.equal, found, wanted))
    stack("product", product, (torch.ones(3, 3), torch.zeros(4)))
    stack("product", product, (torch.ones(2, 3), torch.zeros(4)), "another")
    assert stack.counts["the first of its shape"] == 3
    assert stack.describe() == "forwards: 3 the first of its shape, 2 replayed, 1 recorded; 1 shapes kept"
    assert stack.nbytes == (6 + 4) * 4
    stack.forget("product")
    assert stack.nbytes == 0


@torch.inference_mode()
def test_a_function_that_reads_values_runs_as_it_comes() -> None:
    def reads(x: Tensor) -> tuple[Tensor]:
        return (x * int(x.sum()),)

    stack = graphs()
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(stack("reads", reads, (torch.full((2,), value),))[0], torch.full((2,), 2 * value**2))
    assert set(stack.counts) == {"the first of its shape", "refused: __int__ needs the host"}


def test_gradients_pass_through_calls_that_were_captured_before() -> None:
    stack = graphs()
    with torch.inference_mode():
        for _ in range(3):
            stack("product", product, (torch.ones(2, 3), torch.zeros(4)))
    x = torch.ones(2, 3, requires_grad=True)
    stack("product", product, (x, torch.zeros(4)))[0].sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None
    assert stack.counts["gradients are on"] == 1


@torch.inference_mode()
def test_few_graphs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pardec.models.cuda_graphs.functions._MOST", 2)
    stack = graphs()
    for rows in (1, 2, 3):
        for _ in range(2):
            stack("product", product, (torch.ones(rows, 3), torch.zeros(4)))
    assert stack.describe().endswith("; 2 shapes kept")
    stack("product", product, (torch.ones(1, 3), torch.zeros(4)))  # dropped, so recorded again
    assert stack.counts["recorded"] == 4


@torch.inference_mode()
def test_a_capturer_that_refuses_is_asked_once_a_shape() -> None:
    class Never:
        asked = 0

        def capture(self, step: Any, inputs: Any) -> Any:
            self.asked += 1
            raise CaptureError("no")

    never = Never()
    stack = FunctionGraphs(never)
    for _ in range(4):
        stack("product", product, (torch.ones(2, 3), torch.zeros(4)))
    assert never.asked == 1
    assert stack.counts == {"the first of its shape": 1, "refused: no": 3}


def images(name: str) -> tuple[pardec.Model, ImageModel]:
    """The model and its network, captured by recorded operations."""
    model = pardec.load(name, device="cpu")
    network = model.network
    parts = [part for part in (getattr(network, name, None) for name in ("backbone", "transformer")) if part]
    parts += [part for part in (getattr(network, "head", None),) if part]

    def known() -> list[Tensor]:
        weights = [weight for part in parts for _, weight in part.named_parameters()]
        caches = [tensor for store in STORES for tensor in (*store.k, *store.v)]
        return [*weights, *caches]

    network.capture(lambda: Traced(known))
    return model, network


STORES: list[Any] = []


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        ("tiny-mar", "mar:steps=8,head=9"),
        ("tiny-mar", "cspd:draft=tiny-mar-draft,steps=8,head=9"),
        ("tiny-var", "sequential"),
    ],
)
def test_images_are_those_of_uncaptured_forwards(name: str, sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"label": [1, 2], "seed": 3, "cfg": 2.0, "sampler": sampler}
    expected = pardec.load(name, device="cpu").generate(**options)
    model, network = images(name)
    if name == "tiny-var":
        acquire = network.transformer.stores.acquire  # type: ignore[attr-defined]

        def noted(*size: int) -> Any:
            STORES.append(acquire(*size))
            return STORES[-1]

        monkeypatch.setattr(network.transformer.stores, "acquire", noted)  # type: ignore[attr-defined]
    for _ in range(2):  # a second request finds the graphs, and the memory, of the first
        result = model.generate(**options)
        assert list(result.nfe) == list(expected.nfe)
        assert [list(row) for row in result.tokens] == [list(row) for row in expected.tokens]
        if expected.latents is not None:
            torch.testing.assert_close(result.latents, expected.latents, atol=1e-5, rtol=1e-4)
    assert not [why for why in network.graphs.counts if why.startswith("refused")], network.graphs.describe()
    assert network.graphs.counts["replayed" if name == "tiny-mar" else "recorded"] > 2
    assert result.environment["forwards"] == network.graphs.describe()
    STORES.clear()
