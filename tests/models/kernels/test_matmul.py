"""oneDNN's products equal F.linear's for every memory layout; oneDNN is used where it is faster."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pardec
from pardec.models.kernels import layout, matmul
from pardec.models.plan import Plan

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="PyTorch holds no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Records the weight shapes of all products that oneDNN computes."""
    asked = []
    kernel = matmul._kernel()

    def counted(x, weight, *others):
        asked.append(tuple(weight.shape))
        return kernel(x, weight, *others)

    monkeypatch.setattr(matmul, "onednn_is_faster", lambda: True)
    monkeypatch.setattr(matmul, "_kernel", lambda: counted)
    monkeypatch.setattr(matmul, "_LEAST", 0)
    return asked


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(lies, rows, columns):
    """W [rows, columns]; memory between the columns is NaN."""
    held = randn(rows, columns, seed=1)
    if lies == "columns":
        made = layout.empty((rows, columns), dtype=torch.float32, device=torch.device("cpu"))
        if (whole := layout.whole(made)) is not made:
            whole.fill_(float("nan"))
        held = made.copy_(held)
    elif lies == "slice":
        held = torch.full((rows, 2 * columns), float("nan"))[:, :columns].copy_(held)
    return nn.Parameter(held, requires_grad=False)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lies", ["rows", "columns", "slice"])
@pytest.mark.parametrize(("rows", "columns"), [(256, 48), (100, 64), (7, 5)])
@pytest.mark.parametrize("shape", [(1,), (33,), (0,), (2, 3), ()])
@pytest.mark.covers(2)
def test_a_product_is_that_of_linear(onednn, shape, rows, columns, lies, biased):
    weight, bias = weights(lies, rows, columns), randn(rows, seed=2) if biased else None
    x = randn(*shape, columns)
    expected = F.linear(x, weight, bias)
    found = matmul.matmul(x, weight, bias)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert len(onednn) == (lies != "slice")
    if x.dim() == 2:
        h = randn(*expected.shape, seed=3)
        kept = h.clone()
        torch.testing.assert_close(matmul.add_matmul(h, x, weight, bias), h + expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(h, kept)


def test_the_rows_of_x_may_lie_apart(onednn):
    weight, x = weights("columns", 256, 48), randn(9, 96)[:, :48]
    torch.testing.assert_close(matmul.matmul(x, weight), F.linear(x, weight), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("biased", [False, True])
def test_large_products_are_brought_together_a_few_rows_at_a_time(onednn, monkeypatch, biased):
    monkeypatch.setattr(matmul, "_CHUNK", 2 * 272 + 1)
    weight, bias = weights("columns", 256, 48), randn(256, seed=2) if biased else None
    x = randn(2, 4, 48)
    torch.testing.assert_close(matmul.matmul(x, weight, bias), F.linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    assert len(onednn) == 4


@pytest.mark.parametrize("asks", ["weight", "x"])
def test_what_is_to_be_differentiated_is_not_given_away(onednn, asks):
    weight, x = weights("rows", 8, 6), randn(4, 6)
    (weight if asks == "weight" else x).requires_grad_()
    matmul.matmul(x, weight).sum().backward()
    assert (weight if asks == "weight" else x).grad is not None
    assert not onednn


def test_other_dtypes_and_small_products_are_not_given_away(onednn, monkeypatch):
    weight, x = weights("rows", 8, 6), randn(4, 6)
    matmul.matmul(x.bfloat16(), nn.Parameter(weight.bfloat16(), requires_grad=False))
    matmul.matmul(x, weight.data)  # no parameter, as weights in fewer bits are none
    monkeypatch.setattr(matmul, "_LEAST", 4 * 6 * 8 + 1)
    matmul.matmul(x, weight)
    assert not onednn
    monkeypatch.setattr(matmul, "_LEAST", 4 * 6 * 8)
    matmul.matmul(x, weight)
    assert onednn == [(8, 6)]


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llama"])
def test_a_model_says_the_same_by_either(onednn, monkeypatch, name):
    model = pardec.load(name, device="cpu", dtype="float32").language_model
    index = torch.arange(40).expand(2, 40)
    plan = Plan(index + 5, index, index, model.visible(), torch.full((2,), 40), index, uniform=40, span=(0, 40))

    def logits():
        with torch.inference_mode():
            return model.decoder.project(model.decoder.forward(plan).states.flatten(0, 1))

    found, asked = logits(), len(onednn)
    assert asked == 4 * model.decoder.config.layers + 1
    monkeypatch.setattr(matmul, "onednn_is_faster", lambda: False)
    expected = logits()
    assert len(onednn) == asked
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "capability", "forced", "chosen"),
    [
        ("AMD EPYC 9B45", "AVX512", None, True),
        ("AMD EPYC 7B13", "AVX2", None, False),
        ("Intel Xeon Processor (SapphireRapids)", "AVX512", None, False),
        ("AMD EPYC 9B45", "AVX512", "reference", False),
    ],
)
def test_the_processor_decides(monkeypatch, name, capability, forced, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"cpu_name": name}, raising=False)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.delenv("PARDEC_KERNELS", raising=False)
    if forced:
        monkeypatch.setenv("PARDEC_KERNELS", forced)
    matmul.onednn_is_faster.cache_clear()
    try:
        assert matmul.onednn_is_faster() is chosen
    finally:
        matmul.onednn_is_faster.cache_clear()
