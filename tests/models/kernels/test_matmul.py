"""Matmuls of plain weights equal F.linear in every memory layout, with a bias and added to a residual."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pardec.models.kernels import layout, matmul


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights(lies: str, rows: int, columns: int) -> nn.Parameter:
    """W [rows, columns]; memory between the columns is NaN."""
    held = randn(rows, columns, seed=1)
    if lies == "columns":
        made = layout.empty((rows, columns), dtype=torch.float32, device=torch.device("cpu"))
        made.as_strided((made.stride(1), columns), (1, made.stride(1))).fill_(float("nan"))
        held = made.copy_(held)
    elif lies == "slice":
        held = torch.full((rows, 2 * columns), float("nan"))[:, :columns].copy_(held)
    return nn.Parameter(held, requires_grad=False)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("lies", ["rows", "columns", "slice"])
@pytest.mark.parametrize(("rows", "columns"), [(256, 48), (100, 64), (7, 5)])
@pytest.mark.parametrize("shape", [(1,), (33,), (0,), (2, 3), ()])
@pytest.mark.covers(2)
def test_matmul_equals_linear(shape: tuple[int, ...], rows: int, columns: int, lies: str, biased: bool) -> None:
    weight, bias = weights(lies, rows, columns), randn(rows, seed=2) if biased else None
    x = randn(*shape, columns)
    expected = x @ weight.detach().contiguous().t() + (0 if bias is None else bias)
    torch.testing.assert_close(matmul.matmul(x, weight, bias), expected, rtol=1e-4, atol=1e-4)
    if x.dim() == 2:
        h = randn(*expected.shape, seed=3)
        kept = h.clone()
        torch.testing.assert_close(matmul.add_matmul(h, x, weight, bias), h + expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(h, kept)


def test_matmul_of_rows_apart() -> None:
    weight, x = weights("columns", 256, 48), randn(9, 96)[:, :48]
    torch.testing.assert_close(matmul.matmul(x, weight), F.linear(x.contiguous(), weight), rtol=1e-4, atol=1e-4)
